"""Processes: start one, wait for one, say how it ended, and end this one if it is interrupted.

Some facts about the end of a process. waitid(2) with WNOWAIT tells a parent how its child ended and
leaves it to be waited for; no other process can know.
"""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Iterable
from types import FrameType

import pytest_dataloader_faults as package
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError


def how_it_ended(pid: int) -> str | None:
    """How this process's child *pid* ended; "" as it should, and None if it runs."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if end is None:
        return None
    if end.si_code != os.CLD_EXITED:
        return end_in_words(-end.si_status)
    return end_in_words(end.si_status) if end.si_status else ""


def end_in_words(code: int) -> str:
    """How a process ended that has this exit status or, where it is negative, got this signal."""
    if code < 0:
        from pytest_dataloader_faults.outcomes.text import signal_name

        return f"was killed by {signal_name(-code)}"
    return f"ended with exit status {code}"


STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a process of a trial for the stacks of its threads; a number that programs do not use."""


MORE_PROCESSES = (
    "End what is not needed, or raise the limit: ulimit -u, docker run --pids-limit, or pids.max of"
    " the control group"
)


def code_to_run(main_module: str) -> str:
    """What a new interpreter, by ``-c``, runs to call ``main`` of that module of this package.

    It collects no garbage while it imports, where none is made: that would take a tenth of the CPU.
    """
    above = os.path.realpath(os.path.join(os.path.dirname(package.__file__), ".."))
    found = f"sys.path.insert(0, {above!r}); from {main_module} import main"
    return f"import gc, sys; gc.disable(); {found}; gc.enable(); main()"


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            raise UnusableEnvironmentError(
                f"too few processes: no other one starts ({error}). {MORE_PROCESSES}",
                "too few processes",
            ) from error


LONGEST_WAIT = 1_000_000.0
"""Seconds, 11 days: poll(2) takes milliseconds as an int, and time.sleep() nanoseconds as another.
Who waits longer than that for something asks again."""


def ready(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*.

    select(2) takes no number above 1023, and pytest may have them: hence poll(2).
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait = min(max(0.0, seconds), LONGEST_WAIT)
    return [descriptor for descriptor, _ in poll.poll(1000 * wait)]


# Some facts about SIGINT. Ctrl-C goes to pytest's process group, which a trial has left, so a trial
# gets the signal only from another program. Python's handler raises KeyboardInterrupt in whatever
# code runs, and code may catch that: some clients have a time limit made of it. If nobody catches
# it, Python ends its own process by the same signal, so that a parent sees what happened. A dataset
# may also raise KeyboardInterrupt without a signal, which is then an error like any other.


_interrupted: list[int] = []
"""This process, once it got the signal. Its children inherit the list, and have other pids."""


def raise_on_sigint() -> None:
    """Have SIGINT raise KeyboardInterrupt, as in any Python program."""
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.append(os.getpid())
    signal.default_int_handler(number, frame)


def end_if_interrupted(error: BaseException) -> None:
    """End this process as Python does, if *error* is an interrupt by SIGINT that nobody caught."""
    if isinstance(error, KeyboardInterrupt) and os.getpid() in _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
