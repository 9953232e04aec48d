"""Faults of fake files, in the process that has them [runs in the DataLoader worker].

Some facts about pyfakefs. Each open() of a fake file leads through its function ``fake_open``,
which makes a ``FakeFileOpen`` and calls that. Code that imports a module opens the real file. From
Python 3.12 on, that call also reaches ``fake_open``, because ``io.open_code`` looks up ``_io.open``
by name. pyfakefs recognizes it by its stack: ``open_code`` must be exactly two frames up.

So there must not be another frame in between, and ``FakeFileOpen`` is replaced instead: calls that
reach it are meant for fake files. A file that faults may match is opened and read by its number, so
that the same code counts and fails reads of Python's files and of ``os.read``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import resource
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pytest_dataloader_faults._engine.fake import patcher
from pytest_dataloader_faults._engine.fake.descriptors import Clock, DescriptorTable
from pytest_dataloader_faults._engine.fake.notes import explain_errors
from pytest_dataloader_faults._engine.fake.replacements import (
    OsFunctions,
    open_with,
    read_all,
    replace_in_numpy,
)
from pytest_dataloader_faults._engine.policy import FaultPolicy

CALLS_USER_CODE = True


class _FaultedFakeIO(io.RawIOBase):
    """A fake file open for reading, which queries the policy before it opens and reads."""

    files: ClassVar[DescriptorTable]
    _blksize = io.DEFAULT_BUFFER_SIZE  # What open() needs from a FileIO, from Python 3.13 on.

    def __init__(self, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        super().__init__()
        self.name, self.mode, self.closefd = file, mode, closefd
        self._is_writable = "+" in mode
        flags = os.O_RDWR if self._is_writable else os.O_RDONLY
        opens = opener or self.files.open
        fd: int = file if isinstance(file, int) else opens(file, flags)
        self.files.system.fstat(fd)  # A descriptor that was closed at once raises here.
        self._fd = fd

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._fd

    def _isatty_open_only(self) -> bool:  # open() also calls this.
        return False

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self._is_writable

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """One read, or for a negative *size* as many as it takes."""
        if size is None or size < 0:
            return self.readall()
        allowed_length = self.files.allowed_length(self.fileno(), "read", size)
        return bytes(self.files.system.read(self._fd, allowed_length))

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Read to the end, with as many reads as a real file needs."""
        return read_all(self, self.files.system.fstat(self._fd).st_size)

    def write(self, data: Any, /) -> int:
        return int(self.files.system.write(self.fileno(), bytes(data)))

    def truncate(self, size: int | None = None, /) -> int:
        length = self.tell() if size is None else size
        self.files.system.ftruncate(self.fileno(), length)
        return length

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return int(self.files.system.lseek(self.fileno(), offset, whence))

    def close(self) -> None:
        """Close the file, and forget its number unless the number stays open."""
        if not self.closed and self.closefd and hasattr(self, "_fd"):
            self.files.forget(self._fd)
            self.files.system.close(self._fd)
        super().close()


def install(policy: FaultPolicy, clock: Clock, patcher: Any, *, scarce: bool) -> None:
    """Query *policy* about fake files from now on."""
    from pyfakefs import fake_open

    fake_os, true_opener = patcher.fake_modules["os"], fake_open.FakeFileOpen
    system = _FakeOs(patcher.fs, fake_os, true_opener, scarce=scarce)
    files = DescriptorTable(policy, system, clock, patcher.fs)
    _handle_inherited(files, patcher.fs)
    replace_in_numpy(_FaultedFakeIO)
    vars(fake_open).update(FakeFileOpen=_opener(files, true_opener))
    _replace_in_os(fake_os, files)
    _replace_sizes(patcher.fs, fake_os.path, files)


def _handle_inherited(files: DescriptorTable, fake: Any) -> None:
    """Refuse faults that match open files; reads of these are counted as unobserved."""
    for holders in fake.open_files:
        entry = holders[0].get_object() if holders else None
        path = getattr(entry, "path", None)  # Neither pipes nor the standard streams have one.
        if entry is None or not isinstance(path, str) or files.policy.is_exempt(path):
            continue
        if files.policy.inherited_fd_actions(path, entry.st_size):
            files.policy.refuse(
                f"a fault is due for {path!r}, which was open when the worker started. An open"
                " pyfakefs file can be neither closed nor replaced. Open it in the worker, or use"
                " real files, for example in pytest's tmp_path"
            )
        elif files.policy.faults.needs_reads_of(path):
            files.policy.count_unobserved("inherited descriptor")


def _opener(files: DescriptorTable, true_opener: Callable[..., Any]) -> Callable[..., Any]:
    """A ``FakeFileOpen`` that queries *files*."""
    kind = type("FileIO", (_FaultedFakeIO,), {"files": files})
    replaced_os = types.SimpleNamespace(fspath=os.fspath, fstat=files.system.fstat)
    around = open_with(FileIO=kind, os=replaced_os)

    def opens(fake: Any, file: Any, mode: str = "r", *arguments: Any) -> Any:
        may_have_faults = files.may_have_faults(file)
        if may_have_faults and not set("wax") & set(mode):
            return around(file, mode, *arguments)
        if may_have_faults:
            files.check_write(file)
        return true_opener(fake)(file, mode, *arguments)

    return lambda fake: functools.partial(opens, fake)


