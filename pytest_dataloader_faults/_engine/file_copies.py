"""Altered copies of files, so that the user's own are never touched.

The supervisor makes them for the kernel engine, the worker itself for the python engine. *system*
has the functions of ``os``: the real ones, or those of a fake file system.

Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with its
last descriptor or mapping. Opening it again through /proc/self/fd gives a description of its own,
with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a mapping beyond
that size raises SIGBUS, exactly as a page that the disk cannot deliver does. What is too large for
memory goes to an unlinked file in the folder for temporary files, which behaves the same. Holes of
a sparse file stay holes (SEEK_DATA, see lseek(2)).

Some facts about memory. A dataset of many large files would fill it with their copies, so the
copies of one supervisor take 256 MiB of it at most. Most datasets close a file before they open the
next, so the oldest copies go first, and are made again if they are asked for again. But closing a
descriptor frees no memory while a worker has the copy open or mapped. A write lease tells that
(F_SETLEASE, see fcntl(2)): the kernel grants none while anything else has the file open. Where the
copies that are in use leave no room, the next one goes to the disk.
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

_CHUNK = 1 << 22
_IN_MEMORY = 1 << 26
"""Bytes of the largest copy that is made in memory."""
_ALL_IN_MEMORY = 1 << 28
"""Bytes that the copies of one supervisor take in memory together."""
_BLOCK = 512
"""The unit of st_blocks, see stat(2)."""
_NOTICE = b"This descriptor belongs to another file now. " * 1456
"""The beginning of an unrelated file: 64 KiB of text."""


@dataclass(frozen=True)
class FileEdit:
    """How a copy differs from its original. Each of *flips*: how many bytes, and a seed."""

    kept: int | None = None
    flips: tuple[tuple[int, int], ...] = ()

    def left_of(self, size: int) -> int:
        """How long the copy of a file of *size* bytes is."""
        return size if self.kept is None else min(size, self.kept)


class _Copy(NamedTuple):
    """The descriptor of a copy, and how many bytes the copy takes in memory."""

    fd: int
    memory: int


class FileCopies:
    """Altered copies of real files, kept while there is room; and the empty file."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], _Copy] = {}
        """The copy that was asked for last is the last one."""
        self._memory = 0
        self.empty = os.memfd_create("pytest-dataloader-faults-unreadable")
        self.release: Callable[[], None] = lambda: None
        """Closes the owner's own descriptors of copies that no worker has open."""

    def altered(self, path: str, edit: FileEdit, source: str) -> int:
        """A descriptor of the copy of *path* that differs by *edit*.

        *source*: another name, by which *path* can be opened.
        """
        now = os.stat(source)
        key = (path, edit, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)
        made = self._made.pop(key, None) or self._make(path, edit, source, now)
        self._made[key] = made
        return made.fd

    def shrink(self) -> None:
        """Close the older half. A copy can be made again."""
        for key in tuple(self._made)[: (len(self._made) + 1) // 2]:
            self._close(key)

    def _make(self, path: str, edit: FileEdit, source: str, now: os.stat_result) -> _Copy:
        in_memory = self._make_room(min(edit.left_of(now.st_size), now.st_blocks * _BLOCK))
        fd = altered_copy(os, path, edit, os.O_RDWR, source=source, in_memory=in_memory)
        made = _Copy(fd, os.fstat(fd).st_blocks * _BLOCK if in_memory else 0)
        self._memory += made.memory
        return made

    def _make_room(self, wanted: int) -> bool:
        """Whether *wanted* more bytes may be in memory, where unused copies are closed for them."""
        if wanted > _IN_MEMORY:
            return False
        if self._memory + wanted > _ALL_IN_MEMORY:
            self.release()
        for key, made in tuple(self._made.items()):
            if self._memory + wanted <= _ALL_IN_MEMORY:
                break
            if made.memory and _is_unused(made.fd):
                self._close(key)
        return self._memory + wanted <= _ALL_IN_MEMORY

    def _close(self, key: tuple[object, ...]) -> None:
        closed = self._made.pop(key)
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
    """A description of the same file with an offset of its own, for what *flags* ask for."""
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

    *flags* say whether it can be read or written. *source*: another name, by which *path* can be
    opened. *in_memory*: whether it may be there, if it is not too large.
    """
    original = system.open(source or path, os.O_RDONLY)
    try:
        size = system.fstat(original).st_size
        kept = edit.left_of(size)
        extents = list(_data_extents(system, original, kept))

        def fill(copy: int) -> None:
            _fill(system, original, copy, kept, extents)
            _flip(system, copy, path, size, edit)

        length = sum(end - start for start, end in extents)
        return _nameless(system, path, flags, fill, in_memory=in_memory and length <= _IN_MEMORY)
    finally:
        system.close(original)


def copy_content(system: Any, original: int, copy: int, path: str, edit: FileEdit) -> None:
    """Write into *copy*, an empty file, what *original* has, changed by *edit*.

    Both are descriptors. *path*: that of the original, whose name decides which bytes differ.
    """
    size = system.fstat(original).st_size
    kept = edit.left_of(size)
    _fill(system, original, copy, kept, _data_extents(system, original, kept))
    _flip(system, copy, path, size, edit)


def _flip(system: Any, copy: int, path: str, size: int, edit: FileEdit) -> None:
    """Alter bytes of the *copy* of *path*, a file of *size* bytes."""
    for flips, seed in edit.flips:
        for place, mask in flipped(os.path.basename(path), size, flips, seed).items():
            if place < edit.left_of(size):
                byte = system.pread(copy, 1, place)[0]
                system.pwrite(copy, bytes([byte ^ mask]), place)


def unrelated_file(system: Any, path: str, flags: int, *, source: str = "") -> int:
    """A descriptor of a nameless file as long as *path*, which has nothing to do with it.

    *source*: another name of *path*.
    """
    size = system.stat(source or path).st_size

    def fill(to: int) -> None:
        system.write(to, _NOTICE[:size])
        system.ftruncate(to, size)

    return _nameless(system, path, flags, fill)


def flipped(name: str, size: int, flips: int, seed: int) -> dict[int, int]:
    """Which bytes of a file of that name and size differ, and by which bits."""
    # As bytes, since a name may hold some that are no text (PEP 383), which str.encode() refuses.
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
            if error.errno != errno.ENXIO:  # There is no data behind *end*.
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


def _nameless(
    system: Any, path: str, flags: int, fill: Callable[[int], None], *, in_memory: bool = True
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
        made = system.memfd_create(os.fsdecode(label))
    else:
        made = _unlinked(system, gettempdir())
    return made, f"/proc/self/fd/{made}"


_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


def _random_name(folder: str) -> str:
    return os.path.join(folder, f"pytest-dataloader-faults-{os.urandom(8).hex()}")


def _unlinked(system: Any, folder: str) -> int:
    """A file in *folder* without a name, which need not be removed if this process is killed."""
    try:
        return int(system.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    name = _random_name(folder)  # That file system has no such files.
    made = int(system.open(name, _NEW | os.O_CLOEXEC, 0o600))
    system.unlink(name)
    return made
