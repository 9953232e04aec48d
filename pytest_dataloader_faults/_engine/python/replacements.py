"""Replacements for functions of ``os``, for open() and for file objects [runs in the worker].

Each takes the arguments of the function that it replaces. Functions that neither read nor duplicate
are replaced as well: a number that C code got, and that one of them receives, was not read unseen.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]  # it lacks stubs
import abc
import inspect
import io
import mmap
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from pytest_dataloader_faults._engine.python.descriptors import (
    DescriptorTable,
    slice_buffers,
    total_length,
)
from pytest_dataloader_faults._engine.python.output import OutputFileIO, OutputFunctions

REPLACED = (
    *("open", "close", "dup", "dup2", "stat", "lstat", "read", "readinto", "pread", "readv"),
    *("preadv", "sendfile", "copy_file_range", "splice", "write", "pwrite", "writev", "pwritev"),
    *("posix_fallocate", "fsync", "fdatasync"),
)
"""Functions of ``os`` that ``OsFunctions`` has a method for."""
OBSERVED = (
    *("fstat", "lseek", "isatty", "posix_fadvise", "ftruncate"),
    *("get_inheritable", "set_inheritable", "get_blocking", "set_blocking"),
)
"""Functions of ``os`` whose first argument is a descriptor, which they neither read nor write."""
STARTERS = ("execv", "execve", "posix_spawn", "posix_spawnp", "system", "fork", "forkpty")
"""Functions of ``os`` that start a program or process, whose reads are not counted here."""


def name_caller(depth: int) -> str:
    """The function *depth* frames above the caller, with its module."""
    frame = sys._getframe(depth + 1)
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"


class OsFunctions(OutputFunctions):
    """The replacements, by the names that they have in ``os``."""

    def __init__(self, files: DescriptorTable) -> None:
        self._files = files
        self._system = files.system

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return self._files.open(path, flags, mode, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        self._files.forget(fd)
        self._system.close(fd)

    def dup(self, fd: int, /) -> int:
        return self._files.track_duplicate(fd, self._system.dup(fd), f"dup in {name_caller(2)}")

    def dup2(self, fd: int, fd2: int, inheritable: bool = True) -> int:
        self._files.forget(fd2)
        duplicate = self._system.dup2(fd, fd2, inheritable)
        return self._files.track_duplicate(fd, duplicate, f"dup2 in {name_caller(2)}")

    def control(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replace fcntl.fcntl(), which can duplicate a descriptor."""
        import fcntl

        def call(fd: Any, command: int, argument: Any = 0, /) -> Any:
            if command in (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC):
                duplicate = original(fd, command, argument)
                return self._files.track_duplicate(fd, duplicate, f"F_DUPFD in {name_caller(2)}")
            self._files.observe(fd)
            return original(fd, command, argument)

        return call

    def read(self, fd: int, length: int, /) -> bytes:
        allowed_length = self._files.allowed_length(fd, "read", length)
        return self._system.read(fd, allowed_length)  # type: ignore[no-any-return]

    def readinto(self, fd: int, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        allowed_length = self._files.allowed_length(fd, "read", len(view))
        return int(self._system.readinto(fd, view[:allowed_length]))

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        allowed_length = self._files.allowed_length(fd, "pread64", length, offset)
        return self._system.pread(fd, allowed_length, offset)  # type: ignore[no-any-return]

    def readv(self, fd: int, buffers: Sequence[Any], /) -> int:
        allowed_length = self._files.allowed_length(fd, "readv", total_length(buffers))
        return int(self._system.readv(fd, slice_buffers(allowed_length, buffers)))

    def preadv(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0, /) -> int:
        allowed_length = self._files.allowed_length(fd, "preadv2", total_length(buffers), offset)
        return int(self._system.preadv(fd, slice_buffers(allowed_length, buffers), offset, flags))

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        if isinstance(path, int):
            self._files.observe(path)
            return self._system.stat(path)
        status = self._system.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return self._files.stat_result(path, status, dir_fd)

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> Any:
        return self._files.stat_result(path, self._system.lstat(path, dir_fd=dir_fd), dir_fd)

    def wrap_observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replace *original*, which neither reads nor writes its first argument, a descriptor."""

        def call(fd: Any, *arguments: Any, **keywords: Any) -> Any:
            self._files.observe(fd)
            return original(fd, *arguments, **keywords)

        return call

    def wrap_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replace *original*, which starts a program or process."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._files.policy.count_unobserved(f"{original.__name__} in {name_caller(2)}")
            return original(*arguments, **keywords)

        return call


# Some facts about files of Python. open() makes a FileIO, and wraps it in a BufferedReader and that
# in a TextIOWrapper as its mode says. The last two are written in C and read by the methods of the
# one below (``readinto``, ``readall``), so that they use one which queries the policy first. The C
# code of open() does not accept another FileIO, but its twin in ``_pyio`` looks the name up among
# its globals. A copy with other globals returns what open() returns, in each version of Python.


class ReplacesClass(abc.ABCMeta):
    """A class that counts instances of the class it replaces as its own: older files are."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _find_replaced(cls)) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _find_replaced(cls)) or super().__subclasscheck__(subclass)


def _find_replaced(kind: type) -> Any:
    """The class that *kind* itself, and none that it derives from, is in the place of."""
    return vars(kind).get("replaces", ())


class FaultedFileIO(OutputFileIO, metaclass=ReplacesClass):
    """A FileIO that queries the policy before it opens, reads and writes."""

    files: ClassVar[DescriptorTable]

    def __init__(
        self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
    ) -> None:
        super().__init__(file, mode, closefd, opener or partial(self.files.open, mode=0o666))

    def fileno(self) -> int:
        """The number, which is watched from now on."""
        fd = super().fileno()
        self.files.hand_out(fd, f"fileno in {name_caller(1)}")
        return fd

    def use_matters(self) -> bool:
        """Whether a read or a write that goes unseen matters."""
        return not self.closed and self.files.use_matters(super().fileno())

    def read(self, size: int | None = -1, /) -> bytes:
        """One read, or for a negative *size* as many as it takes."""
        if size is None or size < 0:
            return self.readall()
        return super().read(self._allowed_length(size))

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        return super().readinto(view[: self._allowed_length(len(view))])

    def readall(self) -> bytes:
        """Read to the end, with as many reads as the C code makes."""
        return read_all(self, self.files.system.fstat(super().fileno()).st_size)

    def close(self) -> None:
        """Close the file, and forget its number unless the number stays open."""
        if not self.closed and self.closefd:
            self.files.forget(super().fileno())
        super().close()

    def _allowed_length(self, length: int) -> int:
        return self.files.allowed_length(super().fileno(), "read", length)


_CHUNK = io.DEFAULT_BUFFER_SIZE


def read_all(file: io.RawIOBase, size: int) -> bytes:
    """Reads of what is left of *size* and one byte more, until one returns nothing, as in C."""
    remaining = size - file.tell() if file.seekable() else 0
    result = bytearray()
    while chunk := file.read(max(remaining + 1 - len(result), 1) if remaining > 0 else _CHUNK):
        result += chunk
    return bytes(result)


class FaultedMapping(mmap.mmap, metaclass=ReplacesClass):
    """An mmap that queries the policy before it maps."""

    files: ClassVar[DescriptorTable]

    def __new__(cls, fileno: int, length: int, *arguments: Any, **keywords: Any) -> Any:
        offset = keywords.get("offset", next(iter(arguments[3:]), 0))  # The sixth of mmap().
        cls.files.check_mapping(fileno, length, offset)
        return super().__new__(cls, fileno, length, *arguments, **keywords)


def bind(kind: type, files: DescriptorTable, original: type) -> Any:
    """Replace *original* with *kind*, which queries *files*."""
    body = {"files": files, "replaces": original, "__module__": original.__module__}
    return type(kind)(original.__name__, (kind,), body)


def open_with(**replacements: Any) -> Callable[..., Any]:
    """An open() that finds *replacements* among its globals."""
    twin = inspect.unwrap(_pyio.open)
    classes = ("BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper")
    world = vars(_pyio) | {name: getattr(io, name) for name in classes} | replacements
    return types.FunctionType(twin.__code__, world, "open", twin.__defaults__)


def uses_in_python(isfileobj: Callable[[object], bool]) -> Callable[[object], bool]:
    """Have np.load() and np.save() use the methods of a file that matters, as they do of others.

    numpy/lib/format.py: if ``isfileobj`` is true of it, np.fromfile() takes its descriptor, and so
    does ``tofile``.
    """

    def call(file: object) -> bool:
        raw = getattr(file, "raw", file)
        is_ours = isinstance(raw, io.RawIOBase) and getattr(raw, "use_matters", bool)()
        return not is_ours and isfileobj(file)

    return call
