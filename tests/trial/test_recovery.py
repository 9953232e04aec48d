"""The pass after the faults: in a child without workers, or in new workers if it needs them."""

from __future__ import annotations

import os
import signal

import pytest
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from support.datasets import COUNT, Records, RecordStream
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")
LOADER = {"num_workers": 2, "batch_size": 4}


def _recover(make_dataset, fault):
    """The outcome of a trial, and the workers that made the pass after *fault*."""
    job = TrialJob(
        make_dataset=make_dataset,
        faults=(fault,),
        settings=Settings(loader=LOADER, engine="kernel"),
    )
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


@rows("kind", [Records, KeepsFile])
def test_a_pass_over_files_needs_no_workers(records, kind):
    """What the child opens does not look like a leak of the main process."""
    outcome, workers = _recover(lambda: kind(records), ReadError("*/03.rec"))

    assert workers == {None}
    assert sum(len(each.rows) for each in outcome.recovery.delivered) == COUNT
    assert outcome.judge(take_reference(lambda: kind(records))).verdict == "failed_cleanly"


@rows("kind", [OnlyInWorkers, DiesElsewhere])
def test_a_pass_that_fails_in_the_child_is_made_in_workers(records, kind):
    """Its samples count, and the first attempt leaves nothing in the outcome."""
    outcome, workers = _recover(lambda: kind(records), ReadError("*/03.rec"))

    assert workers == {0, 1}
    assert outcome.recovery.complete
    assert outcome.recovery.exception is None
    assert sum(len(each.rows) for each in outcome.recovery.delivered) == COUNT


def test_deaths_need_new_workers(records):
    _, workers = _recover(lambda: Records(records), WorkerKilled())

    assert workers == {0, 1}


def test_streams_need_workers(records):
    """Each worker has its own part."""
    _, workers = _recover(lambda: RecordStream(records), ReadError("*/03.rec"))

    assert workers == {0, 1}


def test_a_single_trial_has_new_workers(records):
    outcome = run_trial(lambda: Records(records), ReadError("*/03.rec"), loader=LOADER)

    assert {delivery.worker for delivery in outcome.recovery.delivered} == {0, 1}
