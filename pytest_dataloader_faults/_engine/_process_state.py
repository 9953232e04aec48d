"""How a supervisor is, as seen from outside: running, stopped, or ended, and by what.

Some facts about looking at a process. waitid(2) with WNOWAIT tells a parent how its child ended and
leaves it to be waited for; nobody else can know. A child of a process that ignores SIGCHLD is gone
without a trace. One that is stopped has the state T in /proc/PID/stat (t under a debugger): its
sockets stay open and take messages, so whoever asks it sees nothing but that no answer comes.
"""

from __future__ import annotations

import os
import signal


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
