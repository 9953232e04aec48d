"""Whether a trial's supervisor lived as long as it was needed [runs in the warden, its parent].

Some facts about a supervisor's end. It ends by itself, with status 0, when the scope of the faults
is closed and no filtered process is left; the trial then goes on without it, to the recovery. It
writes its report where the trial cannot ask for it: when the trial's process has died, and when the
supervisor gets SIGTERM. So a supervisor ended too early if it ended with another status, or if it
reported although the trial lives and this process has not asked. From then on the workers' system
calls fail with ENOSYS, and what the dataset makes of that says nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import signal

from pytest_dataloader_faults._engine.processes import how_it_ended, is_stopped, ready
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.process.waiting import NOTHING_SHOWN, STOPPED

_PATIENCE = 10.0
"""Seconds for a report; it takes a few milliseconds where the machine is not busy."""


class SupervisorWatch:
    def __init__(self, pid: int, journal: Journal) -> None:
        self.pid = pid
        self.fd: int | None = os.pidfd_open(pid)
        """Readable once it has ended; None once it has ended as it should."""
        self._journal = journal

    def ended_early(self) -> str | None:
        """What is wrong, if anything, when it has ended before the trial's process."""
        how = how_it_ended(self.pid)
        if not how and self._has("report"):
            how = "was ended by SIGTERM"
        if not how:
            self.fd = None
        return self._message(how)

    def report(self) -> str | None:
        """Have it write its report after the trial's end; what is wrong if it does not."""
        if self.fd is None or not self._has("supervisor"):  # It ended as it should, or never armed.
            return None
        how = how_it_ended(self.pid)
        return self._message(self._request_report() if how is None else how)

    def _request_report(self) -> str | None:
        if is_stopped(self.pid):
            return STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if self.fd is not None and not ready([self.fd], _PATIENCE):
            return STOPPED if is_stopped(self.pid) else f"gave no report for {_PATIENCE:g} s"
        return how_it_ended(self.pid)

    def _has(self, name: str) -> bool:
        return any(name in event for event in self._journal.events())

    def _message(self, how: str | None) -> str | None:
        name = f"the supervisor (pid {self.pid}), which answers the system calls of the workers,"
        return how and f"{name} {how}{NOTHING_SHOWN}"
