"""The descriptors by which this worker reads faulted fake files [runs in the worker]."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pytest_dataloader_faults._engine import policy as decisions
from pytest_dataloader_faults._engine.calls import CALLS, reads_file
from pytest_dataloader_faults._engine.file_copies import altered_copy
from pytest_dataloader_faults._engine.policy import OF_EXCLUDED, OPEN, STAT, FaultPolicy, Operation

CALLS_USER_CODE = True

_LARGEST_NUMBER = 2**31 - 1
"""A descriptor is a C int. Every limit is far below this, so the number is never open."""


class Clock(Protocol):
    """How time passes."""

    def sleep(self, seconds: float) -> None:
        """Come back after *seconds*."""

    def hang(self) -> None:
        """Come back when the faults are disarmed."""


class DescriptorFile(NamedTuple):
    """What a number was when it was opened."""

    path: str
    identity: tuple[int, int]


class DescriptorTable:
    """Carries out what *policy* decides about *files*, a fake file system.

    *system* has the original functions of its ``os``.
    """

    def __init__(self, policy: FaultPolicy, system: Any, clock: Clock, files: Any) -> None:
        self.policy = policy
        self.system = system
        self._waits = clock
        self._fake = files
        self._tracked: dict[int, DescriptorFile] = {}
        self._never_open = itertools.count(_LARGEST_NUMBER, -1)

    def may_have_faults(self, file: Any) -> bool:
        """Whether *file*, as passed to open(), is a path or number that faults may match."""
        if isinstance(file, int):
            return self._identify(file) is not None
        is_path = isinstance(file, (str, bytes, os.PathLike))
        return is_path and not self._leaves_alone(self.absolute(file))

    def _leaves_alone(self, path: str) -> bool:
        """Whether an open of *path* is without faults. What may be data is counted."""
        if not self.policy.is_exempt(path):
            return False
        if self.policy.may_exempt_data(path) and self._kind_and_size(path)[0] == stat.S_IFREG:
            self.policy.count_unobserved(OF_EXCLUDED)
        return True

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """os.open(), with a descriptor of the file, of its substitute or of nothing."""
        where = self.absolute(path, dir_fd)
        kind, size = self._kind_and_size(where)
        if kind not in (None, stat.S_IFREG) or self._leaves_alone(where):
            return int(self.system.open(path, flags, mode, dir_fd=dir_fd))
        reads = reads_file(flags)
        for action in self.policy.open_actions(Operation(OPEN, where), size, reads=reads):
            if isinstance(action, decisions.Fail):
                raise OSError(action.errno, os.strerror(action.errno), os.fspath(path))
            if isinstance(action, decisions.Closed):
                return next(self._never_open)
            assert isinstance(action, decisions.Substitute)
            with self.count_shortage(where):
                return self.track(altered_copy(self.system, where, action.edit, flags), where)
        with self.count_shortage(where):
            fd = int(self.system.open(path, flags, mode, dir_fd=dir_fd))
        return self.track(fd, where) if reads else fd

    def check_write(self, path: Any) -> None:
        """Raise the error with which opening *path* for writing alone should fail."""
        where = self.absolute(path)
        _, size = self._kind_and_size(where)
        for action in self.policy.open_actions(Operation(OPEN, where), size, reads=False):
            if isinstance(action, decisions.Fail):
                raise OSError(action.errno, os.strerror(action.errno), os.fspath(path))
        with self.count_shortage(where):
            self.system.take_number(path)

    @contextlib.contextmanager
    def count_shortage(self, where: str) -> Iterator[None]:
        """Count an opening of *where* that fails because there are too many descriptors."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.EMFILE:
                self.policy.note_allocation(Operation(OPEN, where), is_full=True)
            raise

    def track(self, fd: int, path: str) -> int:
        """Remember that *fd* is *path*, and return it."""
        self._tracked[fd] = DescriptorFile(path, self._identity(fd))
        return fd

    def forget(self, fd: int) -> None:
        """Forget *fd*, which is about to be closed."""
        self._tracked.pop(fd, None)

    def track_duplicate(self, fd: int, duplicate: int) -> int:
        """Remember that *duplicate* is the file of *fd*, and return it."""
        if tracked := self._identify(fd):
            self._tracked[duplicate] = tracked
        return duplicate

    def allowed_length(self, fd: int, call: str, length: int, offset: int | None = None) -> int:
        """How many of *length* bytes a read may request; raises the error of a fault.

        Without *offset* it starts at the offset of *fd*.
        """
        tracked = self._identify(fd)
        if tracked is None or not self.policy.faults.needs_reads_of(tracked.path):
            return length
        start, available = 0, 0
        if CALLS[call].reads_into_buffers:
            start = self.system.lseek(fd, 0, os.SEEK_CUR) if offset is None else offset
            available = max(0, min(length, self.system.fstat(fd).st_size - start))
        return self.carry_out(
            self.policy.read_actions(Operation(call, tracked.path), start, available), length
        )

    def carry_out(self, actions: decisions.Actions, length: int) -> int:
        """Let *actions* happen; how many of *length* bytes the call may transfer then."""
        for action in actions:
            if isinstance(action, decisions.Delay):
                self._waits.sleep(action.seconds)
            elif isinstance(action, decisions.Hang):
                self._waits.hang()
            elif isinstance(action, decisions.Fail):
                raise OSError(action.errno, os.strerror(action.errno))
            elif isinstance(action, decisions.Short):
                return min(length, action.max_bytes)
        return length

    def stat_result(self, path: Any, status: Any) -> Any:
        """*status*, with the size that the file has under its faults; raises if it is missing."""
        where = self.absolute(path)
        if not stat.S_ISREG(status.st_mode) or self.policy.is_exempt(where):
            return status
        operation = Operation(STAT, where)
        self.carry_out(self.policy.stat_actions(operation), 0)
        for action in self.policy.stat_size_actions(operation, status.st_size):
            if isinstance(action, decisions.Substitute) and action.edit.length is not None:
                return self.with_size(status, action.edit.length)
        return status

    def absolute(self, path: Any, dir_fd: int | None = None) -> str:
        """The absolute *path*, from the current folder of the fake file system."""
        if dir_fd is not None:
            folder = self._fake.get_open_file(dir_fd).get_object().path
            path = self._fake.joinpaths(folder, self._fake.make_string_path(path))
        return str(self._fake.absnormpath(os.fsdecode(self._fake.make_string_path(path))))

    def with_size(self, status: Any, size: int) -> Any:
        """A copy of *status*, of pyfakefs' own type, with another size."""
        changed = copy.copy(status)
        changed.st_size = size
        return changed

    def _kind_and_size(self, path: str) -> tuple[int | None, int | None]:
        try:
            status = self.system.stat(path)
        except (OSError, ValueError):
            return None, None
        kind = stat.S_IFMT(status.st_mode)
        return kind, status.st_size if kind == stat.S_IFREG else None

    def _identify(self, fd: int) -> DescriptorFile | None:
        tracked = self._tracked.get(fd)
        if tracked is None:
            return None
        with contextlib.suppress(OSError):
            if self._identity(fd) == tracked.identity:
                return tracked
        self.forget(fd)
        return None

    def _identity(self, fd: int) -> tuple[int, int]:
        status = self.system.fstat(fd)
        return status.st_dev, status.st_ino
