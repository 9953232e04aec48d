"""The verdict on a death follows from how the worker died, not from the error that came of it."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Outcome
from pytest_dataloader_faults.faults import SharedMemoryExhaustion
from pytest_dataloader_faults.outcomes import FiringKind, Pass, WorkerDeath
from support.facts import EIO, KILLED, TRUNCATED, fired, map_reference, ordinary, raised
from support.rows import rows

BUS = -signal.SIGBUS
SHADOWS = [
    raised("RuntimeError", "DataLoader worker (pid(s) 4711) exited unexpectedly"),
    raised("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Bus error."),
    raised("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    raised("EOFError", ""),
    raised("FileNotFoundError", "[Errno 2] No such file or directory"),
    raised("TypeError", "'NoneType' object is not callable"),
]
"""What one and the same death has reached the loop as."""
CASES = [
    pytest.param(EIO, "mmap", BUS, "failed_cleanly", id="mapping of a disk that fails"),
    pytest.param(EIO, "read", BUS, "failed_unclearly", id="bus error, no mapping"),
    pytest.param(TRUNCATED, "openat", BUS, "failed_unclearly", id="mapping of a short file"),
    pytest.param(TRUNCATED, "mmap", BUS, "failed_cleanly", id="cut off while mapped"),
    pytest.param(
        SharedMemoryExhaustion(), "fallocate", BUS, "failed_cleanly", id="no shared memory"
    ),
    pytest.param(KILLED, "signal 9", -signal.SIGKILL, "failed_cleanly", id="killed as asked"),
    pytest.param(KILLED, "exit 3", 3, "failed_cleanly", id="left as asked"),
    pytest.param(EIO, "read", -signal.SIGSEGV, "failed_unclearly", id="crashed reader"),
    pytest.param(EIO, "read", -signal.SIGKILL, "failed_unclearly", id="killed from outside"),
    pytest.param(TRUNCATED, "openat", 1, "failed_unclearly", id="exit status"),
]


def _outcome(fault, call, exitcode, shadow) -> Outcome:
    one = Pass(exception=shadow, deaths=(WorkerDeath(1, 4711, exitcode),))
    kind = FiringKind.DEATH if fault is KILLED else FiringKind.CALL
    return replace(ordinary(one, fired(fault, call=call, kind=kind)), passes=(one,))


@rows("shadow", SHADOWS, ids=lambda each: each.type)
@rows(("fault", "call", "exitcode", "verdict"), CASES)
def test_the_verdict_is_the_deaths(fault, call, exitcode, verdict, shadow):
    """Whichever error of torch's came first, the verdict and its sentence are the same."""
    judgements = {
        (each.verdict, each.sentence)
        for each in (
            _outcome(fault, call, exitcode, one).judge(map_reference())
            for one in (shadow, SHADOWS[0])
        )
    }
    assert {each for each, _ in judgements} == {verdict}
    assert len(judgements) == 1


@rows(
    ("fault", "exitcode", "expected"),
    [
        (
            TRUNCATED,
            BUS,
            "worker 1 was killed by SIGBUS: it accessed a memory-mapped file beyond the end",
        ),
        (EIO, -signal.SIGKILL, "worker 1 was killed by SIGKILL, which no fault sent"),
        (
            EIO,
            3,
            "worker 1 exited with status 3, and the loader's exception does not say that its",
        ),
    ],
)
def test_the_sentence_says_who_died_and_how(fault, exitcode, expected):
    """The first sentence names the worker, how it ended, and what that came of."""
    judgement = _outcome(fault, "openat", exitcode, SHADOWS[0]).judge(map_reference())

    assert judgement.sentence.startswith(expected)


@rows("shadow", SHADOWS, ids=lambda each: each.type)
@rows(
    ("exitcode", "expected"),
    [
        (-37, "worker 1 was killed by signal 37"),
        (0, "worker 1 exited with status 0"),
        (-signal.SIGKILL, "worker 1 was killed by SIGKILL, sent by the dataset itself or by"),
    ],
)
def test_a_death_without_a_fault_is_told_as_one(exitcode, expected, shadow):
    """The first sentence is about the worker, and not about the error that came of its death."""
    one = Pass(exception=shadow, deaths=(WorkerDeath(1, 4711, exitcode),))
    judgement = ordinary(one).judge(map_reference())

    assert judgement.verdict == "broken"
    assert judgement.sentence.startswith(f"fails without any fault: {expected}")
    assert not shadow.message or shadow.message not in judgement.sentence


def test_one_unclear_death_is_enough():
    """Another worker's death of a mapping does not excuse that one crashed."""
    outcome = _outcome(EIO, "mmap", BUS, SHADOWS[0])
    both = (*outcome.deaths, WorkerDeath(0, 4710, -signal.SIGSEGV))
    outcome = replace(outcome, passes=(replace(outcome.passes[0], deaths=both),))

    judgement = outcome.judge(map_reference())

    assert judgement.verdict == "failed_unclearly"
    assert judgement.sentence.startswith("worker 0 was killed by SIGSEGV")


def test_deaths_are_kept_as_plain_data():
    """An outcome with deaths is the same after a journey through JSON."""
    outcome = _outcome(EIO, "mmap", BUS, SHADOWS[0])

    assert Outcome.from_dict(outcome.to_dict()) == outcome


@pytest.mark.parametrize("number", [signal.SIGRTMIN + 3, signal.SIGKILL])
def test_a_signal_is_named_by_its_number_if_it_has_no_name(number):
    """A program can send any signal, and a real-time one has a number alone."""
    name = f"signal {number}" if number > signal.SIGRTMIN else "SIGKILL"

    assert str(WorkerDeath(0, 4711, -number)) == f"worker 0 was killed by {name}"
