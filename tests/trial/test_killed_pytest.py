"""A trial ends with the process that asked for it, however that one ends."""

import os
import signal
import subprocess
import time

import psutil
import pytest
import torch.multiprocessing

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.system.proc import is_dead
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.inner import start_forked, start_python
from support.waiting import output_of, until

SCRIPT = """
import signal
import sys
from pathlib import Path
from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.faults import ReadError
from support.troublemakers import Announced

# A shell that starts the tests in the background has it ignored, which is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
records, announced, context = sys.argv[1:]
make_dataset = lambda: Announced(Path(records), Path(announced))
loader = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": context}
run_trial(make_dataset, ReadError("*.none"), loader=loader, deadline=600)
"""


@pytest.fixture(name="announced")
def _announced(tmp_path):
    folder = tmp_path / "announced"
    folder.mkdir()
    return folder


def _start(records, announced, context="fork") -> subprocess.Popen:
    """A process in the middle of a trial, whose two workers hang."""
    arguments = records, announced, context
    # A fork would use the process from which this one forks servers.
    is_served = context == "forkserver"
    runner = (
        start_python("-c", SCRIPT, *arguments) if is_served else start_forked(SCRIPT, *arguments)
    )
    assert until(lambda: len(os.listdir(announced)) == 2 or runner.poll() is not None, 60)
    assert runner.poll() is None, runner.stderr.read()
    return runner


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_process_that_is_ended_leaves_nothing(records, announced, left_behind, context):
    with _start(records, announced, context) as runner:
        below = psutil.Process(runner.pid).children(recursive=True)
        runner.kill()
    assert len(below) >= 5  # the warden, the loader's process, the supervisor, two workers
    assert until(lambda: all(is_dead(each.pid) for each in below))
    assert (runner.returncode, left_behind()) == (-signal.SIGKILL, [])


def test_control_c_ends_the_trial_before_it_is_raised(records, announced, left_behind):
    with _start(records, announced) as runner:
        runner.send_signal(signal.SIGINT)
        _, printed = output_of(runner, 30)
    assert (runner.returncode, left_behind()) == (-signal.SIGINT, [])
    assert printed.rstrip().endswith("KeyboardInterrupt")


class Sharing(Records):
    """Its workers hand over names of segments, and are gone before anybody opens them."""

    def __getitem__(self, index):
        torch.multiprocessing.set_sharing_strategy("file_system")
        return super().__getitem__(index)


def test_segments_of_workers_that_ended_are_removed(records, left_behind):
    outcome = run_trial(lambda: Sharing(records), ReadError("*/05.rec"), epochs=2)
    assert outcome.fired
    assert left_behind() == []


class HalfMadeSemaphore(Records):
    """Its workers hang in the midst of sem_open(3)."""

    def __getitem__(self, index):
        os.open("/dev/shm/sem.aB3xYz", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        time.sleep(600)


def test_a_semaphore_that_is_not_named_yet_is_removed(records, left_behind):
    outcome = run_trial(lambda: HalfMadeSemaphore(records), loader={"num_workers": 1}, deadline=2)
    assert outcome.timed_out
    assert left_behind() == []
