"""The battery on the python engine, over what is read in C: it says what it cannot know."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import Verdict, check_dataset, inject
from pytest_dataloader_faults.exceptions import FaultNotFiredError
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.corpus.truncation import FromFile
from support.datasets import Records
from support.epochs import alone, epoch

SEEN = "the python engine saw its workers {} no data file, but C code may do so unseen"


class Hdf5(Dataset[Any]):
    """Opened and read in C."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path) as file:
            return torch.tensor(file["x"][index])


def _run_checks(make, *checks):
    results = check_dataset(make, only=checks, engine="python", on_fail=None)
    return {each.check: each for each in results}


def test_what_is_opened_in_python_is_put_at_risk(records):
    results = _run_checks(lambda: FromFile(records), "read-error", "truncated-half")
    assert results["truncated-half"].verdict is Verdict.CORRUPTED
    assert not results["read-error"].applies
    assert SEEN.format("read") in results["read-error"].explanation


@pytest.mark.parametrize("check", ["open-error", "descriptor-exhaustion"])
def test_a_dataset_that_opens_in_c_is_not_called_one_that_opens_nothing(tmp_path, check):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(8)
    result = _run_checks(lambda: Hdf5(tmp_path / "x.h5"), check)[check]
    assert "the python engine saw" in result.explanation
    assert "engine='kernel' sees all reads" in result.explanation
    assert not result.applies


@pytest.mark.parametrize(
    ("fault", "is_told"), [(WorkerKilled(at=99), False), (ReadError("*.nothing"), True)]
)
def test_an_unfired_fault_is_put_down_to_the_engine_where_it_may_be(records, fault, is_told):
    with pytest.raises(FaultNotFiredError) as caught, inject(fault, engine="python"):
        epoch(alone(Records(records)))
    assert is_told is ("sees only files that Python code opens" in str(caught.value))
