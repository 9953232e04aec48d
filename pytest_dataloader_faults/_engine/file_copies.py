"""Altered copies of files, so that the user's own are never touched."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.globs import is_below
from pytest_dataloader_faults.outcomes.text import format_value

CALLS_USER_CODE = True


# Some facts about memfd_create(2): the file it makes is anonymous, lives in memory, and goes with
# its last descriptor or mapping. Opening it again through /proc/self/fd creates a separate
# description, with its own offset. fstat, lseek, read and mmap all agree on its size. Touching a
# mapping beyond that size raises SIGBUS, exactly as a page that the disk cannot deliver does. What
# is too large for memory goes to an unlinked file in the folder for temporary files, which behaves
# the same. Holes of a sparse file stay holes (SEEK_DATA, see lseek(2)).
#
# Some facts about memory. A worker may have any number of copies open or mapped, and as long as it
# does, closing them here frees nothing. So one supervisor makes copies of 256 MiB in memory, and
# all others on disk. And as each copy takes a descriptor, only the latest ones are kept.


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
    if in_memory:
        label = os.fsencode(os.path.basename(path))[:200]  # The kernel takes 249 bytes.
        return os.memfd_create(os.fsdecode(label))
    with tempfile.TemporaryFile(buffering=0) as file:  # It goes if this process is killed.
        return os.dup(file.fileno())


_FICLONE = 0x40049409
"""Of linux/fs.h: the copy has the blocks of the original, until either is written to."""
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR)


def copy_folder(folder: str, to: str) -> None:
    """Make *to*, which does not exist yet, a copy of *folder*.

    Files keep their times and modes.

    Raises:
        InvalidArgumentError: *folder* contains *to*, or what is neither a file nor a folder.
        OSError: A file cannot be read or written.
    """
    within = os.path.dirname(to)
    if is_below(os.path.realpath(within), [os.path.realpath(folder)]):
        message = f"copy={format_value(folder)} must be a folder that does not contain {within!r}"
        raise InvalidArgumentError(f"{message}, where copies are created (see TMPDIR)")
    _copy_entries(folder, to, {})


def _copy_entries(folder: str, to: str, around: dict[str, str]) -> None:
    """Make *to* a copy of *folder*; *around*: by their real paths, the copies of folders above."""
    around = {**around, os.path.realpath(folder): to}
    (root, copied_root), *_ = around.items()
    os.mkdir(to, 0o700)
    for name in sorted(os.listdir(folder)):
        path, copy = os.path.join(folder, name), os.path.join(to, name)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if not os.path.islink(path) or error.errno not in (*_LEADS_NOWHERE, errno.ELOOP):
                raise
            nowhere = os.path.join(f"{copied_root}.missing", "file")
            os.symlink(name if error.errno == errno.ELOOP else nowhere, copy)
            continue
        if stat.S_ISREG(mode):
            _copy_file(path, copy)
        elif not stat.S_ISDIR(mode):
            message = f"{path} is neither a file nor a folder, so it cannot be copied. Remove it"
            raise InvalidArgumentError(message)
        elif (real := os.path.realpath(path)) in around:
            os.symlink(os.path.relpath(around[real], to), copy)
        elif is_below(root, [real]):
            message = f"{path} is a link to {real}, which contains the folder. Remove the link"
            raise InvalidArgumentError(message)
        else:
            _copy_entries(path, copy, around)
    shutil.copystat(folder, to)  # Last, as it may be read-only.


def _copy_file(path: str, to: str) -> None:
    with open(path, "rb") as original, open(to, "x+b") as copy:
        try:
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        except OSError:  # The file system cannot share blocks.
            _fill(original.fileno(), copy.fileno(), os.fstat(original.fileno()).st_size)
    shutil.copystat(path, to)
