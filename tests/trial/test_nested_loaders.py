"""Loaders that a dataset iterates itself: they are part of the dataset, and not under test."""

from functools import partial

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.datasets import Records
from support.epochs import epoch
from support.nested_loaders import Episodes, InInit, Pairs, PairsByWorkers, PairsOfZeros, Queued
from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")
METHODS = ["fork", "forkserver", slow("spawn")]


def _run(make, *faults, method="fork", **options):
    loader = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": method, **options}
    return run_trial(make, *faults, loader=loader, epochs=1)


@pytest.mark.parametrize("method", METHODS)
def test_only_fetches_of_the_loader_under_test_count(records, method):
    outcome = _run(partial(Pairs, records), WorkerKilled(worker=1, at=2), method=method)

    assert [2, 2] == [each.fetches for each in outcome.workers]
    assert [-9] == [each.exitcode for each in outcome.deaths]
    assert [1] == [each.fired for each in outcome.faults]
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


@pytest.mark.parametrize("kind", [Pairs, PairsByWorkers, Episodes, Queued])
def test_a_nested_loader_is_left_alone(records, kind):
    outcome = _run(partial(kind, records), ReadError("*/05.rec"))

    assert "OSError" == outcome.exception.type
    assert "Errno 5" in outcome.exception.message
    assert outcome.recovery.complete


def test_one_in_a_worker_init_fn(records):
    outcome = _run(partial(Records, records), WorkerKilled(at=2), worker_init_fn=InInit())
    assert [2, 2] == [each.fetches for each in outcome.workers]


def test_one_without_workers(records):
    options = {"num_workers": 0, "multiprocessing_context": None}
    outcome = _run(partial(Pairs, records), ReadError("*/09.rec", times=1), **options)

    assert [3] == [each.fetches for each in outcome.workers]
    assert ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)) == tuple(
        tuple(sorted(batch)) for batch in outcome.epochs[0].drawn
    )
    assert outcome.recovery.complete


def test_one_under_inject(records):
    with inject(ReadError("*/05.rec")) as injection:
        read = epoch(DataLoader(Pairs(records), batch_size=4, num_workers=2))
    assert "Errno 5" in read.text
    assert (1, 2) == (len(read.batches), len(injection.workers))


@pytest.mark.parametrize(
    "check", [*("workers-agree", "abandoned-epoch", "worker-killed-last"), slow("resource-growth")]
)
def test_checks_that_make_iterators_again(records, check):
    (result,) = check_dataset(partial(Pairs, records), only=check, on_fail=None)
    assert result.passed, result.explanation


def test_what_a_nested_loader_swallows(records):
    make = partial(PairsOfZeros, records)
    (result,) = check_dataset(make, only="read-error", on_fail=None)
    assert "corrupted" == result.verdict
    assert result.cause.startswith("returns a substitute for an unreadable sample")
