"""Loaders that a dataset iterates itself: they are part of the dataset, and not under test."""

from __future__ import annotations

from functools import partial

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.datasets import Records
from support.epochs import epoch
from support.nested_loaders import (
    Episodes,
    InInit,
    Pairs,
    PairsByWorkers,
    PairsOfZeros,
    Queued,
)

pytestmark = pytest.mark.usefixtures("engine")
METHODS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]


def _run(make, *faults, method="fork", **options):
    how = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": method, **options}
    return run_trial(make, *faults, loader=how, epochs=1)


@pytest.mark.parametrize("method", METHODS)
def test_only_fetches_of_the_loader_under_test_count(records, method):
    """Each of two workers has two batches, and dies at its second one, whatever it read before."""
    outcome = _run(partial(Pairs, records), WorkerKilled(worker=1, at=2), method=method)

    assert [2, 2] == [each.fetches for each in outcome.workers]
    assert [-9] == [each.exitcode for each in outcome.deaths]
    assert [1] == [each.fired for each in outcome.faults]
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


@pytest.mark.parametrize("kind", [Pairs, PairsByWorkers, Episodes, Queued])
def test_a_nested_loader_is_left_alone(records, kind):
    """An error of it is the dataset's, and without a fault there is none."""
    outcome = _run(partial(kind, records), ReadError("*/05.rec"))

    assert "OSError" == outcome.exception.type
    assert "Errno 5" in outcome.exception.message
    assert outcome.recovery.complete


def test_one_in_a_worker_init_fn(records):
    """It reads before the first fetch of its worker."""
    outcome = _run(partial(Records, records), WorkerKilled(at=2), worker_init_fn=InInit())
    assert [2, 2] == [each.fetches for each in outcome.workers]


def test_one_without_workers(records):
    """The process that iterates the loader under test iterates the nested one, too."""
    options = {"num_workers": 0, "multiprocessing_context": None}
    outcome = _run(partial(Pairs, records), ReadError("*/09.rec", times=1), **options)

    assert [3] == [each.fetches for each in outcome.workers]
    assert ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)) == tuple(
        tuple(sorted(each)) for each in outcome.passes[0].drawn
    )
    assert outcome.recovery.complete


def test_one_under_inject(records):
    """The workers of the user's own loop iterate it."""
    with inject(ReadError("*/05.rec")) as injection:
        read = epoch(DataLoader(Pairs(records), batch_size=4, num_workers=2))
    assert "Errno 5" in read.text
    assert (1, 2) == (len(read.batches), len(injection.workers))


@pytest.mark.parametrize(
    "check", ["workers-agree", "growth", "abandoned-epoch", "worker-killed-last"]
)
def test_checks_that_make_iterators_again(records, check):
    """A dataset that makes a loader for each sample passes them."""
    (result,) = check_dataset(partial(Pairs, records), only=check, on_fail=None)
    assert result.passed, result.explanation


def test_what_a_nested_loader_swallows(records):
    """The check says that another sample came, and not that the dataset fails without a fault."""
    make = partial(PairsOfZeros, records)
    (result,) = check_dataset(make, only="read-error-first", on_fail=None)
    assert "corrupted" == result.verdict
    assert result.cause.startswith("gives a sample in place of one that cannot be read")
