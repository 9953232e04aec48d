"""Datasets with ``__getitems__``: torch gives ``collate_fn`` whatever it returned."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dataloader_faults import check_dataset
from support.ready_batches import (
    BatchesOfLists,
    FewerInReadyBatches,
    OnlyTogether,
    OtherTogether,
    ReadyBatches,
    Together,
    ZerosInReadyBatches,
    as_it_is,
)

READY = {"collate_fn": as_it_is, "batch_size": 4, "num_workers": 2}


def _verdicts(dataset: Any, folder: Any, loader: Any, *checks: str) -> list[str]:
    results = check_dataset(lambda: dataset(folder), only=checks, loader=loader, on_fail=None)
    return [each.verdict for each in results]


@pytest.mark.parametrize(
    ("dataset", "loader"),
    [
        (ReadyBatches, READY),
        (OnlyTogether, READY),
        (BatchesOfLists, READY),
        (Together, None),
        (Together, READY),
    ],
)
def test_what_gives_several_samples_at_once(dataset, loader, records):
    """It is healthy, whether it gives a ready batch or a list of samples."""
    verdicts = _verdicts(dataset, records, loader, "workers-agree", "read-error-first")

    assert verdicts == ["survived", "failed_cleanly"]


@pytest.mark.parametrize(
    ("dataset", "check"),
    [(ZerosInReadyBatches, "read-error-first"), (FewerInReadyBatches, "workers-agree")],
)
def test_ready_batches_that_are_wrong(dataset, check, records):
    """Their samples are compared with batches of one."""
    assert _verdicts(dataset, records, READY, check) == ["corrupted"]


def test_samples_that_differ_from_those_of_getitem(records):
    """A list holds samples, and has to hold those that ``__getitem__`` gives."""
    assert _verdicts(OtherTogether, records, None, "workers-agree") == ["corrupted"]
