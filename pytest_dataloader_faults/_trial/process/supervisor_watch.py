"""Whether a trial's supervisor lived as long as it was needed [runs in the warden, its parent].

Some facts about a supervisor's end. It ends by itself, with status 0, when the scope of the faults
is closed and no filtered process is left; the trial then goes on without it, to the recovery. It
writes its report where the trial cannot ask for it: when the trial's process has died, and when it
is told to end by SIGTERM. So one that ends with another status, or that reports although the trial
lives and nobody here has asked, ended too early: the workers' system calls fail with ENOSYS from
then on, and whatever the dataset makes of that says nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import signal

from pytest_dataloader_faults._engine.processes import how_it_ended, is_stopped, ready
from pytest_dataloader_faults._trial.journal import Journal

_PATIENCE = 10.0
"""Seconds for a report; it takes a few milliseconds where the machine is not busy."""
_STOPPED = "was stopped (SIGSTOP, or a debugger)"


class SupervisorWatch:
    """A supervisor, as its parent sees it."""

    def __init__(self, pid: int, journal: Journal) -> None:
        self.pid = pid
        self.fd: int | None = os.pidfd_open(pid)
        """Readable once it has ended; None when that was found to be as it should."""
        self._journal = journal

    def ended_early(self) -> str | None:
        """It has ended, and the trial's process has not: what is wrong with that, if anything."""
        if how := how_it_ended(self.pid) or self._told_to_end():
            return self._hurt(how)
        self.fd = None
        return None

    def report(self) -> str | None:
        """Have it write its report, if it is in charge; what is wrong, if it does not.

        The trial's process has died, or has been given up.
        """
        if not self._is_in_charge():
            return None
        how = how_it_ended(self.pid)
        if how is None:
            how = self._last_words()
        return self._hurt(how) if how else None

    def _last_words(self) -> str | None:
        if is_stopped(self.pid):
            return _STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if self.fd is not None and not ready([self.fd], _PATIENCE):
            return _STOPPED if is_stopped(self.pid) else f"gave no report for {_PATIENCE:g} s"
        return how_it_ended(self.pid)

    def _told_to_end(self) -> str | None:
        return "was told to end by SIGTERM" if self._has("report") else None

    def _is_in_charge(self) -> bool:
        """The faults are armed, or were, and it has not come to its proper end."""
        return self.fd is not None and self._has("supervisor")

    def _has(self, name: str) -> bool:
        return any(name in event for event in self._journal.events())

    def _hurt(self, how: str) -> str:
        return (
            f"the supervisor (pid {self.pid}), which answers the system calls of the workers, {how}"
            " before the trial was over. So nothing was shown about the dataset. Run it again; if"
            " it comes again, find out what ends or stops processes on this machine"
        )
