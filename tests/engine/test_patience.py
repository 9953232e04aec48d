"""A process that has to wait for a processor gets more time from those who wait for it."""

import os
import signal
import subprocess
import sys
import time

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.loader import client
from pytest_dataloader_faults._engine.system.processes import SIGN_OF_LIFE, Patience, has_ended
from pytest_dataloader_faults.exceptions import LostProcessError
from pytest_dataloader_faults.faults import ReadError
from support.datasets import COUNT, Records
from support.waiting import allowed, crowd_out

LIMIT = 0.15


def _seconds_until_over(*arguments):
    began = time.monotonic()
    patience = Patience(*arguments)
    while not patience.is_over():
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(name="start")
def _start():
    started = []

    def start(code):
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_one_that_waits_for_a_processor_does_not_use_it_up(start, busy_core):
    """It has a fifth of the core, so that it takes several times as long."""
    pid = start("while True: pass")
    os.sched_setaffinity(pid, {busy_core})

    assert _seconds_until_over(LIMIT, [pid]) > 2 * LIMIT


def test_one_that_does_nothing_uses_it_up(start, busy_core):
    pid = start("import time; time.sleep(600)")
    os.kill(pid, signal.SIGSTOP)

    for work in (1.0, SIGN_OF_LIFE):
        seconds = _seconds_until_over(LIMIT, [pid], work)
        assert LIMIT <= seconds < allowed(6 * LIMIT)


def test_work_is_a_sign_of_life_and_no_endless_one(start):
    pid = start("while True: pass")

    assert _seconds_until_over(LIMIT / 5, [pid], SIGN_OF_LIFE) > LIMIT


def test_an_end_is_waited_for(start, busy_core):
    """One that needs more than the limit to get there, since it has to wait for a processor."""
    work = "import time\nwhile time.process_time() < 0.15: pass"
    pid = start(work)
    os.sched_setaffinity(pid, {busy_core})

    assert has_ended(pid, LIMIT * 2)


def _limit_patience(injection, seconds, monkeypatch):
    """Wait that long for its supervisor, which has started: that alone may take longer."""
    monkeypatch.setattr(client, "_PATIENCE", seconds)
    connection = injection._client._connection
    connection._slice = seconds / 10
    connection.settimeout(seconds / 10)


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_works_is_not_lost(records, busy_core, monkeypatch):
    with inject(ReadError("*.rec", nth=99), require_fired=False) as injection:
        list(DataLoader(Records(records), num_workers=1))
        _limit_patience(injection, 0.3, monkeypatch)
        crowd_out(injection._client.pid, busy_core)

    assert sum(len(each.files) for each in injection.workers) == COUNT


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_is_blocked_is_lost(records, busy_core, monkeypatch):
    scope = inject(ReadError("*.rec", nth=99), require_fired=False)
    injection = scope.__enter__()
    _limit_patience(injection, LIMIT, monkeypatch)
    crowd_out(injection._client.pid, busy_core)
    os.kill(injection._client.pid, signal.SIGSTOP)

    with pytest.raises(LostProcessError, match="is stopped"):
        scope.__exit__(None, None, None)
