"""A number that one process adds to and another one reads."""

from __future__ import annotations

import mmap
import struct

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
