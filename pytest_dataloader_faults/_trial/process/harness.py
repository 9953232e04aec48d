"""The harness's own processes, as their parents see them: they may be killed or stopped like any.

Pytest waits for the warden, and the warden watches the supervisor.

Some facts about a supervisor's end. It ends by itself, with status 0, when the scope of the faults
is closed and no filtered process is left; the trial then continues without it, to the recovery
pass. It writes its report if the trial cannot request it: when the trial's process has died, and
when the supervisor gets SIGTERM. So a supervisor ended too early if it ended with another status,
or if it reported although the trial lives and this process did not request it. From then on the
workers' system calls fail with ENOSYS, and what the dataset makes of that says nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from pytest_dataloader_faults._engine.protocol import WorkerReports
from pytest_dataloader_faults._engine.system.children import ChildProcess
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
_PARTS = 20
"""How often other work is looked at between two looks at a warden."""
_PATIENCE = 10.0
"""Seconds in which a supervisor that owes its report neither works nor waits for a processor."""
_MOMENT = 0.02
"""Seconds from the end of the last process that a supervisor follows to its own, at most."""
STOPPED = "was stopped (SIGSTOP, or a debugger)"
NOTHING_SHOWN = (
    " before the trial was finished, so the trial proves nothing about the dataset. Run it again."
    " If it happens again, find out what kills or stops processes on this machine"
)


def wait_for(
    warden: ChildProcess, deadline: float, facts: Journal, look: Callable[[], None] | None = None
) -> int | None:
    """Wait until *warden* has ended, at most *deadline* seconds and a grace; its exit code.

    *look* is called again and again meanwhile.
    """
    try:
        _watch(warden, deadline + _GRACE, facts, look)
    except BaseException:  # Ctrl-C: the warden ends its tree first.
        warden.send(signal.SIGTERM)
        warden.ends_in_time(_GRACE)
        raise
    finally:
        code = warden.reap()
    return code


def _watch(
    warden: ChildProcess, deadline: float, facts: Journal, look: Callable[[], None] | None
) -> None:
    """Return once *warden* has ended; end a warden that is stopped."""
    patience, stopped = Patience(deadline, [warden.pid]), 0
    while not _ends_soon(warden, look):
        stopped = stopped + 1 if is_stopped(warden.pid) else 0
        if stopped == _LOOKS:
            facts.write(HarnessFailed(f"{describe_warden(warden.pid)} {STOPPED}{NOTHING_SHOWN}"))
            warden.send(signal.SIGTERM)  # It ends its tree first.
            warden.send(signal.SIGCONT)
        if patience.is_over():
            warden.send(signal.SIGKILL)


def _ends_soon(warden: ChildProcess, look: Callable[[], None] | None) -> bool:
    """Whether *warden* ends before the next look at it; call *look* meanwhile."""
    if look is None:
        return warden.has_ended(BETWEEN_LOOKS)
    for _ in range(_PARTS):
        look()
        if warden.has_ended(BETWEEN_LOOKS / _PARTS):
            return True
    return False


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
    def __init__(self, pid: int, journal: Journal) -> None:
        self.pid = pid
        self.fd: int | None = os.pidfd_open(pid)
        """Readable once it has ended; None once it has ended as it should."""
        self._journal = journal

    def ended_early(self) -> str | None:
        """What is wrong, if anything, when it has ended before the trial's process."""
        ending = describe_child_exit(self.pid)
        if not ending and self._has(WorkerReports):
            ending = "was terminated by SIGTERM"
        if not ending:
            self.fd = None
        return self._message(ending)

    def await_end(self) -> None:
        """Wait a moment for its end. To end it, and what else may be left, takes more time."""
        if self.fd is not None:
            wait_until_readable([self.fd], _MOMENT)

    def report(self) -> str | None:
        """Have it write its report after the trial's end; what is wrong if it does not."""
        if self.fd is None or not self._has(FaultsArmed):  # It ended as it should, or never armed.
            return None
        ending = describe_child_exit(self.pid)
        return self._message(self._request_report() if ending is None else ending)

    def _request_report(self) -> str | None:
        if is_stopped(self.pid):
            return STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if self.fd is not None and not ready_in_time(
            [self.fd], _PATIENCE, [self.pid], SIGN_OF_LIFE
        ):
            return STOPPED if is_stopped(self.pid) else f"wrote no report for {_PATIENCE:g} s"
        return describe_child_exit(self.pid)

    def _has(self, kind: type[JournalEvent]) -> bool:
        return any(True for _ in self._journal.of(kind))

    def _message(self, ending: str | None) -> str | None:
        name = f"the supervisor (pid {self.pid}), which answers the workers' system calls,"
        return ending and f"{name} {ending}{NOTHING_SHOWN}"
