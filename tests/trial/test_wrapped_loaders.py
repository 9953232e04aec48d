"""Loaders that another package wraps, and those whose ``__iter__`` is a generator."""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import part_of, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import WorkerKilled
from support.corpus.ranks import RaisesErrors
from support.datasets import Records
from support.waiting import allowed


class Adapter:
    """As accelerate's: it hands on what it is asked for, and says that it is a DataLoader."""

    __module__ = "accelerate.data_loader"

    def __init__(self, dataset: Any, **options: Any) -> None:
        self.base_dataloader = DataLoader(dataset, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self) -> Any:
        return self.base_dataloader.__class__

    def __iter__(self) -> Any:
        for data, index in self.base_dataloader:
            yield data + 1, index


class DataLoaderDispatcher(Adapter):
    """Gives its ranks parts of the batches that rank 0 drew."""

    __module__ = "accelerate.data_loader"


def _adapted(folder, **options):
    return Adapter(Records(folder), batch_size=2, num_workers=2, **options)


def test_workers_behind_a_generator_are_ended_at_once(records):
    """How one died is known, too. The garbage collector would take 5 s for each that is left."""
    began = time.monotonic()
    loader = lambda: RaisesErrors(Records(records), batch_size=2, num_workers=2)  # noqa: E731
    outcome = run_trial(loader, WorkerKilled())

    assert [each.exitcode for each in outcome.deaths] == [-9]
    assert outcome.recovery.exception is None
    assert time.monotonic() - began < allowed(5)


def test_a_wrapper_is_what_the_loop_iterates(records):
    plain = run_trial(lambda: DataLoader(Records(records), batch_size=2, num_workers=2))
    outcome = run_trial(lambda: _adapted(records))
    rows, plain_rows = ([each.rows for each in result.delivered] for result in (outcome, plain))

    assert len(rows) == len(plain_rows)
    assert rows != plain_rows


def test_options_reach_the_loader_in_a_wrapper(records):
    outcome = run_trial(lambda: _adapted(records, persistent_workers=True), WorkerKilled())

    assert outcome.exception is not None
    assert len(outcome.recovery.delivered) == outcome.recovery.batches


@pytest.mark.parametrize("several", [False, True])
def test_a_loader_of_lightning_fabric(records, several):
    fabric = pytest.importorskip("lightning.fabric")

    def make():
        loader = fabric.Fabric(accelerator="cpu", devices=1).setup_dataloaders(
            DataLoader(Records(records), batch_size=2, num_workers=2)
        )
        return {"train": loader} if several else loader

    outcome = run_trial(part_of(make, "train") if several else make)

    assert outcome.exception is None
    assert len(outcome.delivered) == outcome.epochs[0].batches


def test_batches_that_another_rank_drew_are_refused(records):
    with pytest.raises(UnusableDatasetError, match="dispatch_batches=False"):
        run_trial(lambda: DataLoaderDispatcher(Records(records), num_workers=2), ranks=2)
