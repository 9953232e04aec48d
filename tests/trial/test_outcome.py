"""What run_trial tells under each fault and in each kind of loader, and the pass after it."""

import os
import signal
from functools import partial

import pytest
import torch
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    ReadError,
    WorkerExited,
    WorkerKilled,
)
from support.datasets import COUNT, Records, RecordStream
from support.judging import judge_trial
from support.rows import rows
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")

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


LOADER = {"num_workers": 2, "batch_size": 4}


def _recover(make_dataset, fault, loader=LOADER):
    """The outcome of a trial, and the workers that made the pass after *fault*."""
    settings = Settings(loader=loader)
    job = Job(make_dataset=make_dataset, faults=(fault,), settings=settings)
    outcome = run_trial_job(job)
    assert outcome.recovery is not None
    return outcome, {delivery.worker for delivery in outcome.recovery.delivered}


class OnlyInWorkers(Records):
    def __getitem__(self, index):
        if get_worker_info() is None:
            raise RuntimeError("not in a worker")
        return super().__getitem__(index)


class DiesElsewhere(Records):
    def __getitem__(self, index):
        if get_worker_info() is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class KeepsFile(Records):
    file = None

    def __getitem__(self, index):
        self.file = self.file or open(self.paths[0], "rb")
        return super().__getitem__(index)


class RaisesAgain(Records):
    """After an error, the next sample raises one as well: a *mark* is left until then."""

    def __init__(self, folder, mark):
        super().__init__(folder)
        self.mark = mark

    def __getitem__(self, index):
        if self.mark.exists():
            self.mark.unlink(missing_ok=True)
            raise RuntimeError("an earlier sample was unreadable")
        try:
            return super().__getitem__(index)
        except OSError:
            self.mark.touch()
            raise


READ_ERROR = ReadError("*/03.rec")


@rows("kind", [Records, KeepsFile])
def test_a_pass_over_files_needs_no_workers(records, kind):
    """What the child opens does not look like a leak of the main process."""
    outcome, workers = _recover(lambda: kind(records), READ_ERROR)

    assert workers == {None}
    assert sum(len(each.samples) for each in outcome.recovery.delivered) == COUNT
    assert judge_trial(outcome, take_reference(lambda: kind(records))).verdict == "failed_cleanly"


@rows(
    ("kind", "fault"),
    [
        pytest.param(OnlyInWorkers, READ_ERROR, id="the pass fails in the child"),
        pytest.param(DiesElsewhere, READ_ERROR, id="the child dies of it"),
        pytest.param(Records, WorkerKilled(), id="a worker has died"),
        pytest.param(RecordStream, READ_ERROR, id="each worker has its own part of a stream"),
    ],
)
def test_any_other_pass_is_made_in_new_workers(records, kind, fault):
    """The trial is run again, and the first one leaves nothing in the outcome."""
    outcome, workers = _recover(lambda: kind(records), fault)

    assert workers == {0, 1}
    assert (outcome.recovery.complete, outcome.recovery.exception) == (True, None)
    assert sum(len(each.samples) for each in outcome.recovery.delivered) == COUNT


def test_workers_do_not_profit_from_an_error_in_the_child(records, tmp_path):
    """A second pass of the same trial would succeed. The fault is in the last sample."""
    make_dataset = partial(RaisesAgain, records, tmp_path / "mark")
    last = ReadError(f"*/{COUNT - 1:02}.rec")
    outcome, _ = _recover(make_dataset, last, {**LOADER, "num_workers": 1})

    assert judge_trial(outcome, take_reference(make_dataset)).verdict == "poisoned"


def test_a_single_trial_has_new_workers(records):
    outcome = run_trial(lambda: Records(records), ReadError("*/03.rec"), loader=LOADER)

    assert {delivery.worker for delivery in outcome.recovery.delivered} == {0, 1}
