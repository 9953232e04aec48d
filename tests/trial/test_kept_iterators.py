"""Loaders that keep one iterator for all epochs, and draw from a sampler without an end."""

from __future__ import annotations

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
    Lazy,
    LeavesOut,
    infinite,
    over_many,
    over_records,
    over_swallowed,
)

pytestmark = pytest.mark.usefixtures("engine")
HEALTHY = """
    workers-agree two-epochs abandoned-epoch read-error-next-epoch worker-killed-last growth
""".split()


def _check(make, *names):
    return check_dataset(make, only=names, on_fail=None)


@pytest.mark.parametrize("kind", [Lazy, Eager])
def test_what_is_drawn_in_advance_is_no_loss(records, kind):
    """Each epoch draws some batches of the next one, and gives what it says it has."""
    outcome = run_trial(lambda: infinite(kind, Records(records)), epochs=3)

    assert [4, 4, 4] == [len(each.delivered) for each in outcome.passes]
    assert [4, 4, 4] == [len(each.drawn) for each in outcome.passes]
    for one in outcome.passes:
        assert {*range(16)} == {index for each in one.delivered for index in each.indices}
    assert 2 == len({each.pid for each in outcome.workers})


@pytest.mark.parametrize("fault", [ReadError("*/05.rec"), WorkerKilled(at=2)])
def test_workers_that_the_constructor_starts_meet_faults(records, fault):
    """They start with the first epoch, and others make the recovery."""
    outcome = run_trial(partial(over_records, records), fault)

    assert outcome.fired
    assert outcome.passes[0].exception is not None
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None


def test_a_loader_that_has_run_before(records):
    """The workers of pytest's process are left to it, and it goes on."""
    loader = over_records(records)
    before = {int(index) for _, indices in loader for index in indices}
    outcome = run_trial(lambda: loader, ReadError("*/05.rec"))

    assert outcome.fired
    assert {*range(16)} == before == {int(index) for _, indices in loader for index in indices}


def test_the_checks_pass(records):
    """A healthy dataset behind such a loader passes them."""
    results = _check(partial(over_records, records), *HEALTHY)
    assert [] == [each.explanation for each in results if each.failed]
    assert all(each.applies for each in results)


def test_few_samples_of_many():
    """The epoch is as short as that of any other loader."""
    (result,) = _check(over_many, "workers-agree")
    assert "survived" == result.verdict
    assert 64 == sum(len(each.indices) for each in result.outcome.delivered)


@pytest.mark.parametrize(
    ("make", "check", "told"),
    [
        (over_swallowed, "read-error-first", "all zeros"),
        (lambda folder: infinite(LeavesOut, Records(folder)), "read-error-first", "missing"),
        (lambda folder: infinite(EndsEarly, Records(folder)), "workers-agree", "missing"),
        (lambda folder: infinite(CountsHalf, Records(folder)), "workers-agree", "missing"),
    ],
    ids=["zeros", "a batch with an error", "the last batch", "half of the batches"],
)
def test_a_defect_behind_such_a_loader(records, make, check, told):
    """What is really lost, or made up, fails."""
    (result,) = _check(partial(make, records), check)
    assert "corrupted" == result.verdict
    assert told in result.sentence


def test_a_constructor_that_uses_a_loader(records):
    """As for statistics, before there is a dataset to try."""

    def make():
        dataset = Records(records)
        dataset.mean = sum(data.float().mean() for data, _ in DataLoader(dataset)) / len(dataset)
        return dataset

    assert [] == [each.explanation for each in _check(make, "workers-agree") if each.failed]
