"""What run_trial tells about a healthy dataset, under each fault and in each kind of loader."""

import hashlib
from collections import Counter

import pytest
import torch

from pytest_dataloader_faults import Outcome, Verdict, run_trial
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    ReadError,
    WorkerExited,
    WorkerKilled,
)
from support.datasets import Records
from support.judging import judge_trial
from support.rows import rows, slow
from support.waiting import allowed

BATCHES = [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
ONE_WORKER = {"num_workers": 1, "batch_size": 4}


def _indices(epoch) -> list[tuple[int, ...] | None]:
    return [each.keys for each in epoch.delivered]


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_counted(records, persistent):
    loader = {"num_workers": 2, "batch_size": 4, "persistent_workers": persistent}
    outcome = run_trial(lambda: Records(records), loader=loader, epochs=2)
    assert [_indices(each) for each in outcome.epochs] == [BATCHES, BATCHES]
    assert len(outcome.workers) == (2 if persistent else 4)
    assert [each.processes for each in outcome.resources] == [{}, {}]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_first_error_ends_the_epochs(records, persistent):
    loader = {**ONE_WORKER, "persistent_workers": persistent}
    fault = WorkerKilled(at=6) if persistent else ReadError("*.rec")
    outcome = run_trial(lambda: Records(records), fault, loader=loader, epochs=3)
    expected = [(True, 4), (False, 1)] if persistent else [(False, 0)]
    assert [(each.complete, len(each.delivered)) for each in outcome.epochs] == expected
    assert outcome.recovery is not None
    assert outcome.recovery.complete


@rows("fault", [WorkerKilled(), DescriptorExhaustion(), ClosedDescriptor("*")])
def test_what_needs_a_worker_is_refused_without_one(records, fault):
    with pytest.raises(InvalidArgumentError, match="num_workers=1 or more") as refused:
        run_trial(lambda: Records(records), fault, loader={"num_workers": 0})
    assert repr(fault) in str(refused.value)


def test_pytest_keeps_its_random_numbers(records):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run_trial(lambda: Records(records), seed=5)
    assert torch.equal(torch.rand(3), expected)


# Every trial starts in 0.2 s; WorkerKilled is the one whose timing is the hardest to hold.
SCHEDULES = [
    slow(ReadError("*.rec", nth=3), 3, Verdict.FAILED_CLEANLY, 4, id="read"),
    pytest.param(WorkerKilled(at=2), 3, Verdict.FAILED_CLEANLY, 1, id="killed"),
]


@pytest.mark.parametrize(("fault", "times", "verdict", "fired"), SCHEDULES)
def test_repeated_trials_are_all_alike(
    records, reference, left_behind, fault, times, verdict, fired
):
    bytes_before = _fingerprint(records)
    counts = Counter(_facts(_once(records, fault), reference) for _ in range(times))
    assert len(counts) == 1, counts
    (facts,) = counts
    assert (facts[0], len(facts[1])) == (verdict, fired)
    assert _fingerprint(records) == bytes_before
    assert left_behind() == []


def test_a_seed_decides_what_is_drawn(records):
    loader = {"num_workers": 2, "batch_size": 4, "shuffle": True}
    orders = [
        [each.keys for each in run_trial(_made(records), loader=loader, seed=seed).delivered]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_a_worker_that_leaves_without_a_word_is_missed_soon(records):
    """Torch looks for such a worker every 5 s; what a trial then tells is the same."""
    outcomes = [run_trial(_made(records), WorkerExited(at=2)) for _ in range(2)]
    assert min(each.duration for each in outcomes) < allowed(4)
    assert {len(each.delivered) for each in outcomes} == {2}
    assert all("exited unexpectedly" in each.exception.message for each in outcomes)


def _made(records):
    return lambda: Records(records)


def _once(records, fault: Fault) -> Outcome:
    return run_trial(_made(records), fault)


def _facts(outcome: Outcome, reference) -> tuple:
    """All that must not depend on timing; process ids do."""
    firings = frozenset(
        (each.fault, each.worker, each.call, each.path, each.fetch)
        for facts in outcome.faults
        for each in facts.firings
    )
    counters = tuple((each.matched, each.fired, each.mentioned) for each in outcome.faults)
    error = outcome.exception and outcome.exception.type
    recovery = outcome.recovery and outcome.recovery.delivered
    verdict = judge_trial(outcome, reference).verdict
    return verdict, firings, counters, outcome.delivered, error, recovery, outcome.phase


def _fingerprint(folder) -> dict[str, tuple[str, int]]:
    return {
        each.name: (hashlib.sha256(each.read_bytes()).hexdigest(), each.stat().st_mtime_ns)
        for each in sorted(folder.iterdir())
    }
