"""Stand-ins for files, so that the user's own are never touched [runs in the supervisor].

Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with its
last descriptor or mapping. Opening it again through /proc/self/fd gives a description of its own,
with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a mapping beyond
that size raises SIGBUS, exactly as a page that the disk cannot deliver does.
"""

from __future__ import annotations

import os

_CHUNK = 1 << 22


class Substitutes:
    """Truncated copies by path and length, made once each; and the file of no bytes at all."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], int] = {}
        self.empty = os.memfd_create("pytest-dataloader-faults-unreadable")

    def truncated(self, path: str, length: int) -> int:
        """A descriptor of a file that holds the first *length* bytes of *path*."""
        key = (path, length, os.stat(path).st_mtime_ns)
        if key not in self._made:
            self._made[key] = _copy_of_head(path, length)
        return self._made[key]


def reopen(fd: int, flags: int) -> int:
    """A description of the same file with an offset of its own, for what *flags* ask for."""
    return os.open(f"/proc/self/fd/{fd}", flags & os.O_ACCMODE | os.O_CLOEXEC)


def _copy_of_head(path: str, length: int) -> int:
    copy = os.memfd_create(os.path.basename(path)[:200])
    with open(path, "rb", buffering=0) as source:
        while length and (sent := os.sendfile(copy, source.fileno(), None, min(length, _CHUNK))):
            length -= sent
    return copy
