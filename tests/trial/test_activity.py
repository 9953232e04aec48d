"""Whether a trial gets more time at its deadline follows from what was seen of its processes."""

import os
import signal
import subprocess
import threading
import time
from functools import partial

import pytest

from pytest_dataloader_faults._engine.system.proc import parse_call
from pytest_dataloader_faults._trial.journal import HarnessTime, TrialStarted, WorkersStarting
from pytest_dataloader_faults._trial.process.activity import (
    _Observer,
    end_of_sleep,
    ends_by_itself,
    find_wake_time,
    pids_of,
)
from pytest_dataloader_faults._trial.process.deadline import (
    MORE_SECONDS,
    Observation,
    activity_of,
    extend_deadline,
)
from support.rows import rows
from support.waiting import allowed, until

MOST = 100 + MORE_SECONDS


@rows(
    ("observation", "expected"),
    [
        pytest.param(Observation(), 100, id="nothing moves"),
        pytest.param(Observation(delivered=94), 100, id="it moved long ago"),
        pytest.param(Observation(delivered=98), 103, id="a batch came"),
        pytest.param(Observation(read=99), 104, id="bytes were read"),
        pytest.param(Observation(delivered=97, read=99.5), 104.5, id="the last counts"),
        pytest.param(Observation(read=MOST - 1), MOST, id="it moves to the end"),
        pytest.param(Observation(rests=130), 132.5, id="it sleeps"),
        pytest.param(Observation(rests=MOST - 1), MOST, id="it sleeps to the end"),
        pytest.param(Observation(rests=98), 100.5, id="it slept"),
        pytest.param(Observation(rests=90), 100, id="it slept long ago"),
        pytest.param(Observation(rests=600), 100, id="it sleeps for too long"),
        pytest.param(Observation(wakes=99), 100, id="it sleeps again and again for a moment"),
        pytest.param(Observation(read=99, rests=600), 104, id="one reads, one sleeps for too long"),
    ],
)
def test_what_moves_or_sleeps_gets_more_time(observation, expected):
    assert extend_deadline(100.0, 10.0, observation) == expected


@rows(
    ("observation", "activity"),
    [
        (Observation(), "waits"),
        (Observation(busy=True), "computes"),
        (Observation(read=98, busy=True), "reads"),
        (Observation(read=98, wakes=99), "sleeps"),
        (Observation(delivered=98, read=98, wakes=99), "delivers"),
        (Observation(delivered=90, read=90, wakes=90), "waits"),
    ],
)
def test_the_activity_is_the_one_that_says_most(observation, activity):
    assert activity_of(observation, 100.0, 10.0) == activity


_LOADER = TrialStarted(1)


@rows(
    ("events", "pids"),
    [
        ([], ()),
        ([_LOADER], (1,)),
        ([_LOADER, WorkersStarting((2, 3), 1.0), HarnessTime(2.0)], (2, 3)),
        ([_LOADER, WorkersStarting((2, 3), 1.0), WorkersStarting((4, 5), None)], (4, 5)),
        ([_LOADER, WorkersStarting((), 1.0)], (1,)),
    ],
)
def test_the_workers_are_looked_at(events, pids):
    assert tuple(pids_of(events)) == pids


