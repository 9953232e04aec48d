"""What processes share without a name: a file, and a number.

Its memory goes with the last process that has it open.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct


class AnonymousFile:
    """Each process that has it writes at its end. Closed by ``close``, and at exec(2)."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"pytest-dataloader-faults-{name}", os.MFD_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def text(self, most: int | None = None) -> str:
        """The whole text, or its last *most* bytes."""
        size = os.fstat(self.fd).st_size
        start = 0 if most is None else max(0, size - most)
        return os.pread(self.fd, size - start, start).decode(errors="replace")

    def close(self) -> None:
        os.close(self.fd)


_NUMBER = struct.Struct("=Q")


class SharedCount:
    """Shared by the process that makes it and those that are forked from it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NUMBER.size)

    @property
    def value(self) -> int:
        found: int = _NUMBER.unpack(self._memory)[0]
        return found

    def add(self, count: int) -> None:
        """Only one process may do this."""
        self._memory[:] = _NUMBER.pack(self.value + count)
