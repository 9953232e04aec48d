"""Stand-ins for files, so that the user's own are never touched [runs in the supervisor].

Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with its
last descriptor or mapping. Opening it again through /proc/self/fd gives a description of its own,
with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a mapping beyond
that size raises SIGBUS, exactly as a page that the disk cannot deliver does. What is too large for
memory goes to an unlinked file in the folder for temporary files, which behaves the same. Holes of
a sparse file stay holes (SEEK_DATA, see lseek(2)).
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

_CHUNK = 1 << 22
_IN_MEMORY = 1 << 26
NOTICE = b"This descriptor belongs to another file now. " * 1456
"""What is in a file that took over a number: 64 KiB of text."""


@dataclass(frozen=True)
class FileEdit:
    """How a substitute differs from its original. Each of *flips*: how many bytes, and a seed."""

    kept: int | None = None
    flips: tuple[tuple[int, int], ...] = ()


class FileCopies:
    """Altered copies of files, kept while there is room; and the file of no bytes at all."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], int] = {}
        """In the order in which they were last asked for."""
        self.empty = os.memfd_create("pytest-dataloader-faults-unreadable")

    def altered(self, path: str, alteration: FileEdit) -> int:
        """A descriptor of a file that is *path*, as *alteration* says."""
        now = os.stat(path)
        key = (path, alteration, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)
        made = self._made.pop(key, None)
        self._made[key] = _altered_copy(path, alteration) if made is None else made
        return self._made[key]

    def shrink(self) -> None:
        """Close the half that has not been asked for the longest; a copy can be made again."""
        for key in tuple(self._made)[: (len(self._made) + 1) // 2]:
            os.close(self._made.pop(key))


def reopen(fd: int, flags: int) -> int:
    """A description of the same file with an offset of its own, for what *flags* ask for."""
    return os.open(f"/proc/self/fd/{fd}", flags & os.O_ACCMODE | os.O_CLOEXEC)


def stranger(path: str) -> int:
    """A descriptor of a file that is as long as *path* and has nothing to do with it."""
    size = os.stat(path).st_size
    fd = _blank(path, min(size, len(NOTICE)))
    os.write(fd, NOTICE[:size])
    os.ftruncate(fd, size)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _altered_copy(path: str, alteration: FileEdit) -> int:
    with open(path, "rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        kept = size if alteration.kept is None else min(size, alteration.kept)
        spans = list(_data(source.fileno(), kept))
        copy = _blank(path, sum(end - start for start, end in spans))
        os.ftruncate(copy, kept)
        for start, end in spans:
            _copy(source.fileno(), copy, start, end)
        for flips, seed in alteration.flips:
            for place, mask in flipped(os.path.basename(path), size, flips, seed).items():
                if place < kept:
                    byte = os.pread(copy, 1, place)[0]
                    os.pwrite(copy, bytes([byte ^ mask]), place)
    return copy


def flipped(name: str, size: int, flips: int, seed: int) -> dict[int, int]:
    """Which bytes of a file of that name and size differ, and by which bits."""
    # As bytes, since a name may hold some that are no text (PEP 383), which str.encode() refuses.
    stream = random.Random(os.fsencode(f"{seed}/{name}/{size}"))
    places = stream.sample(range(size), min(flips, size))
    return {place: stream.randrange(1, 256) for place in places}


def _data(fd: int, length: int) -> Iterator[tuple[int, int]]:
    """Where in its first *length* bytes a file has data: start and end of each stretch."""
    end = 0
    while end < length:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # There is no data behind *end*.
                raise
            return
        end = min(length, os.lseek(fd, start, os.SEEK_HOLE))
        if start < length:
            yield start, end


def _copy(source: int, copy: int, start: int, end: int) -> None:
    os.lseek(copy, start, os.SEEK_SET)
    while start < end and (sent := os.sendfile(copy, source, start, min(end - start, _CHUNK))):
        start += sent


def _blank(path: str, room: int) -> int:
    """A nameless file, in memory if *room* bytes fit there."""
    if room <= _IN_MEMORY:
        name = os.fsencode(os.path.basename(path))[:200]  # The kernel takes 249 bytes.
        return os.memfd_create(os.fsdecode(name))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
