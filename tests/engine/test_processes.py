"""What /proc shows of processes, how long they are waited for, and the stacks that they write."""

import os
import signal
import subprocess
import sys
import time

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine import client
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.proc import nearest
from pytest_dataloader_faults._engine.system.processes import (
    SIGN_OF_LIFE,
    Patience,
    StackRequest,
    fork,
    has_ended,
    write_on_signal,
)
from pytest_dataloader_faults.exceptions import LostProcessError
from pytest_dataloader_faults.faults import ReadError
from support.children import in_its_own_process
from support.datasets import COUNT, Records
from support.waiting import allowed, crowd_out, until


def test_who_is_below():
    ours, theirs = os.pipe()
    child = fork()
    if not child:
        grandchild = fork()
        if grandchild:
            os.write(theirs, grandchild.to_bytes(4, "little"))
        signal.pause()
    grandchild = int.from_bytes(os.read(ours, 4), "little")
    own_pid = os.getpid()
    try:
        below_here = [
            nearest(pid, {own_pid}) == own_pid
            for pid in (own_pid, child, grandchild, os.getppid(), 1, 0)
        ]
        below_child = [nearest(pid, {child}) == child for pid in (own_pid, child, grandchild)]
    finally:
        for pid in (grandchild, child):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
    assert [True, True, True, False, False, False] == below_here
    assert [False, True, True] == below_child
    assert nearest(child, {own_pid}) is None


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


def test_one_that_does_nothing_uses_it_up(start, busy_core):
    pid = start("import time; time.sleep(600)")
    os.kill(pid, signal.SIGSTOP)

    for work in (1.0, SIGN_OF_LIFE):
        seconds = _seconds_until_over(LIMIT, [pid], work)
        assert LIMIT <= seconds < allowed(6 * LIMIT)


def test_an_end_is_waited_for(start, busy_core):
    """One that needs more than the limit to get there, since it has to wait for a processor."""
    work = "import time\nwhile time.process_time() < 0.15: pass"
    pid = start(work)
    os.sched_setaffinity(pid, {busy_core})

    assert has_ended(pid, LIMIT * 2)


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_works_is_not_lost(records, busy_core, monkeypatch):
    with inject(ReadError("*.rec", nth=99), require_fired=False) as injection:
        list(DataLoader(Records(records), num_workers=1))
        monkeypatch.setattr(client, "_PATIENCE", 0.3)
        crowd_out(injection._client.pid, busy_core)

    assert sum(len(each.files) for each in injection.workers) == COUNT


@pytest.mark.usefixtures("engine")
def test_a_supervisor_that_is_blocked_is_lost(records, busy_core, monkeypatch):
    scope = inject(ReadError("*.rec", nth=99), require_fired=False)
    injection = scope.__enter__()
    monkeypatch.setattr(client, "_PATIENCE", LIMIT)
    crowd_out(injection._client.pid, busy_core)
    os.kill(injection._client.pid, signal.SIGSTOP)

    with pytest.raises(LostProcessError, match="is stopped"):
        scope.__exit__(None, None, None)


def _pause_in_odd_call(depth: int) -> None:
    _pause_in_odd_call(depth - 1) if depth else _pause()


def _pause_in_even_call(depth: int) -> None:
    _pause_in_even_call(depth - 1) if depth else _pause()


def _pause() -> None:
    while True:  # A signal ends pause(2).
        signal.pause()


PAUSES = (_pause_in_even_call, _pause_in_odd_call)


def _fork(action, *arguments):
    pid = os.fork()
    if not pid:
        try:
            action(*arguments)
        finally:
            os._exit(0)
    return pid


def _request_stacks(pid):
    """A request to a process that may not have come to write its stacks yet, or to its pause."""
    requests = []

    def is_requested():
        if proc.state_of(pid) != "S":
            return False
        try:
            requests.append(StackRequest(pid))
        except LookupError:
            return False
        return True

    assert until(is_requested)
    return requests[0]


@in_its_own_process()
def test_stacks_of_processes_that_are_dumped_at_once_are_apart():
    write_on_signal()
    pids = [_fork(PAUSES[number % 2], 60) for number in range(6)]
    try:
        for _ in range(5):
            requests = [_request_stacks(pid) for pid in pids]
            for number, request in enumerate(requests):
                text = request.text()
                pause_name, other_name = (
                    PAUSES[number % 2].__name__,
                    PAUSES[1 - number % 2].__name__,
                )
                assert text.count(f"in {pause_name}") >= 60, text
                assert other_name not in text
                assert text.count("most recent call first") == 1
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@in_its_own_process()
def test_a_process_that_closed_its_file_is_not_used():
    """The number may be that of a file of the user's by now."""
    write_on_signal()
    pid = _fork(_close_all_on_signal)
    try:
        _request_stacks(pid).text()
        os.kill(pid, signal.SIGUSR1)
        assert until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= 3)
        with pytest.raises(LookupError):
            StackRequest(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _close_all_on_signal():
    signal.signal(signal.SIGUSR1, lambda *_: os.closerange(3, 256))
    _pause()
