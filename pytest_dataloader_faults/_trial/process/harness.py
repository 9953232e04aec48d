"""The harness's own processes, as their parents see them: they may be killed or stopped like any.

Pytest waits for the warden, and the warden watches the supervisor.

Some facts about a supervisor's end. The calls of all processes of a trial wait for it, also those
of the helpers that remove what others have left. So it lives until the warden ends it, as the last
of them. It writes its report if the trial cannot request it: when the trial's process has died, and
on a signal of the warden. If it ends earlier, the calls fail with ENOSYS from then on, and what the
dataset makes of that says nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import signal

from pytest_dataloader_faults._engine.protocol import SupervisorHandle, WorkerReports
from pytest_dataloader_faults._engine.supervisor.start import REPORT_SIGNAL
from pytest_dataloader_faults._engine.system.children import ChildProcess, reap
from pytest_dataloader_faults._engine.system.patience import (
    BETWEEN_LOOKS,
    SIGN_OF_LIFE,
    Patience,
    has_ended,
    ready_in_time,
)
from pytest_dataloader_faults._engine.system.proc import is_stopped, signal_that_ended
from pytest_dataloader_faults._engine.system.processes import (
    describe_child_exit,
    describe_end,
    wait_until_readable,
)
from pytest_dataloader_faults._trial.journal import (
    FaultsArmed,
    HarnessFailed,
    Journal,
    JournalEvent,
)

_GRACE = 30.0
"""Seconds a warden gets beyond its deadline before it counts as broken itself."""
_LOOKS = 5
"""How many times in a row, a second apart, a warden must be seen stopped."""
_PATIENCE = 10.0
"""Seconds in which a supervisor that owes its report neither works nor waits for a processor."""
_BETWEEN_LOOKS = 0.002
STOPPED = "was stopped (SIGSTOP, or a debugger)"
NOTHING_SHOWN = (
    " before the trial was finished, so the trial proves nothing about the dataset. Run it again."
    " If it happens again, find out what kills or stops processes on this machine"
)


def wait_for(warden: ChildProcess, deadline: float, facts: Journal) -> int | None:
    """Wait until *warden* has ended, at most *deadline* seconds and a grace; its exit code."""
    try:
        _watch(warden, deadline + _GRACE, facts)
    except BaseException:  # Ctrl-C: the warden ends its tree first.
        warden.send(signal.SIGTERM)
        warden.ends_in_time(_GRACE)
        raise
    finally:
        code = warden.reap()
    return code


def _watch(warden: ChildProcess, deadline: float, facts: Journal) -> None:
    """Return once *warden* has ended; end a warden that is stopped."""
    patience, stopped = Patience(deadline, [warden.pid]), 0
    while not warden.has_ended(BETWEEN_LOOKS):
        stopped = stopped + 1 if is_stopped(warden.pid) else 0
        if stopped == _LOOKS:
            facts.write(HarnessFailed(f"{describe_warden(warden.pid)} {STOPPED}{NOTHING_SHOWN}"))
            warden.send(signal.SIGTERM)  # It ends its tree first.
            warden.send(signal.SIGCONT)
        if patience.is_over():
            warden.send(signal.SIGKILL)


def end(warden: ChildProcess) -> None:
    """End *warden*, which ends its tree first, and wait for it."""
    warden.send(signal.SIGTERM)
    if not warden.ends_in_time(_GRACE):
        warden.send(signal.SIGKILL)
    warden.reap()


def describe_warden(warden: int) -> str:
    return f"the process that enforces the trial's deadline (pid {warden})"


def lost_warden_message(warden: int, code: int | None, printed: str) -> str:
    """The message for a trial that did not end itself; *code*: the warden's exit code, if known."""
    ending = "has exited" if code is None else describe_end(code)
    return f"{describe_warden(warden)} {ending}{NOTHING_SHOWN}. The trial printed:\n{printed}"


def killed_server_message(server: int) -> str | None:
    """The message for a fork server that a signal has ended; None if it runs, or ended itself."""
    if not has_ended(server, 0) or not (number := signal_that_ended(server)):
        return None
    return (
        f"the fork server (pid {server}), which starts the workers, {describe_end(-number)}"
        f"{NOTHING_SHOWN}"
    )


class SupervisorWatch:
    """The supervisor of a trial, until the last other process of that has ended."""

    def __init__(self, handle: SupervisorHandle, journal: Journal) -> None:
        self.handle, self.pid = handle, handle.pid
        self.fd = os.pidfd_open(self.pid)
        """Readable once it has ended."""
        self._journal = journal

    def ended_early(self) -> str | None:
        """What is wrong, if anything, when it has ended before the trial's process."""
        return self._message(self._ending())

    def report(self) -> str | None:
        """Have it write its report after the trial's end; what is wrong if it does not."""
        if not self._has(FaultsArmed):
            return None
        ending = self._ending()
        return self._message(self._request_report() if ending is None else ending)

    def _ending(self) -> str | None:
        """How it ended; None if it runs."""
        ending = describe_child_exit(self.pid)
        return "was terminated by SIGTERM" if ending == "" else ending

    def _request_report(self) -> str | None:
        if is_stopped(self.pid):
            return STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, REPORT_SIGNAL)
        patience = Patience(_PATIENCE, [self.pid], SIGN_OF_LIFE)
        while not (self._has(WorkerReports) or wait_until_readable([self.fd], _BETWEEN_LOOKS)):
            if patience.is_over():
                return STOPPED if is_stopped(self.pid) else f"wrote no report for {_PATIENCE:g} s"
        return self._ending()

    def end(self) -> None:
        """End it, after all processes whose calls it answers."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            if is_stopped(self.pid) or not ready_in_time([self.fd], _PATIENCE, [self.pid]):
                os.kill(self.pid, signal.SIGKILL)
        reap(self.pid)

    def _has(self, kind: type[JournalEvent]) -> bool:
        return any(True for _ in self._journal.of(kind))

    def _message(self, ending: str | None) -> str | None:
        name = f"the supervisor (pid {self.pid}), which answers the workers' system calls,"
        return ending and f"{name} {ending}{NOTHING_SHOWN}"
