"""A trial that moves, sleeps or waits for a processor gets more time, and is not called hung."""

import functools
import math
import os
import signal
import subprocess
import time

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.system.proc import parse_call
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial import resources, warden
from pytest_dataloader_faults._trial.journal import HARNESS, ProcessesStarted, Turn
from pytest_dataloader_faults._trial.process.clock import (
    MORE_SECONDS,
    Observation,
    Observer,
    Wait,
    activity_of,
    extend_deadline,
    pids_of,
    wait_of,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Activity
from pytest_dataloader_faults.outcomes.stages import DONE
from support import troublemakers
from support.children import in_a_process
from support.datasets import COUNT, Records
from support.judging import judge_trial
from support.rows import rows
from support.troublemakers import Trouble
from support.waiting import allowed, crowd_out, until

DEADLINE = 3.0


class OnError(Records):
    def __init__(self, folder, action):
        super().__init__(folder)
        self.action = action

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            self.action(self.paths[index])
            raise


def _try(records, action, fault=None):
    fault = fault or ReadError("*.rec")
    loader = {"num_workers": 1, "batch_size": COUNT}  # So that it fails once.
    return run_trial(lambda: OnError(records, action), fault, loader=loader, deadline=DEADLINE)


def _sleeps_thrice(_path):
    for seconds in (1, 1.5, 2):
        time.sleep(seconds)


def test_retries_after_a_sleep_may_come_to_their_end(records, reference):
    outcome = _try(records, _sleeps_thrice)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > DEADLINE
    assert judge_trial(outcome, reference).verdict == "failed_cleanly"


def _polls(path):
    while path.name != "gone":
        time.sleep(0.2)


def test_who_polls_for_ever_gets_no_more_time(records, reference):
    outcome = _try(records, _polls)
    judgement = judge_trial(outcome, reference)

    assert (judgement.verdict, outcome.end.at_deadline.activity) == ("hung", Activity.SLEEPS)
    assert outcome.end.at_deadline.extension < DEADLINE * 2
    line = _polls.__code__.co_firstlineno + 2
    assert (
        f"a worker was sleeping, probably between retries at {__file__}:{line} in _polls"
        in judgement.sentence
    )


def _tries_at_once(path):
    while True:
        try:
            path.read_bytes()
        except OSError:
            continue


def test_a_fault_that_fires_again_is_no_progress(records):
    make, fault = lambda: OnError(records, _tries_at_once), ReadError("*.rec")
    for seconds in (1.0, 4.0, 16.0):
        outcome = run_trial(make, fault, loader={"num_workers": 1}, deadline=allowed(seconds))
        if outcome.fired > 1000:
            break

    assert outcome.fired > 1000
    assert (outcome.timed_out, outcome.end.at_deadline.activity) == (True, "computes")
    assert outcome.end.at_deadline.extension == 0


BUSY_DEADLINE, BURNT = 1.2, 0.6
ONE_WORKER = {"num_workers": 1}


class OnOneCore(Records):
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


def _try_on_core(records, core, action):
    return run_trial(
        lambda: OnOneCore(records, core, action), loader=ONE_WORKER, deadline=BUSY_DEADLINE
    )


def test_the_wait_for_a_processor_does_not_count(records, busy_core):
    outcome = _try_on_core(records, busy_core, _burn)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > BUSY_DEADLINE


def _look_for_one_that_ends_slowly(core):
    child = fork()
    if not child:
        os.sched_setaffinity(0, {core})
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass
        os._exit(0)
    assert resources.running_commands(None, 0.3) == {}
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_process_that_ends_slowly_is_not_left(busy_core):
    assert in_a_process(functools.partial(_look_for_one_that_ends_slowly, busy_core)) == ""


def _lose_the_loader(core):
    crowd_out(troublemakers.supervisor().pid, core)
    os._exit(7)


def test_a_supervisor_that_reports_slowly_is_waited_for(records, busy_core, monkeypatch):
    monkeypatch.setattr(warden, "_PATIENCE", 0.02)
    trouble = functools.partial(_lose_the_loader, busy_core)
    loader = {"num_workers": 0}
    outcome = run_trial(
        lambda: Trouble(records, trouble, "loader"), ReadError("*.none"), loader=loader
    )

    assert outcome.died == "exit status 7"


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


_LOADER = ProcessesStarted((1,))


@rows(
    ("events", "pids"),
    [
        ([], ()),
        ([_LOADER], (1,)),
        ([_LOADER, ProcessesStarted((2, 3), 1.0), Turn(HARNESS, 2.0)], (2, 3)),
        ([_LOADER, ProcessesStarted((2, 3), 1.0), ProcessesStarted((4, 5), None)], (4, 5)),
        ([_LOADER, ProcessesStarted((), 1.0)], (1,)),
    ],
)
def test_the_workers_are_looked_at(events, pids):
    assert tuple(pids_of(events)) == pids


_TIMES = {0x10: 140.0, 0x20: 5.0, 0x30: 101.0}
_OF_FILES = Wait(105.0, is_sleep=False)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are of x86_64")
@rows(
    ("call", "wait"),
    [
        pytest.param("230 0x1 0x1 0x10 0x0 0x0 0x0 0x7f 0x7f", Wait(140.0), id="time.sleep"),
        pytest.param("230 0x0 0x0 0x20 0x0 0x0 0x0 0x7f 0x7f", Wait(105.0), id="sleep(3)"),
        pytest.param("35 0x20 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", Wait(105.0), id="nanosleep"),
        pytest.param("270 0x0 0x0 0x0 0x0 0x20 0x0 0x7f 0x7f", Wait(105.0), id="select of nothing"),
        pytest.param("270 0x4 0x10 0x0 0x0 0x20 0x0 0x7f 0x7f", _OF_FILES, id="select"),
        pytest.param("270 0x4 0x10 0x0 0x0 0x0 0x0 0x7f 0x7f", None, id="select for ever"),
        pytest.param("7 0x0 0x0 0x7d0 0x0 0x0 0x0 0x7f 0x7f", Wait(102.0), id="poll of nothing"),
        pytest.param(
            "7 0x0 0x0 0x2 0x0 0x0 0x0 0x7f 0x7f", Wait(100.002, is_sleep=False), id="a short poll"
        ),
        pytest.param("7 0x10 0x1 0x1388 0x0 0x0 0x0 0x7f 0x7f", _OF_FILES, id="recv"),
        pytest.param("7 0x10 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", None, id="poll for ever"),
        pytest.param("271 0x0 0x0 0x20 0x0 0x0 0x0 0x7f 0x7f", Wait(105.0), id="ppoll of nothing"),
        pytest.param("271 0x10 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", None, id="ppoll for ever"),
        pytest.param(
            "202 0x5 0x89 0x0 0x10 0x0 0xffffffff 0x7f 0x7f", Wait(140.0), id="Event.wait(40)"
        ),
        pytest.param("202 0x5 0x89 0x0 0x30 0x0 0xffffffff 0x7f 0x7f", None, id="Event.wait(1)"),
        pytest.param("202 0x5 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", None, id="Event.wait()"),
        pytest.param("0 0x3 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", None, id="a read"),
        pytest.param("running", None, id="in no call"),
        pytest.param("-1 0x7f 0x7f", None, id="in no call that is known"),
        pytest.param("", None, id="a process that is gone"),
    ],
)
def test_a_wait_that_ends_by_itself_is_known_by_its_call(call, wait):
    assert wait_of(parse_call(call), _TIMES.__getitem__, 100.0) == wait


@pytest.mark.parametrize(("seconds", "is_long"), [(1, False), (20, True)])
def test_only_a_program_that_sleeps_for_more_than_a_second_rests(seconds, is_long):
    observer = Observer(lambda: 0, math.inf)
    command = ["sh", "-c", f"while :; do sleep {seconds}; done"]
    with subprocess.Popen(command, start_new_session=True) as shell:
        try:
            assert until(
                lambda: observer.look(0, [shell.pid]) or observer.observation.asleep, allowed(10)
            )
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert (observer.observation.rests > 0) == is_long
