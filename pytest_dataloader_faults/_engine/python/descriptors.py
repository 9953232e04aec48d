"""The descriptors by which this worker reads and writes faulted files [runs in the worker].

A descriptor that C code closes is forgotten late: its number may be another file's by then. So an
entry holds good only while the number is still that file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from pytest_dataloader_faults._engine import policy as decisions
from pytest_dataloader_faults._engine.calls import CALLS, places_of
from pytest_dataloader_faults._engine.file_copies import altered_copy
from pytest_dataloader_faults._engine.policy import (
    BY_MAPPING,
    MAP,
    OF_EXCLUDED,
    OPEN,
    STAT,
    FaultPolicy,
    Operation,
)
from pytest_dataloader_faults._engine.system.proc import resolve_folder_link
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.base import Place

_LARGEST_NUMBER = 2**31 - 1
"""A descriptor is a C int. Every limit is far below this, so the number is never open."""


class Clock(Protocol):
    """How time passes."""

    def sleep(self, seconds: float) -> None:
        """Come back after *seconds*."""

    def hang(self) -> None:
        """Come back when the faults are disarmed."""


class DescriptorFile(NamedTuple):
    """What a number was when it was opened, and what this worker opened it for."""

    path: str
    identity: tuple[int, int]
    places: Place


class DescriptorTable:
    """Carries out what *policy* decides. *system* has the original functions of ``os``."""

    def __init__(self, policy: FaultPolicy, system: Any, clock: Clock) -> None:
        self.policy = policy
        self.system = system
        self._waits = clock
        self._tracked: dict[int, DescriptorFile] = {}
        self._handed_out: dict[int, str] = {}
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
        reads = Place.READ in places_of(flags)
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
        return self.track(fd, where, places_of(flags, exists=size is not None))

    @contextlib.contextmanager
    def count_shortage(self, where: str) -> Iterator[None]:
        """Count an opening of *where* that fails because there are too many descriptors."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.EMFILE:
                self.policy.note_allocation(Operation(OPEN, where), is_full=True)
            raise

    def track(self, fd: int, path: str, places: Place = Place.READ) -> int:
        """Remember that *fd* is *path*, opened for *places*, if that matters, and return it."""
        if places & (Place.READ | self.policy.faults.sees):
            self._tracked[fd] = DescriptorFile(path, self._identity(fd), places)
        return fd

    def forget(self, fd: int) -> None:
        """Forget *fd*, which is about to be closed."""
        self._tracked.pop(fd, None)
        self._handed_out.pop(fd, None)

    def track_duplicate(self, fd: int, duplicate: int, to: str) -> int:
        """Track *duplicate*, a duplicate of *fd*; code outside Python may read it unseen."""
        if tracked := self.observe(fd):
            self._tracked[duplicate] = tracked
            self.hand_out(duplicate, to)
        return duplicate

    def observe(self, fd: int) -> DescriptorFile | None:
        """The file of *fd*, if it is tracked. A replaced function uses *fd*: this is seen."""
        if receiver := self._handed_out.pop(fd, None):
            self.policy.count_unobserved(receiver, -1)
        return self._identify(fd)

    def use_matters(self, fd: int) -> bool:
        """Whether a read or a write of *fd* that goes unseen matters."""
        tracked, faults = self._identify(fd), self.policy.faults
        if tracked is None:
            return False
        is_read = Place.READ in tracked.places and faults.needs_reads_of(tracked.path)
        return is_read or faults.has_fault_in(tracked.path, tracked.places & ~Place.READ)

    def hand_out(self, fd: int, to: str) -> None:
        """Count *fd* as passed to code that may use it unseen, until it is passed back."""
        if fd not in self._handed_out and self.use_matters(fd):
            self._handed_out[fd] = to
            self.policy.count_unobserved(to)

    def allowed_length(self, fd: int, call: str, length: int, offset: int | None = None) -> int:
        """How many of *length* bytes a read may request; raises the error of a fault.

        Without *offset* it starts at the offset of *fd*.
        """
        tracked = self.observe(fd)
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

    def check_mapping(self, fd: int, length: int, offset: int) -> None:
        """Refuse a mapping whose pages would need to fail: only the kernel can do that."""
        tracked = self.observe(fd)
        if tracked and self.policy.faults.has_fault_in(tracked.path, tracked.places & ~Place.READ):
            self.policy.count_unobserved(BY_MAPPING)
        if tracked is None or not self.policy.faults.needs_reads_of(tracked.path):
            return
        length = length or self.system.fstat(fd).st_size - offset
        try:
            self.carry_out(
                self.policy.read_actions(Operation(MAP, tracked.path), offset, length), length
            )
        except OSError:
            self.policy.count_unobserved("mmap")
            message = (
                f"a read fault is due for {tracked.path}, but the file is being mapped, and Python"
                " does not see reads of a mapping. Use engine='kernel', or a fault that fails the"
                " open or truncates the file"
            )
            self.policy.refuse(message)
            raise InvalidArgumentError(message) from None

    def stat_result(self, path: Any, status: Any, dir_fd: int | None) -> Any:
        """*status*, with the size that the file has under its faults; raises if it is missing."""
        where = self.absolute(path, dir_fd)
        if not stat.S_ISREG(status.st_mode) or self.policy.is_exempt(where):
            return status
        operation = Operation(STAT, where)
        self.carry_out(self.policy.stat_actions(operation), 0)
        for action in self.policy.stat_size_actions(operation, status.st_size):
            if isinstance(action, decisions.Substitute) and action.edit.length is not None:
                return self.with_size(status, action.edit.length)
        return status

    def absolute(self, path: Any, dir_fd: int | None = None) -> str:
        """*path* as the kernel engine names it: absolute and normal, links not followed."""
        name = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(name):
            try:
                folder = os.fsdecode(self.system.readlink(f"/proc/self/fd/{dir_fd}"))
            except OSError:
                self.policy.count_unobserved("dir_fd")
                folder = "/dev/fd"
            name = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            name = resolve_folder_link(name, os.getpid())
        return os.path.abspath(name)

    def with_size(self, status: Any, size: int) -> Any:
        """*status*, a stat result, with another size."""
        kind, (numbers, fields) = status.__reduce__()
        changed = [*numbers]
        changed[stat.ST_SIZE] = size
        return kind(changed, fields)

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


def total_length(buffers: Sequence[Any]) -> int:
    """The bytes of all *buffers* together."""
    return sum(memoryview(each).nbytes for each in buffers)


def slice_buffers(length: int, buffers: Sequence[Any]) -> list[memoryview]:
    """The first *length* bytes of *buffers*."""
    views = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")[:length]
        views.append(view)
        length -= len(view)
    return views
