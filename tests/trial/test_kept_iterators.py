"""Loaders that keep one iterator for all epochs, and draw from a sampler without an end."""

from functools import partial

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.datasets import Records
from support.infinite_loaders import (
    CountsHalf,
    Eager,
    EndsEarly,
    InClosure,
    InGenerator,
    Lazy,
    LeavesOut,
    Scaling,
    ScalingLeavingOut,
    infinite,
    infinite_many,
    infinite_records,
    infinite_swallowed,
)
from support.rows import slow
from support.specimens import ZerosOnError

pytestmark = pytest.mark.usefixtures("engine")
HEALTHY = """
    workers-agree two-epochs abandoned-epoch recovers-after-read-error worker-killed-last
    resource-growth
""".split()


def _check(make, *names):
    return check_dataset(make, only=names, on_fail=None)


@pytest.mark.parametrize("kind", [Lazy, Eager])
def test_what_is_drawn_in_advance_is_no_loss(records, kind):
    outcome = run_trial(lambda: infinite(kind, Records(records)), epochs=3)

    assert [4, 4, 4] == [len(each.delivered) for each in outcome.epochs]
    assert [4, 4, 4] == [len(each.drawn) for each in outcome.epochs]
    for epoch in outcome.epochs:
        assert {*range(16)} == {index for each in epoch.delivered for index in each.indices}
    assert 2 == len({each.pid for each in outcome.workers})


@pytest.mark.parametrize("fault", [ReadError("*/05.rec"), WorkerKilled(at=2)])
def test_workers_that_the_constructor_starts_meet_faults(records, fault):
    outcome = run_trial(partial(infinite_records, records), fault)

    assert outcome.fired
    assert outcome.epochs[0].exception is not None
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


def test_a_loader_that_has_run_before(records):
    """The workers of pytest's process are left to it, and it goes on."""
    loader = infinite_records(records)
    indices_before = {int(index) for _, indices in loader for index in indices}
    outcome = run_trial(lambda: loader, ReadError("*/05.rec"))

    assert outcome.fired
    assert (
        {*range(16)} == indices_before == {int(index) for _, indices in loader for index in indices}
    )


def test_the_checks_pass(records):
    results = _check(partial(infinite_records, records), *HEALTHY)
    assert [] == [each.explanation for each in results if each.failed]
    assert all(each.applies for each in results)


@pytest.mark.parametrize(
    ("kind", "verdict"), [slow(Scaling, "failed_cleanly"), (ScalingLeavingOut, "corrupted")]
)
def test_a_loader_that_makes_other_numbers_of_a_batch(records, kind, verdict):
    make = partial(infinite, kind, Records(records))
    agree, failed = _check(make, "workers-agree", "read-error")
    assert ["survived", verdict] == [agree.verdict, failed.verdict], agree.explanation


@pytest.mark.parametrize("kind", [InClosure, InGenerator])
def test_iterators_that_are_in_no_attribute(records, kind):
    make = partial(infinite, kind, Records(records))
    outcome = run_trial(make, epochs=3)
    assert [4, 4, 4] == [len(each.delivered) for each in outcome.epochs]
    assert all(each.complete for each in outcome.epochs)
    assert 2 == len({each.pid for each in outcome.workers})


def test_few_samples_of_many():
    (result,) = _check(infinite_many, "workers-agree")
    assert "survived" == result.verdict
    assert 64 == sum(len(each.indices) for each in result.outcome.delivered)


@pytest.mark.parametrize(
    ("make", "check", "phrase"),
    [
        slow(infinite_swallowed, "read-error", "all zeros"),
        (lambda folder: infinite(InClosure, ZerosOnError(folder)), "read-error", "all zeros"),
        (lambda folder: infinite(LeavesOut, Records(folder)), "read-error", "missing"),
        (lambda folder: infinite(EndsEarly, Records(folder)), "workers-agree", "missing"),
        slow(lambda folder: infinite(CountsHalf, Records(folder)), *("workers-agree", "missing")),
    ],
    ids=["zeros", "in a closure", "a batch with an error", "the last batch", "half of the batches"],
)
def test_a_defect_behind_such_a_loader(records, make, check, phrase):
    (result,) = _check(partial(make, records), check)
    assert "corrupted" == result.verdict
    assert phrase in result.sentence


def test_a_constructor_that_uses_a_loader(records):
    def make():
        dataset = Records(records)
        dataset.mean = sum(data.float().mean() for data, _ in DataLoader(dataset)) / len(dataset)
        return dataset

    assert [] == [each.explanation for each in _check(make, "workers-agree") if each.failed]