_TIMES = {0x10: 140.0, 0x20: 5.0, 0x30: 101.0}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are of x86_64")
@rows(
    ("call", "end"),
    [
        pytest.param("230 0x1 0x1 0x10 0x0 0x0 0x0 0x7f 0x7f", 140.0, id="time.sleep"),
        pytest.param("230 0x0 0x0 0x20 0x0 0x0 0x0 0x7f 0x7f", 105.0, id="sleep(3)"),
        pytest.param("35 0x20 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", 105.0, id="nanosleep"),
        pytest.param("270 0x0 0x0 0x0 0x0 0x20 0x0 0x7f 0x7f", 105.0, id="select of nothing"),
        pytest.param("270 0x4 0x10 0x0 0x0 0x20 0x0 0x7f 0x7f", None, id="select of descriptors"),
        pytest.param("7 0x0 0x0 0x7d0 0x0 0x0 0x0 0x7f 0x7f", 102.0, id="poll of nothing"),
        pytest.param("7 0x0 0x0 0x2 0x0 0x0 0x0 0x7f 0x7f", None, id="a short poll of nothing"),
        pytest.param("271 0x0 0x0 0x20 0x0 0x0 0x0 0x7f 0x7f", 105.0, id="ppoll of nothing"),
        pytest.param("202 0x5 0x89 0x0 0x10 0x0 0xffffffff 0x7f 0x7f", 140.0, id="Event.wait(40)"),
        pytest.param("202 0x5 0x89 0x0 0x30 0x0 0xffffffff 0x7f 0x7f", None, id="Event.wait(1)"),
        pytest.param("202 0x5 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", None, id="Event.wait()"),
        pytest.param("7 0x10 0x1 0x1388 0x0 0x0 0x0 0x7f 0x7f", None, id="a worker without work"),
        pytest.param("0 0x3 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", None, id="a read"),
        pytest.param("running", None, id="in no call"),
        pytest.param("-1 0x7f 0x7f", None, id="in no call that is known"),
        pytest.param("", None, id="a process that is gone"),
    ],
)
def test_a_sleep_is_known_by_its_call(call, end):
    assert end_of_sleep(parse_call(call), _TIMES.__getitem__, 100.0) == end


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are of x86_64")
@rows(
    ("call", "ends"),
    [
        pytest.param("230 0x1 0x1 0x10 0x0 0x0 0x0 0x7f 0x7f", True, id="time.sleep"),
        pytest.param("270 0x4 0x10 0x0 0x0 0x20 0x0 0x7f 0x7f", True, id="select of descriptors"),
        pytest.param("270 0x4 0x10 0x0 0x0 0x0 0x0 0x7f 0x7f", False, id="select for ever"),
        pytest.param("7 0x10 0x1 0x1388 0x0 0x0 0x0 0x7f 0x7f", True, id="recv with a timeout"),
        pytest.param("7 0x10 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", False, id="poll for ever"),
        pytest.param("271 0x10 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", False, id="ppoll for ever"),
        pytest.param("202 0x5 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", False, id="Event.wait()"),
        pytest.param("0 0x3 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", False, id="a read"),
        pytest.param("running", False, id="in no call"),
    ],
)
def test_a_wait_with_a_timeout_ends_by_itself(call, ends):
    assert ends_by_itself(parse_call(call)) == ends


def _in_a_child(action, condition):
    """Whether *condition* holds for the pid of a child that does *action*."""
    if not (pid := os.fork()):
        action()
        os._exit(0)
    try:
        return until(lambda: condition(find_wake_time(pid)), 10)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("sleep", [time.sleep, lambda seconds: threading.Event().wait(seconds)])
def test_the_end_of_a_sleep_is_seen(sleep):
    expected_end = time.monotonic() + 50
    assert _in_a_child(
        partial(sleep, 60), lambda end: end and expected_end < end < expected_end + 30
    )


def test_a_wait_without_a_limit_is_no_sleep():
    assert not _in_a_child(threading.Event().wait, lambda end: end is not None)


@pytest.mark.parametrize(("seconds", "is_long"), [(1, False), (20, True)])
def test_only_a_program_that_sleeps_for_more_than_a_second_rests(seconds, is_long):
    observer = _Observer(None, None)
    command = ["sh", "-c", f"while :; do sleep {seconds}; done"]
    with subprocess.Popen(command, start_new_session=True) as shell:
        try:
            assert until(
                lambda: observer.look(0, [shell.pid]) or observer.observation.asleep, allowed(10)
            )
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert (observer.observation.rests > 0) == is_long
