"""What has to wait for a processor is slow, and neither hangs nor is lost."""

import functools
import os
import subprocess
import sys
import threading
import time

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.proc import seconds_without_cpu
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial import resources
from pytest_dataloader_faults._trial.process import harness
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.stages import DONE
from support import troublemakers
from support.children import in_a_process
from support.datasets import Records
from support.troublemakers import Trouble
from support.waiting import allowed, crowd_out, until

DEADLINE, BURNT = 2.0, 1.2
ONE_WORKER = {"num_workers": 1}


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


def test_the_wait_for_a_processor_does_not_count(records, busy_core):
    outcome = _try(records, busy_core, _burn)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > DEADLINE


def test_it_is_the_wait_that_is_added(records, busy_core, monkeypatch):
    monkeypatch.setattr(proc, "seconds_without_cpu", lambda _pid: 0.0)

    assert _try(records, busy_core, _burn).timed_out


def test_a_hang_waits_for_no_processor(records, busy_core):
    outcome = _try(records, busy_core, threading.Event().wait)

    assert outcome.timed_out
    assert outcome.duration < allowed(2 * DEADLINE)


def test_a_process_that_is_gone_waits_no_more(busy_core):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        os.sched_setaffinity(busy.pid, {busy_core})
        assert until(lambda: seconds_without_cpu(busy.pid) > 0)
        busy.kill()
    assert seconds_without_cpu(busy.pid) == 0.0


def _look_for_one_that_ends_slowly(core):
    child = fork()
    if not child:
        os.sched_setaffinity(0, {core})
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        os._exit(0)
    assert resources.processes(None, 0.6) == {}
    os.waitpid(child, 0)


def test_a_process_that_ends_slowly_is_not_left(busy_core):
    assert in_a_process(functools.partial(_look_for_one_that_ends_slowly, busy_core)) == ""


def _lose_the_loader(core):
    crowd_out(troublemakers.supervisor().pid, core)
    os._exit(7)


def test_a_supervisor_that_reports_slowly_is_waited_for(records, busy_core, monkeypatch):
    monkeypatch.setattr(harness, "_PATIENCE", 0.02)
    trouble = functools.partial(_lose_the_loader, busy_core)
    loader = {"num_workers": 0}
    outcome = run_trial(
        lambda: Trouble(records, trouble, "loader"), ReadError("*.none"), loader=loader
    )

    assert outcome.died == "exit status 7"
