"""The functions of ``os`` for fake files, as the python engine needs them [runs in the worker].

Some facts about pyfakefs' own. Its ``os.lseek`` returns nothing. Its ``os.open`` sets the mode of a
file that exists already, by which one that may not be read becomes readable. It has no ``pread``:
the real one gets the fake number. Its ``os.close`` fails once the fake file system is gone, when
files that were kept are closed. Before 6.3 its ``os.ftruncate`` knows no file at all. And any
number of fake files can be open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from typing import Any

_SCRATCH = "/.pytest-dataloader-faults"


class FakeOs:
    """What ``system`` is to ``DescriptorTable``. *fake_os* and *opener* are pyfakefs' own.

    *scarce*: the limit of open files may be lowered, and holds for fake ones, too.
    """

    def __init__(self, files: Any, fake_os: Any, opener: Any, *, scarce: bool) -> None:
        self._files = files
        self._os = fake_os
        self._stat = files.stat
        self._opener = opener
        self.take_number = FakeDescriptorLimit(files).take if scarce else lambda _path: None
        """Raises EMFILE where a real file could not be opened."""

    def __getattr__(self, name: str) -> Any:
        """All others are pyfakefs' own, whatever has come in their place since."""
        return self._own(name)

    def _own(self, name: str) -> Any:
        return getattr(type(self._os), name).__get__(self._os)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As os.open(), for reading without a change of the mode."""
        self.take_number(path)
        plain = flags & ~os.O_CLOEXEC in (os.O_RDONLY, os.O_RDWR)
        if dir_fd is None and plain and not self._files.isdir(path):
            how = "r+b" if flags & os.O_RDWR else "rb"
            file = self._opener(self._files)(path, how, 0)
            file.raw_io = True
            return int(file.fileno())
        return int(self._own("open")(path, flags, mode, dir_fd=dir_fd))

    def close(self, fd: int) -> None:
        self._files.get_open_file(fd).close_fd(fd)

    def scratch(self) -> str:
        """A folder for files that have no name for long, on a disk without limits."""
        if not self._files.exists(_SCRATCH):
            self._files.add_mount_point(_SCRATCH)
        return _SCRATCH

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        if dir_fd is not None:
            return self._own("stat")(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return self._stat(path, follow_symlinks)

    def lseek(self, fd: int, place: int, whence: int) -> int:
        file = self._files.get_open_file(fd)
        file.seek(place, whence)
        return int(file.tell())

    def ftruncate(self, fd: int, length: int) -> None:
        self._files.get_open_file(fd).get_object().size = length

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        with self._at(fd, offset):
            return bytes(self.read(fd, length))

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        with self._at(fd, offset):
            return int(self.write(fd, data))

    @contextlib.contextmanager
    def _at(self, fd: int, offset: int) -> Iterator[None]:
        before = self.lseek(fd, 0, os.SEEK_CUR)
        try:
            self.lseek(fd, offset, os.SEEK_SET)
            yield
        finally:
            self.lseek(fd, before, os.SEEK_SET)


class FakeDescriptorLimit:
    """The limit of open files. Each fake file that is opened after it changed needs a number."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self._limit, self._before = _soft_limit(), self._held()

    def take(self, path: Any) -> None:
        """Raise EMFILE unless this many real files could be opened, and one more."""
        if self._limit != (limit := _soft_limit()):
            self._limit, self._before = limit, self._held()
        numbers: list[int] = []
        try:
            for _ in range(max(0, self._held() - self._before) + 1):
                numbers.append(os.open("/dev/null", os.O_RDONLY))  # noqa: PERF401  # kept if it fails
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path) from None
        finally:
            for number in numbers:
                os.close(number)

    def _held(self) -> int:
        return sum(1 for each in self._files.open_files if each)


def _soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
