"""Loaders within datasets and in wrappers, and loaders that keep one iterator for all epochs."""

import itertools
import time
from functools import partial
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.corpus.ranks import RaisesErrors
from support.datasets import Records
from support.infinite_loaders import LeavesOut, infinite, infinite_records
from support.nested_loaders import Pairs, PairsByWorkers, Queued
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")


def _run(make, *faults, method="fork", **options):
    loader = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": method, **options}
    return run_trial(make, *faults, loader=loader, epochs=1)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_only_fetches_of_the_loader_under_test_count(records, method):
    outcome = _run(partial(Pairs, records), WorkerKilled(worker=1, at=2), method=method)

    assert [2, 2] == [each.fetches for each in outcome.workers]
    assert [-9] == [each.exitcode for each in outcome.deaths]
    assert [1] == [each.fired for each in outcome.faults]
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


@pytest.mark.parametrize("kind", [PairsByWorkers, Queued])
def test_a_nested_loader_is_left_alone(records, kind):
    outcome = _run(partial(kind, records), ReadError("*/05.rec"))

    assert "OSError" == outcome.exception.type
    assert "Errno 5" in outcome.exception.message
    assert outcome.recovery.complete


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
        for data, index in itertools.islice(self.base_dataloader, 3):
            yield data + 1, index


class DataLoaderDispatcher(Adapter):
    """Gives its ranks parts of the batches that rank 0 drew."""

    __module__ = "accelerate.data_loader"


def test_workers_behind_a_generator_are_ended_at_once(records):
    """How one died is known, too. The garbage collector would take 5 s for each that is left."""
    began = time.monotonic()
    loader = lambda: RaisesErrors(Records(records), batch_size=2, num_workers=2)  # noqa: E731
    outcome = run_trial(loader, WorkerKilled())

    assert [each.exitcode for each in outcome.deaths] == [-9]
    assert outcome.recovery.exception is None
    assert time.monotonic() - began < allowed(5)


def test_a_wrapper_is_what_the_loop_iterates(records):
    """What it leaves out is missing. What it makes of a batch does not count."""
    plain = run_trial(lambda: DataLoader(Records(records), batch_size=2, num_workers=2))
    outcome = run_trial(lambda: Adapter(Records(records), batch_size=2, num_workers=2))
    rows, plain_rows = ([each.digests for each in result.delivered] for result in (outcome, plain))

    assert rows == plain_rows[:3]


def test_batches_that_another_rank_drew_are_refused(records):
    with pytest.raises(UnusableDatasetError, match="dispatch_batches=False"):
        run_trial(lambda: DataLoaderDispatcher(Records(records), num_workers=2), ranks=2)


@pytest.mark.parametrize("fault", [ReadError("*/05.rec"), WorkerKilled(at=2)])
def test_workers_that_the_constructor_starts_meet_faults(records, fault):
    outcome = run_trial(partial(infinite_records, records), fault)

    assert outcome.fired
    assert outcome.epochs[0].exception is not None
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


def test_a_defect_behind_such_a_loader(records):
    make = lambda: infinite(LeavesOut, Records(records))  # noqa: E731
    (result,) = check_dataset(make, only="read-error", on_fail=None)
    assert "corrupted" == result.verdict
    assert "missing" in result.sentence
