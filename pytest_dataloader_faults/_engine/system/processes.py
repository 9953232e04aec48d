"""Processes: start one, wait for one, describe its end, and end this one if interrupted.

Some facts about the end of a process. waitid(2) with WNOWAIT shows a parent how its child ended and
leaves it to be waited for; other processes cannot know.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import warnings
from collections.abc import Iterable
from types import FrameType

from pytest_dataloader_faults._engine.system.proc import family
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError


def describe_child_exit(pid: int) -> str | None:
    """How this process's child *pid* ended; "" as it should, and None if it runs."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if end is None:
        return None
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return describe_end(code) if code else ""


def describe_end(code: int) -> str:
    """How a process ended that has this exit status or, if it is negative, got this signal."""
    from pytest_dataloader_faults.outcomes import text  # On use: it is slow to import.

    return text.describe_end(code)


MORE_PROCESSES = (
    "Stop processes that are not needed, or raise the limit: ulimit -u, docker run --pids-limit, or"
    " pids.max of the control group"
)


def main_code(main_module: str) -> str:
    """What a new interpreter, by ``-c``, runs to call ``main`` of that module of this package.

    It does not collect garbage while it imports, which does not make any: that would take a tenth
    of the CPU.
    """
    above = os.path.realpath(os.path.join(os.path.dirname(__file__), *[".."] * 3))
    import_main = f"sys.path.insert(0, {above!r}); from {main_module} import main"
    return f"import gc, sys; gc.disable(); {import_main}; gc.enable(); main()"


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            raise UnusableEnvironmentError(
                f"too few processes: another one cannot start ({error}). {MORE_PROCESSES}",
                "too few processes",
            ) from error


LONGEST_WAIT = 1_000_000.0
"""Seconds, 11 days: poll(2) takes milliseconds as an int, and time.sleep() nanoseconds as another.
A longer wait starts again."""


def wait_until_readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*.

    select(2) does not accept numbers above 1023, and pytest may have them: hence poll(2).
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait = min(max(0.0, seconds), LONGEST_WAIT)
    return [descriptor for descriptor, _ in poll.poll(1000 * wait)]


def accept_signals() -> None:
    """Block no signal, and let this process wait for its own children.

    Every process that pytest forks inherits what pytest inherited. If SIGCHLD is ignored, or a
    handler of the user's waits for all children, exit codes are lost. If it is blocked, a loader
    that reads a batch of which a dead worker sent one half waits forever.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# Some facts about SIGINT. Ctrl-C goes to pytest's process group, which a trial has left, so a trial
# gets the signal only from another program. Python's handler raises KeyboardInterrupt in whatever
# code runs, and code may catch that: some clients implement a timeout by it. If nobody catches it,
# Python ends its own process by the same signal, so that a parent sees what happened. A dataset may
# also raise KeyboardInterrupt without a signal, which is then an error like any other.


_interrupted: list[int] = []
"""This process, once it got the signal. Its children inherit the list, and have other pids."""


def raise_on_sigint() -> None:
    """Have SIGINT raise KeyboardInterrupt, as in any Python program."""
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.append(os.getpid())
    signal.default_int_handler(number, frame)


def end_if_interrupted(error: BaseException) -> None:
    """End this process as Python does, if *error* is an interrupt by SIGINT that was not caught."""
    if isinstance(error, KeyboardInterrupt) and os.getpid() in _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def kill_with_children(pid: int) -> None:
    """Kill a process and all below it. One that is stopped cannot start another meanwhile."""
    doomed = [pid]
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
        doomed += [child for child in family(process) if child not in doomed]
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
