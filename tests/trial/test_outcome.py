"""What run_trial tells about a healthy dataset, under each fault and in each kind of loader."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from pytest_dataloader_faults import Outcome, Verdict, faults, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.samples.fingerprint import digest_of_rows
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes.stages import Stage
from support.datasets import Records, RecordStream
from support.fingerprints import digest
from support.judging import judge_trial
from support.loaders import Counted, Fields, Ragged, concatenate
from support.rows import slow
from support.specimens import BadSample

BATCHES = [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
ONE_WORKER = {"num_workers": 1, "batch_size": 4}

# fault -> the first firing (call, file, fetch), what came before it, what the error says
FIRINGS = [
    (OpenError("*/05.rec", errno=errno.EACCES), ("openat", "05.rec", 2), 1, "Permission denied"),
    (ReadError("*.rec", nth=3), ("read", "01.rec", 1), 0, "Input/output error"),
    (ReadError("*/09.rec"), ("read", "09.rec", 3), 2, "Input/output error"),
    (TruncatedFile("*/15.rec", keep=7), ("openat", "15.rec", 4), 3, "7 bytes, expected 64"),
    (ClosedDescriptor("*/04.rec"), ("openat", "04.rec", 2), 1, "Bad file descriptor"),
    (DescriptorExhaustion(), ("openat", "00.rec", 1), 0, "Too many open files"),
    (WorkerKilled(at=3), ("signal 9", None, 3), 2, "exited unexpectedly"),
    slow(
        WorkerKilled(signal=signal.SIGSEGV, at=2),
        ("signal 11", None, 2),
        1,
        "killed by signal: Segmentation fault",
    ),
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
    return [each.indices for each in epoch.delivered]


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
    rows = [row for each in outcome.recovery.delivered for row in each.rows or ()]
    assert rows == [row for _, row in reference.samples]
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


def test_a_transient_error_is_counted_apart(records):
    fault = ReadError("*.rec", nth=2, times=2, workers=(1,))
    outcome = run_trial(lambda: Records(records), fault)
    (facts,) = outcome.faults
    assert {each.worker for each in facts.firings} == {1}
    assert facts.fired == 2
    assert facts.matched > facts.fired


def test_rows_are_the_digests_of_batches_of_one(records):
    outcome = run_trial(lambda: Records(records), loader=ONE_WORKER)
    digests = [each.digest for each in outcome.delivered]
    assert digests == [digest_of_rows(each.rows) for each in outcome.delivered]
    assert len(set(digests)) == len(digests)
    alone = [digest(batch) for batch in DataLoader(Records(records), batch_size=1)]
    assert [row for each in outcome.delivered for row in each.rows or ()] == alone


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


@pytest.mark.parametrize("context", ["fork", "forkserver", slow("spawn")])
def test_every_start_method_is_armed(records, context):
    loader = {"num_workers": 1, "batch_size": 4, "multiprocessing_context": context}
    outcome = run_trial(lambda: Records(records), ReadError("*/05.rec"), loader=loader)
    assert (outcome.fired, _indices(outcome)) == (1, BATCHES[:1])
    assert outcome.recovery is not None
    assert outcome.recovery.complete
    assert {each.stage: each.processes for each in outcome.resources} == {
        Stage.START: {},
        Stage.EPOCH: {},
        Stage.RECOVERY: {},
    }


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
    rows = {row for each in outcome.delivered for row in each.rows or ()}
    assert rows == {row for _, row in reference.samples}
    assert judge_trial(outcome, reference).verdict is Verdict.SURVIVED


def test_a_ready_loader_keeps_its_options(records):
    options = {"batch_sampler": BatchSampler(SequentialSampler(range(6)), 3, drop_last=False)}
    outcome = run_trial(lambda: DataLoader(Records(records), num_workers=1, **options))
    assert _indices(outcome) == [(0, 1, 2), (3, 4, 5)]
    assert len(outcome.workers) == 1


SHAPES = [
    (Ragged, {"batch_size": 4, "collate_fn": concatenate}, 4, False),
    (Fields, {"batch_size": 5}, 4, True),
    (Records, {"batch_size": None}, 16, True),
    (RecordStream, {"batch_size": None}, 16, True),
    (RecordStream, {"batch_size": 3}, 6, True),
    (Records, {"batch_size": 5, "drop_last": True, "prefetch_factor": 1}, 3, True),
]


@pytest.mark.parametrize(("kind", "options", "batches", "has_rows"), SHAPES)
def test_every_shape_of_batch_is_judged(records, kind, options, batches, has_rows):
    loader = {"num_workers": 2, **options}
    reference = take_reference(lambda: kind(records), Settings(loader=loader))
    outcome = run_trial(lambda: kind(records), loader=loader)
    assert len(outcome.delivered) == batches
    assert [each.rows is not None for each in outcome.delivered] == [has_rows] * batches
    assert judge_trial(outcome, reference).verdict is Verdict.SURVIVED


def test_the_loaders_process_can_be_armed_itself(records):
    loader = {"num_workers": 0, "batch_size": 4}
    outcome = run_trial(lambda: Counted(records), ReadError("*/05.rec"), loader=loader)
    assert (outcome.fired, _indices(outcome)) == (1, BATCHES[:1])
    assert "Input/output error" in str(outcome.exception)
    reference = take_reference(lambda: Counted(records), Settings(loader=loader))
    assert judge_trial(outcome, reference).verdict is Verdict.FAILED_CLEANLY


@pytest.mark.parametrize("fault", [WorkerKilled(), DescriptorExhaustion(), ClosedDescriptor("*")])
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
