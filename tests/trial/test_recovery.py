"""The pass after the faults: in a child without workers, or in new workers if it needs them."""

import os
import signal
from functools import partial

import pytest
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.datasets import COUNT, Records, RecordStream
from support.judging import judge_trial
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")
LOADER = {"num_workers": 2, "batch_size": 4}


def _recover(make_dataset, fault, loader=LOADER):
    """The outcome of a trial, and the workers that made the pass after *fault*."""
    settings = Settings(loader=loader)
    job = Job(make_dataset=make_dataset, faults=(fault,), settings=settings)
    outcome = run_trial_job(job)
    assert outcome.recovery is not None
    return outcome, {delivery.worker for delivery in outcome.recovery.delivered}


class OnlyInWorkers(Records):
    """Another process cannot read it."""

    def __getitem__(self, index):
        if get_worker_info() is None:
            raise RuntimeError("not in a worker")
        return super().__getitem__(index)


class DiesElsewhere(Records):
    """Another process does not survive it."""

    def __getitem__(self, index):
        if get_worker_info() is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class KeepsFile(Records):
    """Opens a file once per process, and keeps it open."""

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
