"""Altered copies of files, so that the user's own are never touched.

Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with its
last descriptor or mapping. Opening it again through /proc/self/fd creates a separate description,
with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a mapping beyond
that size raises SIGBUS, exactly as a page that the disk cannot deliver does. What is too large for
memory goes to an unlinked file in the folder for temporary files, which behaves the same. Holes of
a sparse file stay holes (SEEK_DATA, see lseek(2)).

Some facts about memory. A worker may have any number of copies open or mapped, and as long as it
does, closing them here frees nothing. So one supervisor makes copies of 256 MiB in memory, and all
others on disk. And as each copy takes a descriptor, only the latest ones are kept.
"""

from __future__ import annotations

import errno
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import gettempdir
from typing import NamedTuple

CALLS_USER_CODE = True

_CHUNK = 1 << 22
_IN_MEMORY = 1 << 26
"""Bytes of the largest copy that is made in memory."""
_ALL_IN_MEMORY = 1 << 28
"""Bytes that the copies of one supervisor take in memory together."""
_MOST = 64
"""Copies that one supervisor keeps."""
_BLOCK = 512
"""The unit of st_blocks, see stat(2)."""


@dataclass(frozen=True)
class FileEdit:
    """How a copy differs from its original: its length, if it is shorter, and flipped bytes.

    Each of *flips*: how many bytes, and a seed.
    """

    length: int | None = None
    flips: tuple[tuple[int, int], ...] = ()

    def copied_size(self, size: int) -> int:
        """How long the copy of a file of *size* bytes is."""
        return size if self.length is None else min(size, self.length)

    def masks(self, path: str, size: int) -> dict[int, int]:
        """Which bytes of a copy of *path*, a file of *size* bytes, differ, and by which bits."""
        masks: defaultdict[int, int] = defaultdict(int)
        for flips, seed in self.flips:
            for place, mask in flip_masks(os.path.basename(path), size, flips, seed).items():
                masks[place] ^= mask
        return {place: mask for place, mask in masks.items() if place < self.copied_size(size)}


class _Copy(NamedTuple):
    """The descriptor of a copy of *path*, and its size."""

    path: str
    fd: int
    size: int

    @property
    def is_lengthened(self) -> bool:
        """Whether it was written to, beyond its end."""
        return os.fstat(self.fd).st_size > self.size


class FileCopies:
    """Altered copies of real files, of which the latest are kept; and the empty file.

    Attributes:
        originals: What each is or was a copy of, by device and inode. A worker may have it open
            when it is not kept any more.
    """

    def __init__(self) -> None:
        self.originals: dict[tuple[int, int], str] = {}
        self._copies: dict[tuple[object, ...], _Copy] = {}
        """In order of use: the copy that was requested last is the last one."""
        self._in_memory = 0
        """How many bytes were copied into memory."""
        self._lengthened: set[str] = set()
        self.empty = os.memfd_create("pytest-dataloader-faults-unreadable")

    def get_copy(self, path: str, edit: FileEdit, source: str) -> int:
        """A descriptor of the copy of *path* that differs by *edit*.

        *source*: another name, by which *path* can be opened.
        """
        now = os.stat(source)
        key = (path, edit, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)
        copy = self._copies.pop(key, None) or self._make(path, edit, source, now)
        self._copies[key] = copy
        return copy.fd

    def lengthened_files(self) -> set[str]:
        """The files whose copies a worker has made longer."""
        self._lengthened |= {copy.path for copy in self._copies.values() if copy.is_lengthened}
        return self._lengthened

    def _make(self, path: str, edit: FileEdit, source: str, now: os.stat_result) -> _Copy:
        if len(self._copies) >= _MOST:
            oldest = self._copies.pop(next(iter(self._copies)))
            self._lengthened |= {oldest.path} if oldest.is_lengthened else set()
            os.close(oldest.fd)
        size = min(edit.copied_size(now.st_size), now.st_blocks * _BLOCK)
        in_memory = size <= _IN_MEMORY and self._in_memory + size <= _ALL_IN_MEMORY
        self._in_memory += size if in_memory else 0
        fd = altered_copy(path, edit, source, in_memory=in_memory)
        copy = os.fstat(fd)
        self.originals[copy.st_dev, copy.st_ino] = path
        return _Copy(path, fd, copy.st_size)


def reopen(fd: int, flags: int) -> int:
    """A description of the same file with its own offset, opened with *flags*."""
    return os.open(f"/proc/self/fd/{fd}", flags & os.O_ACCMODE | os.O_CLOEXEC)


def altered_copy(path: str, edit: FileEdit, source: str, *, in_memory: bool) -> int:
    """A descriptor of a nameless copy of *path* that differs by *edit*.

    *source*: another name, by which *path* can be opened.
    """
    original = os.open(source, os.O_RDONLY)
    try:
        size = os.fstat(original).st_size
        length = edit.copied_size(size)
        copy = _new_file(path, in_memory=in_memory)
        _fill(original, copy, length)
        for place, mask in edit.masks(path, size).items():
            os.pwrite(copy, bytes([os.pread(copy, 1, place)[0] ^ mask]), place)
        return copy
    finally:
        os.close(original)


def copy_content(original: int, copy: int) -> None:
    """Write into *copy*, an empty file, what *original* has; both are descriptors."""
    _fill(original, copy, os.fstat(original).st_size)


def flip_masks(name: str, size: int, flips: int, seed: int) -> dict[int, int]:
    """Which bytes of a file of that name and size differ, and by which bits."""
    # As bytes, because a name may not be decodable (PEP 383), and str.encode() refuses that.
    stream = random.Random(os.fsencode(f"{seed}/{name}/{size}"))
    places = stream.sample(range(size), min(flips, size))
    return {place: stream.randrange(1, 256) for place in places}


def _data_extents(fd: int, length: int) -> Iterator[tuple[int, int]]:
    """Where in its first *length* bytes a file has data: start and end of each stretch."""
    end = 0
    while end < length:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # All data is before *end*.
                raise
            return
        end = min(length, os.lseek(fd, start, os.SEEK_HOLE))
        if start < length:
            yield start, end


def _fill(original: int, copy: int, length: int) -> None:
    """Write the data of *original* into *copy*, which gets this *length*."""
    os.ftruncate(copy, length)
    for start, end in _data_extents(original, length):
        _copy(original, copy, start, end)


def _copy(original: int, copy: int, start: int, end: int) -> None:
    while start < end:
        chunk = os.pread(original, min(end - start, _CHUNK), start)
        if not chunk:
            return
        start += os.pwrite(copy, chunk, start)


def _new_file(path: str, *, in_memory: bool) -> int:
    """A descriptor of a new file without a name, for a copy of *path*."""
    if not in_memory:
        return _open_unlinked(gettempdir())
    label = os.fsencode(os.path.basename(path))[:200]  # The kernel takes 249 bytes.
    return os.memfd_create(os.fsdecode(label))


def random_name(folder: str) -> str:
    """The path of a file in *folder* that does not exist."""
    return os.path.join(folder, f"pytest-dataloader-faults-{os.urandom(8).hex()}")


NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


def _open_unlinked(folder: str) -> int:
    """A file in *folder* without a name, which need not be removed if this process is killed."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    name = random_name(folder)  # That file system has no such files.
    fd = os.open(name, NEW | os.O_CLOEXEC, 0o600)
    os.unlink(name)
    return fd
