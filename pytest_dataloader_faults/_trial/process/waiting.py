"""Wait for a warden, which may be killed or stopped like any process [runs in pytest]."""

from __future__ import annotations

import os
import signal
import time

from pytest_dataloader_faults._engine.processes import is_stopped, ready
from pytest_dataloader_faults._trial.journal import Journal

_GRACE = 30.0
"""Seconds a warden gets beyond its deadline before it counts as broken itself."""
_BETWEEN_LOOKS, _LOOKS = 1.0, 5
"""Seconds between two looks at the warden; how many times in a row it has to be seen stopped."""
STOPPED = "was stopped (SIGSTOP, or a debugger)"
NOTHING_SHOWN = (
    " before the trial was over. So the trial shows nothing about the dataset. Run it again. If it"
    " happens again, find out what ends or stops processes on this machine"
)


def wait_for(warden: int, deadline: float, facts: Journal) -> int:
    """Wait until *warden* has ended, at most *deadline* seconds and a grace; its wait status."""
    watched = os.pidfd_open(warden)
    try:
        _watch(warden, watched, deadline + _GRACE, facts)
    except BaseException:  # Ctrl-C: the warden ends its tree first.
        os.kill(warden, signal.SIGTERM)
        ready([watched], _GRACE)
        raise
    finally:
        os.close(watched)
        _, status = os.waitpid(warden, 0)
    return status


def _watch(warden: int, watched: int, deadline: float, facts: Journal) -> None:
    """Return once *watched*, the pidfd of *warden*, is readable; end a warden that is stopped."""
    until = time.monotonic() + deadline
    stopped = 0
    while not ready([watched], _BETWEEN_LOOKS):
        stopped = stopped + 1 if is_stopped(warden) else 0
        if stopped == _LOOKS:
            facts.write(hurt=f"{name_of_warden(warden)} {STOPPED}{NOTHING_SHOWN}")
            os.kill(warden, signal.SIGTERM)  # It ends its tree first.
            os.kill(warden, signal.SIGCONT)
        if time.monotonic() > until:
            os.kill(warden, signal.SIGKILL)


def name_of_warden(warden: int) -> str:
    return f"the process that holds the trial's deadline (pid {warden})"


def how_it_vanished(warden: int, status: int, printed: str) -> str:
    """The message for a trial that did not end itself; *status*: the warden's wait status."""
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    return f"{name_of_warden(warden)} {how}{NOTHING_SHOWN}. The trial printed:\n{printed}"
