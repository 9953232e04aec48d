"""Time in which the trial was stopped from outside is no time of the dataset."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.supervisor.server import NAME
from pytest_dataloader_faults._trial.journal import HarnessTime, LoaderTime, PhaseStarted
from pytest_dataloader_faults._trial.process.deadline import (
    HARNESS,
    HARNESS_SECONDS,
    LOADER,
    SLICE,
    Pauses,
    deadline_after,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.stages import DONE
from support.datasets import Records
from support.facts import EPOCH_1
from support.inner import start_forked
from support.waiting import allowed, output_of, until

DEADLINE = 3.0
STOPPED = DEADLINE + 2
BY_SECOND = 60.0


def _looks(*looks):
    pauses = Pauses(0.0)
    for now, stopped in looks:
        pauses.look(now, stopped=stopped)
    return pauses.found


@pytest.mark.parametrize(
    ("looks", "pauses"),
    [
        ([(1.0, False), (2.1, False)], []),
        ([(1.0, False), (9.0, False), (10.0, False)], [(1.0 + SLICE, 9.0)]),
        ([(1.0, True), (2.0, True), (3.0, False)], [(1.0, 3.0)]),
        ([(1.0, True), (2.0, True)], []),
        ([(1.0, True), (2.0, False), (3.0, True), (4.0, False)], [(1.0, 2.0), (3.0, 4.0)]),
        ([(8.0, True), (8.5, False)], [(SLICE, 8.0), (8.0, 8.5)]),
    ],
)
def test_a_pause_is_what_the_warden_did_not_see(looks, pauses):
    assert _looks(*looks) == pauses


_NEW = PhaseStarted(EPOCH_1, 101)


@pytest.mark.parametrize(
    ("events", "pauses", "expected"),
    [
        ([], [(103, 108)], (LOADER, 115)),
        ([_NEW], [(90, 100.5)], (LOADER, 111)),
        ([_NEW], [(100, 106)], (LOADER, 116)),
        ([_NEW], [(103, 106), (105, 108)], (LOADER, 116)),
        ([_NEW], [(104, 105), (107, 109)], (LOADER, 114)),
        ([_NEW, HarnessTime(105)], [(103, 104)], (HARNESS, 105 + HARNESS_SECONDS)),
        ([_NEW, HarnessTime(105), LoaderTime(106)], [(102, 104)], (LOADER, 114)),
        ([_NEW, HarnessTime(105)], [(104, 107)], (HARNESS, 107 + HARNESS_SECONDS)),
    ],
)
def test_a_pause_is_not_counted(events, pauses, expected):
    assert deadline_after(events, began=100, deadline=10, pauses=pauses) == expected


class WaitsToBeLetOn(Records):
    """The worker announces its first sample, and waits until a byte comes."""

    def __init__(self, folder, mark, descriptor):
        super().__init__(folder)
        self.mark, self.descriptor = mark, descriptor

    def __getitem__(self, index):
        if not self.mark.exists():
            self.mark.touch()
            os.read(self.descriptor, 1)
        return super().__getitem__(index)


_SCRIPT = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pytest_dataloader_faults import run_trial
from test_pauses import DEADLINE, ONE_WORKER, WaitsToBeLetOn

records, mark, descriptor = sys.argv[1:]
make = lambda: WaitsToBeLetOn(Path(records), Path(mark), int(descriptor))
outcome = run_trial(make, loader=ONE_WORKER, deadline=DEADLINE)
print(outcome.timed_out, outcome.phase, len(outcome.delivered))
"""
ONE_WORKER = {"num_workers": 1, "batch_size": 4}


def test_a_session_that_is_stopped_may_go_on(records, tmp_path):
    mark, (reading, writing) = tmp_path / "mark", os.pipe()
    options = {"stderr": None, "pass_fds": (reading,)}
    runner = start_forked(_SCRIPT, records, mark, reading, **options)
    with runner, os.fdopen(writing, "wb", buffering=0) as let_on:
        os.close(reading)
        assert until(mark.exists, BY_SECOND)
        top = psutil.Process(runner.pid)
        session = [top, *top.children(recursive=True)]
        _stop_for_a_while(session)
        let_on.write(b".")
        assert output_of(runner, BY_SECOND)[0].split() == ["False", "done", "4"]


def _stop_for_a_while(processes):
    for process in processes:
        process.suspend()
    assert until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in processes))
    time.sleep(STOPPED)  # The clock of the trial is what is tested.
    for process in reversed(processes):
        process.resume()


def test_a_supervisor_that_was_stopped_takes_no_time_of_the_loader(records, tmp_path):
    """The loader has all its time but that; here it uses more than what would be left."""
    mark, (reading, writing) = tmp_path / "mark", os.pipe()
    deadline = STOPPED + 1

    def meddle():
        assert until(mark.exists, BY_SECOND)
        below = psutil.Process().children(recursive=True)
        _stop_for_a_while([next(each for each in below if each.name() == NAME)])
        time.sleep(2)  # Now the whole deadline is over, but not the loader's own time.
        os.write(writing, b".")

    meddler = threading.Thread(target=meddle)
    meddler.start()
    outcome = run_trial(
        lambda: WaitsToBeLetOn(records, mark, reading),
        ReadError("*.none"),
        loader=ONE_WORKER,
        deadline=deadline,
    )
    meddler.join()
    for fd in (reading, writing):
        os.close(fd)
    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > deadline


class KeepsTheLock(Records):
    """Takes a lock of all workers, and does not give it back where a read fails."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index):
        self.lock.acquire()
        sample = super().__getitem__(index)
        self.lock.release()
        return sample


def test_the_deadline_holds_after_a_worker_that_does_not_become_idle(records):
    """The loader has what it had left, and not the time of the harness, which waits before that.

    The deadline is below the 5 s that torch waits for each worker to end, so the epoch does not.
    """
    fault = ReadError("*/00.rec")
    outcome = run_trial(lambda: KeepsTheLock(records), fault, deadline=2.0)

    assert (outcome.timed_out, outcome.exception.type) == (True, "OSError")
    assert outcome.duration < allowed(HARNESS_SECONDS)
