"""The listener of one filter: receive calls, answer them [runs in the supervisor].

Some facts about seccomp user notification. poll(2) before RECV, since RECV blocks forever once the
last filtered task is gone; that shows as POLLHUP. RECV wants its buffer zeroed and answers ENOENT
when the caller died in the meantime: the call needs no answer then. SEND answers ENOENT likewise.
ADDFD with SETFD puts a descriptor at a number of our choice, and with SEND also makes that number
the result of the call, in one step. Without SYNC_WAKE_UP (Linux 6.6) the two sides wake each other
across processors, which costs ten times as much.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Mapping

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.linux import Ioctl

_ZEROES = bytes(linux.NOTIF.size)


class Listener:
    """Answers for the calls of one worker and its descendants."""

    def __init__(self, fd: int, names: Mapping[int, str]) -> None:
        self.fd = fd
        self._names = names
        self._received = bytearray(linux.NOTIF.size)
        self._answer = bytearray(linux.RESPONSE.size)
        with contextlib.suppress(OSError):  # Linux before 6.6: slower, not different.
            fcntl.ioctl(fd, Ioctl.SET_FLAGS, linux.SYNC_WAKE_UP)

    def receive(self) -> Syscall | None:
        """The next call, or None if its caller has died."""
        self._received[:] = _ZEROES
        try:
            fcntl.ioctl(self.fd, Ioctl.RECV, self._received)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        data = linux.NOTIF.unpack(self._received)
        return Syscall(data[0], data[1], self._names[data[3]], data[6:])

    def is_waiting(self, call: Syscall) -> bool:
        """Whether the caller is still there, waiting for an answer."""
        try:
            fcntl.ioctl(self.fd, Ioctl.ID_VALID, call.id.to_bytes(8, sys.byteorder))
        except OSError:
            return False
        return True

    def continue_syscall(self, call: Syscall) -> None:
        """Let the kernel do what was asked."""
        self._send(call, flags=linux.CONTINUE)

    def fail(self, call: Syscall, number: int) -> None:
        """Answer with an errno; the call is not made."""
        self._send(call, error=-number)

    def return_value(self, call: Syscall, value: int) -> None:
        """Answer with a result; the call is not made."""
        self._send(call, value)

    def return_fd(
        self, call: Syscall, source: int, number: int | None, *, close_on_exec: bool
    ) -> int:
        """Put *source* at descriptor *number* of the caller and answer with it.

        None: at the lowest that is free there; returned is which one that was. EMFILE is raised if
        there is none; the call then still waits.
        """
        place = 0 if number is None else linux.ADDFD_SETFD
        return self._add(call, source, number or 0, place | linux.ADDFD_SEND, close_on_exec)

    def replace_fd(self, call: Syscall, source: int, number: int) -> None:
        """Put *source* at descriptor *number* of the caller; the call still waits."""
        self._add(call, source, number, linux.ADDFD_SETFD, close_on_exec=True)

    def _add(self, call: Syscall, source: int, number: int, flags: int, close_on_exec: bool) -> int:
        mode = os.O_CLOEXEC if close_on_exec else 0
        request = linux.ADDFD.pack(call.id, flags, source, number, mode)
        return self._ioctl(Ioctl.ADDFD, bytearray(request))

    def _send(self, call: Syscall, value: int = 0, error: int = 0, flags: int = 0) -> None:
        linux.RESPONSE.pack_into(self._answer, 0, call.id, value, error, flags)
        self._ioctl(Ioctl.SEND, self._answer)

    def _ioctl(self, request: int, argument: bytearray) -> int:
        try:  # With a mutable argument the result is the call's own.
            result: int = fcntl.ioctl(self.fd, request, argument)
            return result
        except OSError as error:
            if error.errno != errno.ENOENT:  # The caller died; no process waits for this answer.
                raise
            return -1
