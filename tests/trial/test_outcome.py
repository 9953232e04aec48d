"""What run_trial tells about a healthy dataset, under each fault and in each kind of loader."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from pytest_dataloader_faults import Outcome, Verdict, faults, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerExited,
    WorkerKilled,
)
from support.datasets import Records, RecordStream
from support.judging import judge_trial
from support.rows import rows
from support.specimens import BadSample
from support.waiting import allowed

BATCHES = [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
ONE_WORKER = {"num_workers": 1, "batch_size": 4}

# fault -> the first firing (call, file, fetch), what came before it, what the error says
FIRINGS = [
    (ReadError("*.rec", nth=3), ("read", "01.rec", 1), 0, "Input/output error"),
    (TruncatedFile("*/15.rec", keep=7), ("openat", "15.rec", 4), 3, "7 bytes, expected 64"),
    (DescriptorExhaustion(), ("openat", "00.rec", 1), 0, "Too many open files"),
    (WorkerKilled(at=3), ("signal 9", None, 3), 2, "exited unexpectedly"),
]
# The same faults with nothing to happen to.
DISARMED = [
    OpenError("*.jpg"),
    ReadError("*.jpg"),
    ReadError("*.rec", nth=1000),
    TruncatedFile("*.jpg"),
    TruncatedFile("*.rec", keep=64),
    ClosedDescriptor("*.jpg"),
    DescriptorExhaustion(headroom=500),
    DescriptorExhaustion(workers=(7,)),
    WorkerKilled(at=99),
    WorkerKilled(worker=7),
]


def _indices(epoch) -> list[tuple[int, ...] | None]:
    return [each.keys for each in epoch.delivered]


@pytest.mark.parametrize(("fault", "expected", "count", "phrase"), FIRINGS)
def test_facts_of_each_fault(records, reference, fault, expected, count, phrase):
    """Who met it, in which call, of which file, in which fetch; what came; what was raised.

    Once the fault is gone, the same dataset object gives every sample.
    """
    outcome = run_trial(lambda: Records(records), fault, loader=ONE_WORKER)
    (facts,) = outcome.faults
    firing = facts.firings[0]
    path = expected[1] and str(records / expected[1])
    assert (firing.call, firing.path, firing.fetch) == (expected[0], path, expected[2])
    assert (firing.fault, firing.worker) == (0, 0)
    assert firing.pid in {each.pid for each in outcome.workers}
    assert (facts.fault, facts.mentioned) == (fault, 1)
    assert facts.matched >= facts.fired >= 1
    assert _indices(outcome) == BATCHES[:count]
    assert outcome.exception is not None
    assert phrase in outcome.exception.text
    assert outcome.recovery is not None
    assert (outcome.recovery.complete, _indices(outcome.recovery)) == (True, BATCHES)
    recovered = [row for each in outcome.recovery.delivered for row in each.digests]
    assert recovered == [*reference.digests.values()]
    assert judge_trial(outcome, reference).verdict is Verdict.FAILED_CLEANLY
    _comes_back_from_json(outcome)


def _comes_back_from_json(outcome):
    """An outcome is plain data: JSON gives back an equal one."""
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_a_fault_with_nothing_to_happen_to_does_not_fire(records, reference):
    outcome = run_trial(lambda: Records(records), *DISARMED, loader=ONE_WORKER)
    assert [each.fault for each in outcome.faults] == DISARMED
    assert {(each.fired, each.mentioned, each.firings) for each in outcome.faults} == {(0, 0, ())}
    assert (outcome.exception, _indices(outcome)) == (None, BATCHES)
    judgement = judge_trial(outcome, reference)
    assert (judgement.verdict, judgement.passed) == (Verdict.NOT_EXERCISED, False)
    _comes_back_from_json(outcome)


def test_reproduce_is_a_line_that_does_so(records):
    def make_dataset():
        return Records(records)

    fault = ClosedDescriptor("*/04.rec")
    options = {"num_workers": 1, "batch_size": 2, "shuffle": True}
    outcome = run_trial(make_dataset, fault, loader=options, epochs=2, seed=3, deadline=20)
    names = {**vars(faults), "run_trial": run_trial, "make_dataset": make_dataset}
    again = eval(outcome.reproduce(), names)  # noqa: S307  # it is what is under test
    assert again.request == outcome.request
    assert (again.fired, again.delivered) == (outcome.fired, outcome.delivered)
    reference = take_reference(make_dataset, Settings(loader=options))
    assert judge_trial(again, reference).verdict is judge_trial(outcome, reference).verdict


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


def test_an_exception_that_the_caller_handles_is_no_part_of_a_trial(records):
    """Errors in the forked processes would have it for their context, and seem to tell of it."""
    reference = take_reference(lambda: BadSample(records))
    try:
        raise OSError(errno.EIO, "Input/output error", "00.rec")
    except OSError:
        outcome = run_trial(lambda: BadSample(records), ReadError("*/00.rec"))

    assert "Input/output error" not in outcome.exception.text
    assert judge_trial(outcome, reference).verdict is Verdict.FAILED_UNCLEARLY


class HasAHelper(Records):
    """Has a helper, which opens files of its own by and by, and ends it unless it is killed."""

    def __getitem__(self, index):
        code = "import time; time.sleep(0.5); open(__import__('os').devnull); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", code]) as helper:
            sample = super().__getitem__(index)
            helper.kill()
        return sample


def test_a_process_that_is_left_is_seen_whatever_it_does(records):
    """The supervisor goes on answering its calls; without it they would fail, and it would end."""
    fault = WorkerKilled(reading="*.rec")

    outcome = run_trial(lambda: HasAHelper(records), fault)

    commands = outcome.resources[1].processes.values()
    assert [sys.executable in command for command in commands] == [True] * len(commands)
    assert commands


def test_an_iterable_has_no_indices(records):
    reference = take_reference(lambda: RecordStream(records))
    outcome = run_trial(lambda: RecordStream(records))
    assert (outcome.kind, reference.kind) == ("iterable", "iterable")
    assert _indices(outcome) == [None] * 4
    rows = {row for each in outcome.delivered for row in each.digests}
    assert rows == {*reference.digests.values()}
    assert judge_trial(outcome, reference).verdict is Verdict.SURVIVED


def test_a_ready_loader_keeps_its_options(records):
    options = {"batch_sampler": BatchSampler(SequentialSampler(range(6)), 3, drop_last=False)}
    outcome = run_trial(lambda: DataLoader(Records(records), num_workers=1, **options))
    assert _indices(outcome) == [(0, 1, 2), (3, 4, 5)]
    assert len(outcome.workers) == 1


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


class UnprintableError(RuntimeError):
    """As one of soundfile's is, once torch has made it anew from a text."""

    def __str__(self):
        raise TypeError("an integer is required")


class Unprintable(Records):
    """Fails with it."""

    def __getitem__(self, index):
        raise UnprintableError("text")


def test_an_error_that_cannot_be_printed(records):
    outcome = run_trial(lambda: Unprintable(records))
    assert outcome.exception.type == "UnprintableError"
    assert outcome.exception.message == "its own __str__ raises TypeError"


# Every trial starts in 0.2 s; WorkerKilled is the one whose timing is the hardest to hold.
SCHEDULES = [
    pytest.param(ReadError("*.rec", nth=3), 3, Verdict.FAILED_CLEANLY, 4, id="read"),
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
