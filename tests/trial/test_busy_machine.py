"""A loader that has to wait for a processor is slow, and does not hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.proc import seconds_without_cpu
from pytest_dataloader_faults.outcomes.stages import DONE
from support.datasets import Records
from support.waiting import until

DEADLINE, BURNT = 2.0, 1.2
ONE_WORKER = {"num_workers": 1}


@pytest.fixture(name="core")
def _core():
    """A core for which four processes compete."""
    core = min(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(4)]
    yield core
    for each in busy:
        each.kill()
        each.wait()


class OnOneCore(Records):
    """Does *action* with its first sample, on one core."""

    def __init__(self, folder, core, action):
        super().__init__(folder)
        self.core, self.action = core, action

    def __getitem__(self, index):
        if not index:
            os.sched_setaffinity(0, {self.core})
            self.action()
        return super().__getitem__(index)


def _burn():
    end = time.process_time() + BURNT
    while time.process_time() < end:
        pass


def _try(records, core, action):
    return run_trial(lambda: OnOneCore(records, core, action), loader=ONE_WORKER, deadline=DEADLINE)


def test_the_wait_for_a_processor_does_not_count(records, core):
    """The loader computes for less than its deadline, and takes longer."""
    outcome = _try(records, core, _burn)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > DEADLINE


def test_it_is_the_wait_that_is_added(records, core, monkeypatch):
    """Where the kernel does not say it, the loader is called hung."""
    monkeypatch.setattr(proc, "seconds_without_cpu", lambda _pid: 0.0)

    assert _try(records, core, _burn).timed_out


def test_a_hang_waits_for_no_processor(records, core):
    """It is ended at its deadline, however busy the machine is."""
    outcome = _try(records, core, threading.Event().wait)

    assert outcome.timed_out
    assert outcome.duration < 2 * DEADLINE


def test_a_process_that_is_gone_waits_no_more(core):
    """Nor is there an error."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        os.sched_setaffinity(busy.pid, {core})
        assert until(lambda: seconds_without_cpu(busy.pid) > 0)
        busy.kill()
    assert seconds_without_cpu(busy.pid) == 0.0
