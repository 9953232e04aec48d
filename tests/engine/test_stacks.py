"""Processes that write their stacks when they are asked."""

import os
import signal

import pytest

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.stacks import StackRequest, write_on_signal
from support.children import in_its_own_process
from support.waiting import until


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
