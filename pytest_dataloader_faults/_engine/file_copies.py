"""Altered copies of files, so that the user's own are never touched.

The supervisor makes them, and for fake files the worker itself. *system*
has the functions of ``os``: the real ones, or those of a fake file system.

Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with its
last descriptor or mapping. Opening it again through /proc/self/fd creates a separate description,
with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a mapping beyond
that size raises SIGBUS, exactly as a page that the disk cannot deliver does. What is too large for
memory goes to an unlinked file in the folder for temporary files, which behaves the same. Holes of
a sparse file stay holes (SEEK_DATA, see lseek(2)).

Some facts about memory. A dataset of many large files would fill it with their copies, so the
copies of one supervisor take 256 MiB of it at most. Most datasets close a file before they open the
next, so the oldest copies are dropped first, and made again if they are needed again. But closing a
descriptor does not free memory while a worker has the copy open or mapped. A write lease shows that
(F_SETLEASE, see fcntl(2)): the kernel refuses it while anything else has the file open. If the
copies in use fill the limit, the next one is written to disk. And as each copy takes a descriptor,
only so many are kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Any, NamedTuple

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


class _Copy(NamedTuple):
    """The descriptor of a copy of *path*, its size, and how many bytes it takes in memory."""

    path: str
    fd: int
    size: int
    memory: int

    @property
    def is_lengthened(self) -> bool:
        """Whether it was written to, beyond its end."""
        return os.fstat(self.fd).st_size > self.size


class FileCopies:
    """Altered copies of real files, kept while there is memory; and the empty file.

    Attributes:
        originals: What each is or was a copy of, by device and inode. A worker may have it open
            when it is not kept any more.
    """

    def __init__(self) -> None:
        self.originals: dict[tuple[int, int], str] = {}
        self._copies: dict[tuple[object, ...], _Copy] = {}
        """In order of use: the copy that was requested last is the last one."""
        self._memory = 0
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
            self._close(next(iter(self._copies)))
        in_memory = self._make_room(min(edit.copied_size(now.st_size), now.st_blocks * _BLOCK))
        fd = altered_copy(os, path, edit, os.O_RDWR, source=source, in_memory=in_memory)
        copy = os.fstat(fd)
        self.originals[copy.st_dev, copy.st_ino] = path
        entry = _Copy(path, fd, copy.st_size, copy.st_blocks * _BLOCK if in_memory else 0)
        self._memory += entry.memory
        return entry

    def _make_room(self, size: int) -> bool:
        """Whether *size* more bytes may be in memory, after unused copies are closed for them."""
        if size > _IN_MEMORY:
            return False
        for key, copy in tuple(self._copies.items()):
            if self._memory + size <= _ALL_IN_MEMORY:
                break
            if copy.memory and _is_unused(copy.fd):
                self._close(key)
        return self._memory + size <= _ALL_IN_MEMORY

    def _close(self, key: tuple[object, ...]) -> None:
        closed = self._copies.pop(key)
        if closed.is_lengthened:
            self._lengthened.add(closed.path)
        self._memory -= closed.memory
        os.close(closed.fd)


def _is_unused(fd: int) -> bool:
    """Whether nothing else has the file open or mapped."""
    import fcntl  # Windows has none, and imports this module for the copies of a folder.

    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    return False


def reopen(fd: int, flags: int) -> int:
    """A description of the same file with its own offset, opened with *flags*."""
    return os.open(f"/proc/self/fd/{fd}", flags & os.O_ACCMODE | os.O_CLOEXEC)


def altered_copy(
    system: Any,
    path: str,
    edit: FileEdit,
    flags: int,
    *,
    source: str = "",
    in_memory: bool = True,
) -> int:
    """A descriptor of a nameless copy of *path* that differs by *edit*.

    *flags* decide whether it can be read or written. *source*: another name, by which *path* can be
    opened. *in_memory*: whether it may be there, if it is not too large.
    """
    original = system.open(source or path, os.O_RDONLY)
    try:
        size = system.fstat(original).st_size
        kept_size = edit.copied_size(size)
        extents = list(_data_extents(system, original, kept_size))

        def fill(copy: int) -> None:
            _fill(system, original, copy, kept_size, extents)
            _flip(system, copy, path, size, edit)

        length = sum(end - start for start, end in extents)
        return _make_nameless_file(
            system, path, flags, fill, in_memory=in_memory and length <= _IN_MEMORY
        )
    finally:
        system.close(original)


def copy_content(original: int, copy: int) -> None:
    """Write into *copy*, an empty file, what *original* has; both are descriptors."""
    length = os.fstat(original).st_size
    _fill(os, original, copy, length, _data_extents(os, original, length))


def _flip(system: Any, copy: int, path: str, size: int, edit: FileEdit) -> None:
    """Alter bytes of the *copy* of *path*, a file of *size* bytes."""
    for flips, seed in edit.flips:
        for place, mask in flip_masks(os.path.basename(path), size, flips, seed).items():
            if place < edit.copied_size(size):
                byte = system.pread(copy, 1, place)[0]
                system.pwrite(copy, bytes([byte ^ mask]), place)


def flip_masks(name: str, size: int, flips: int, seed: int) -> dict[int, int]:
    """Which bytes of a file of that name and size differ, and by which bits."""
    # As bytes, because a name may not be decodable (PEP 383), and str.encode() refuses that.
    stream = random.Random(os.fsencode(f"{seed}/{name}/{size}"))
    places = stream.sample(range(size), min(flips, size))
    return {place: stream.randrange(1, 256) for place in places}


def _data_extents(system: Any, fd: int, length: int) -> Iterator[tuple[int, int]]:
    """Where in its first *length* bytes a file has data: start and end of each stretch."""
    if not hasattr(system, "memfd_create"):  # Neither Linux nor its sparse files.
        yield 0, length
        return
    end = 0
    while end < length:
        try:
            start = system.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # All data is before *end*.
                raise
            return
        end = min(length, system.lseek(fd, start, os.SEEK_HOLE))
        if start < length:
            yield start, end


def _fill(
    system: Any, original: int, copy: int, length: int, extents: Iterable[tuple[int, int]]
) -> None:
    """Write the *extents* of *original* into *copy*, which gets this *length*."""
    system.ftruncate(copy, length)
    for start, end in extents:
        _copy(system, original, copy, start, end)


def _copy(system: Any, original: int, copy: int, start: int, end: int) -> None:
    while start < end:
        chunk = system.pread(original, min(end - start, _CHUNK), start)
        if not chunk:
            return
        start += system.pwrite(copy, chunk, start)


def _make_nameless_file(
    system: Any, path: str, flags: int, fill: Callable[[int], None], *, in_memory: bool
) -> int:
    """A nameless file that *fill* has filled."""
    written, name = _new_file(system, path, in_memory=in_memory)
    try:
        fill(written)
        return int(system.open(name, flags & os.O_ACCMODE | os.O_CLOEXEC))
    finally:
        system.close(written)
        if not name.startswith("/proc/"):
            system.unlink(name)


def _new_file(system: Any, path: str, *, in_memory: bool) -> tuple[int, str]:
    """A descriptor of a new file, and a name by which it can be opened again."""
    if hasattr(system, "scratch"):  # A fake file system.
        name = _random_name(system.scratch())
        return system.open(name, _NEW, 0o600), name
    if in_memory:
        label = os.fsencode(os.path.basename(path))[:200]  # The kernel takes 249 bytes.
        fd = system.memfd_create(os.fsdecode(label))
    else:
        fd = _open_unlinked(system, gettempdir())
    return fd, f"/proc/self/fd/{fd}"


_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


def _random_name(folder: str) -> str:
    return os.path.join(folder, f"pytest-dataloader-faults-{os.urandom(8).hex()}")


def _open_unlinked(system: Any, folder: str) -> int:
    """A file in *folder* without a name, which need not be removed if this process is killed."""
    try:
        return int(system.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    name = _random_name(folder)  # That file system has no such files.
    fd = int(system.open(name, _NEW | os.O_CLOEXEC, 0o600))
    system.unlink(name)
    return fd
