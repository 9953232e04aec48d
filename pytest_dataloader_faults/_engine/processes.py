"""How a supervisor is, as seen from outside: running, stopped, or ended, and by what.

Some facts about looking at a process. waitid(2) with WNOWAIT tells a parent how its child ended and
leaves it to be waited for; nobody else can know. A child of a process that ignores SIGCHLD is gone
without a trace. One that is stopped has the state T in /proc/PID/stat (t under a debugger): its
sockets stay open and take messages, so whoever asks it sees nothing but that no answer comes.
"""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Iterable

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError


def is_stopped(pid: int) -> bool:
    """Whether it stands still until somebody sends SIGCONT."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def how_it_ended(pid: int) -> str | None:
    """How this process's child *pid* ended; "" as it should, and None if it runs."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if end is None:
        return None
    if end.si_code != os.CLD_EXITED:
        return f"was killed by {signal.Signals(end.si_status).name}"
    return f"ended with exit status {end.si_status}" if end.si_status else ""


STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a process of a trial for the stacks of its threads; far from what anybody uses."""


MORE_PROCESSES = (
    "End what nobody uses, or raise the limit: ulimit -u, docker run --pids-limit, or pids.max of"
    " the control group"
)


def fork() -> int:
    """os.fork(2) without the warning of Python 3.12 about other threads, which we know of.

    Raises:
        UnusableEnvironmentError: There is no room for another process.

    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            message = f"too few processes: no other one starts ({error}). {MORE_PROCESSES}"
            raise UnusableEnvironmentError(message) from error


def ready(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*.

    select(2) takes no number above 1023, and pytest may have them: hence poll(2).
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000 * max(0.0, seconds))]