def _replace_in_os(fake_os: Any, files: DescriptorTable) -> None:
    """In the fake ``os``, and wherever a module has its own name for one of its functions."""
    calls = OsFunctions(files)
    replaced = ("open", "close", "dup", "dup2", "read", "pread")
    new = {name: getattr(calls, name) for name in replaced}
    new["lseek"] = files.system.lseek
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            is_of_os = type(value) is types.MethodType and value.__self__ is fake_os
            if is_of_os and (called := value.__func__.__name__) in new:
                setattr(module, name, new[called])
    vars(fake_os).update(new)


def _replace_sizes(fake: Any, path: Any, files: DescriptorTable) -> None:
    """Replace the two functions that return a size."""
    true_stat, true_size = fake.stat, path.getsize

    def stat(entry_path: Any, follow_symlinks: bool = True) -> Any:
        status = true_stat(entry_path, follow_symlinks)
        return status if isinstance(entry_path, int) else files.stat_result(entry_path, status)

    def getsize(entry_path: Any) -> int:
        size = true_size(entry_path)
        return int(stat(entry_path).st_size) if fake.isfile(entry_path) else int(size)

    fake.stat, path.getsize = stat, getsize


# Some facts about pyfakefs' own. Its ``os.lseek`` returns nothing. Its ``os.open`` sets the mode of
# a file that exists already, by which one that may not be read becomes readable. It has no
# ``pread``: the real one gets the fake number. Its ``os.close`` fails after the fake file system is
# removed, when files that were kept are closed. Before 6.3, its ``os.ftruncate`` does not find any
# file. And any number of fake files can be open.


_SCRATCH = "/.pytest-dataloader-faults"


class _FakeOs:
    """What ``system`` is to ``DescriptorTable``. *fake_os* and *opener* are pyfakefs' own.

    *scarce*: the limit of open files may be lowered, and also applies to fake ones.
    """

    def __init__(self, files: Any, fake_os: Any, opener: Any, *, scarce: bool) -> None:
        self._files = files
        self._os = fake_os
        self._stat = files.stat
        self._opener = opener
        self.take_number = _FakeDescriptorLimit(files).take if scarce else lambda _path: None
        """Raises EMFILE if a real file could not be opened."""

    def __getattr__(self, name: str) -> Any:
        """All others are pyfakefs' own, even if they were replaced since."""
        return self._own(name)

    def _own(self, name: str) -> Any:
        return getattr(type(self._os), name).__get__(self._os)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open as os.open() does, but do not change the mode of a file opened for reading."""
        self.take_number(path)
        plain = flags & ~os.O_CLOEXEC in (os.O_RDONLY, os.O_RDWR)
        if dir_fd is None and plain and not self._files.isdir(path):
            file_mode = "r+b" if flags & os.O_RDWR else "rb"
            file = self._opener(self._files)(path, file_mode, 0)
            file.raw_io = True
            return int(file.fileno())
        return int(self._own("open")(path, flags, mode, dir_fd=dir_fd))

    def close(self, fd: int) -> None:
        self._files.get_open_file(fd).close_fd(fd)

    def scratch(self) -> str:
        """A folder for files that soon lose their names, on a disk without limits."""
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
        position = self.lseek(fd, 0, os.SEEK_CUR)
        try:
            self.lseek(fd, offset, os.SEEK_SET)
            yield
        finally:
            self.lseek(fd, position, os.SEEK_SET)


class _FakeDescriptorLimit:
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


_FIRST_NUMBER = 4096
"""Of the fake descriptors. Real ones are lower, so that neither is ever taken for the other."""


_patched: set[int] = set()
"""The process that is patched. A process that it forks is patched again."""


def patch_for_good(current: Any) -> None:
    """Let every file access in this process see the fake files: all of them are the user's."""
    if os.getpid() in _patched:
        return
    _patched.add(os.getpid())
    explain_errors()
    for module in (current, *current.fake_modules.values()):  # Also those that pyfakefs skips.
        if hasattr(module, "skip_names"):
            module.skip_names = set()
    separate_fd_range(current)


def separate_fd_range(current: Any) -> None:
    """Give fake descriptors their own range of numbers, and pyfakefs a pread().

    A number that C code takes for a real one (np.fromfile, mmap) is then not open, where it could
    be that of a pipe between the loader and its workers.
    """
    files, fake_os = current.fs, current.fake_modules["os"]
    files.open_files.extend([None] * (_FIRST_NUMBER - len(files.open_files)))
    fake_os.pread = _FakeOs(files, fake_os, None, scarce=False).pread


class PatchWorker:
    """A ``worker_init_fn`` that patches its worker permanently and then runs the user's own."""

    def __init__(self, init_fn: Callable[[int], object] | None) -> None:
        self._then = init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        patch_for_good(patcher())
        if self._then is not None:
            self._then(worker)
