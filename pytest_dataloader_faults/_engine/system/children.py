"""Children of a process that may not be the only one to wait for them.

Some facts about children. Where SIGCHLD is ignored, which a process inherits from whoever started
it, the kernel forgets a child at its end: waitpid(2) raises ChildProcessError then, and the number
of the child may be that of another process. A handler of the user's that waits for all children has
the same effect. So pytest's process sends signals to its children by pidfd, and copes with a child
that has been waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from pytest_dataloader_faults._engine.system.ownership import OwnedDescriptor
from pytest_dataloader_faults._engine.system.patience import ready_in_time
from pytest_dataloader_faults._engine.system.processes import fork, ready

_LONGEST_ANSWER = 4096


class ChildProcess:
    """A child of this process, until it is reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = self._open()

    def has_ended(self, seconds: float) -> bool:
        """Whether it ends within *seconds* of the clock."""
        pidfd = self._require_pidfd()
        return pidfd is None or bool(ready([pidfd], seconds))

    def ends_in_time(self, seconds: float) -> bool:
        """Whether it ends within *seconds*, as ``Patience`` counts them."""
        pidfd = self._require_pidfd()
        return pidfd is None or bool(ready_in_time([pidfd], seconds, [self.pid]))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        pidfd = self._require_pidfd()
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)

    def reap(self) -> int | None:
        """Wait for it, as ``reap`` does, and let go of it."""
        if self._pidfd:
            self._pidfd.close()
            self._pidfd = None
        return reap(self.pid)

    def _require_pidfd(self) -> int | None:
        """None if it has ended and was waited for. The user's code may have closed the first."""
        if self._pidfd and not self._pidfd.is_open:
            self._pidfd = self._open()
        return self._pidfd.number if self._pidfd else None

    def _open(self) -> OwnedDescriptor | None:
        with contextlib.suppress(ProcessLookupError):
            return OwnedDescriptor(os.pidfd_open(self.pid))
        return None


def reap(pid: int) -> int | None:
    """Wait until the child *pid* has ended: its exit code, or the negative number of its signal.

    None if that is not known, because the kernel or other code has waited for it.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


class Probe:
    """A child process that answers one question about this machine, by calling *action*.

    It starts at once, so that the child works while the caller does something else.
    """

    def __init__(self, action: Callable[[], str]) -> None:
        reading, writing = os.pipe()
        self._reading = OwnedDescriptor(reading)
        parent = os.getpid()
        try:
            child = fork()
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        if not child:
            try:
                from pytest_dataloader_faults._engine.system.libc import end_with_parent

                end_with_parent(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # It may have children of its own.
                os.write(writing, action().encode())
            finally:
                os._exit(0)
        os.close(writing)
        self._child = ChildProcess(child)

    def _is_ready(self, seconds: float) -> bool:
        return bool(ready_in_time([self._reading.number], seconds, [self._child.pid]))

    def answer(self, seconds: float) -> str:
        """The answer, once; "" if the child was killed, stopped or too slow.

        *seconds*: as ``Patience`` counts them.
        """
        try:
            if not self._reading.is_open or not self._is_ready(seconds):
                return ""
            return os.read(self._reading.number, _LONGEST_ANSWER).decode()
        finally:
            self._reading.close()
            self._child.send(signal.SIGKILL)
            self._child.reap()
