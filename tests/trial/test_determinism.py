"""The same trial, again and again: the same facts each time, and nothing left of any of them."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from pytest_dataloader_faults import Outcome, Verdict, run_trial
from pytest_dataloader_faults.faults import (
    Fault,
    ReadError,
    TruncatedFile,
    WorkerExited,
    WorkerKilled,
)
from support.datasets import Records
from support.judging import judge_trial
from support.rows import slow

# Every trial starts in 0.2 s; WorkerKilled is the one whose timing is the hardest to hold.
SCHEDULES = [
    pytest.param(ReadError("*.rec", nth=3), 3, Verdict.FAILED_CLEANLY, 4, id="read"),
    slow(ReadError("*.rec", nth=3), 200, Verdict.FAILED_CLEANLY, 4, id="200"),
    pytest.param(WorkerKilled(at=2), 3, Verdict.FAILED_CLEANLY, 1, id="killed"),
    slow(WorkerKilled(at=2), 200, Verdict.FAILED_CLEANLY, 1, id="killed, 200"),
    slow(TruncatedFile("*.rec"), 6, Verdict.FAILED_CLEANLY, 4, id="truncated"),
]


@pytest.mark.timeout(600)
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


@pytest.mark.parametrize("workers", [0, slow(1), 2])
def test_a_seed_decides_what_is_drawn(records, workers):
    loader = {"num_workers": workers, "batch_size": 4, "shuffle": True}
    orders = [
        [each.indices for each in run_trial(_made(records), loader=loader, seed=seed).delivered]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_a_worker_that_leaves_without_a_word_is_missed_soon(records):
    """Torch looks for such a worker every 5 s; what a trial then tells is the same."""
    outcomes = [run_trial(_made(records), WorkerExited(at=2)) for _ in range(2)]
    assert min(each.duration for each in outcomes) < 4
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
