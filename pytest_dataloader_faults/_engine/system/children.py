"""Children of a process, for which other code may wait as well.

Some facts about children. If SIGCHLD is ignored, which a process inherits from its parent, the
kernel forgets a child at its end: waitpid(2) raises ChildProcessError then, and the number of
the child may be that of another process. A handler of the user's that waits for all children has
the same effect. So pytest's process sends signals to its children by pidfd, and copes with a child
that has been waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from pytest_dataloader_faults._engine.system.patience import ready_in_time
from pytest_dataloader_faults._engine.system.processes import (
    accept_signals,
    fork,
    wait_until_readable,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_LENGTH = struct.Struct("=Q")
"""What precedes an answer: the pipe has no end while another process has it open as well."""


class ChildProcess:
    """A child of this process, until it is reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):  # It has ended, and was waited for.
            self._pidfd = os.pidfd_open(pid)

    def has_ended(self, seconds: float) -> bool:
        """Whether it ends within *seconds* of the clock."""
        return self._pidfd is None or bool(wait_until_readable([self._pidfd], seconds))

    def ends_in_time(self, seconds: float) -> bool:
        """Whether it ends within *seconds*, as ``Patience`` counts them."""
        return self._pidfd is None or bool(ready_in_time([self._pidfd], seconds, [self.pid]))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def reap(self) -> int | None:
        """Wait for it, as ``reap`` does, and let go of it."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return reap(self.pid)


def reap(pid: int) -> int | None:
    """Wait until the child *pid* has ended: its exit code, or the negative number of its signal.

    None if that is not known, because the kernel or other code has waited for it.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def run_in_child(action: Callable[[], bytes], seconds: float) -> bytes:
    """What *action* returns in a child process; b"" if that failed, was stopped or was too slow.

    *seconds*: as ``Patience`` counts them.
    """
    with ChildCall(action) as call:
        return call.answer(seconds)


class ChildCall:
    """A call of *action* in a child process.

    The child is forked now, and calls it when the answer is asked for.
    """

    def __init__(self, action: Callable[[], bytes]) -> None:
        waiting, starting = os.pipe()
        reading, writing = os.pipe()
        parent, pid = os.getpid(), fork()
        if not pid:
            os.close(starting)
            _run(action, parent, waiting, writing)
        os.close(waiting)
        os.close(writing)
        self._child = ChildProcess(pid)
        self._starting, self._answer = starting, open(reading, "rb")  # see below

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._starting)
        self._answer.close()
        self._child.send(signal.SIGKILL)
        self._child.reap()

    def answer(self, seconds: float) -> bytes:
        """What the action returns; b"" if it failed, was stopped or was too slow.

        *seconds*: as ``Patience`` counts them.
        """
        os.write(self._starting, b"1")
        is_there = ready_in_time([self._answer.fileno()], seconds, [self._child.pid])
        length = self._answer.read(_LENGTH.size) if is_there else b""
        return self._answer.read(*_LENGTH.unpack(length)) if length else b""


def _run(action: Callable[[], bytes], parent: int, waiting: int, writing: int) -> NoReturn:
    """Call *action* in this child of *parent*, once *waiting* is readable, and write the answer."""
    try:
        from pytest_dataloader_faults._engine.system.libc import end_with_parent

        end_with_parent(parent)
        accept_signals()
        if os.read(waiting, 1):
            answer = action()
            with open(writing, "wb", buffering=0) as pipe:
                pipe.write(_LENGTH.pack(len(answer)) + answer)
    finally:
        os._exit(0)
