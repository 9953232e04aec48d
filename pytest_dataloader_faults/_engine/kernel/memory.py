"""The paths that system calls point to, in the memory of their callers [runs in the supervisor].

Some facts about reading another process's memory. By process_vm_readv(2) it takes 3 µs, and 1 µs by
pread(2) from an open /proc/PID/mem. The latter is about the memory that the process had when it was
opened. Once execve(2) has replaced that memory, a read gives 0 bytes. A process that was forked has
memory of its own, and one made by vfork(2) gets its own without notice. So only the worker itself
is read that way, by its main thread's id, and all others by process_vm_readv(2).
"""

from __future__ import annotations

import errno
import os

from pytest_dataloader_faults._engine.kernel.linux import read_memory
from pytest_dataloader_faults._engine.kernel.remote_process import BadSyscallError, Syscall

_PAGE, _LENGTH = 4096, 512


class Memory:
    """The memory of the worker *pid* and of its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd: int | None = None

    def path(self, call: Syscall) -> bytes:
        """The path that *call*, of the open(2) or stat(2) kind, is about."""
        address = call.argument(call.facts.path_at)
        if call.pid == self._pid:
            try:
                if self._fd is None:
                    self._fd = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
                text = os.pread(self._fd, min(_LENGTH, _PAGE - address % _PAGE), address)
            except (OSError, OverflowError):  # It may be a pointer to nothing.
                text = b""
            path, zero, _ = text.partition(b"\0")
            if zero:
                return path
        return _string(call.pid, address)

    def close(self) -> None:
        """No process of this worker is left."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _string(pid: int, address: int) -> bytes:
    """A C string. Read up to the end of its page first: the next one may not be there."""
    text = b""
    while len(text) < _PAGE:
        try:
            text += read_memory(pid, address, _PAGE - address % _PAGE)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            raise BadSyscallError from error
        head, zero, _ = text.partition(b"\0")
        if zero:
            return head
        address += _PAGE - address % _PAGE
    return text
