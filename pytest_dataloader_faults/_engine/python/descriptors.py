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
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pytest_dataloader_faults._engine import policy as decisions
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.file_copies import altered_copy, unrelated_file
from pytest_dataloader_faults._engine.policy import (
    MAP,
    OF_EXCLUDED,
    OPEN,
    STAT,
    FaultPolicy,
    Operation,
    written,
)
from pytest_dataloader_faults._engine.system.proc import behind_folder_link
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_LARGEST_NUMBER = 2**31 - 1
"""A descriptor is a C int. No limit lets one get that high, so the number is never open."""


class Clock(Protocol):
    """How time passes."""

    def sleep(self, seconds: float) -> None:
        """Come back after *seconds*."""

    def hang(self) -> None:
        """Come back when the faults are disarmed."""


class TrackedFile(NamedTuple):
    """What a number was when it was opened; whether this worker opened it to read or to write."""

    path: str
    identity: tuple[int, int]
    reads: bool
    writes: bool


class DescriptorTable:
    """Carries out what *policy* decides. *system* has the original functions of ``os``."""

    def __init__(self, policy: FaultPolicy, system: Any, clock: Clock) -> None:
        self.policy = policy
        self.system = system
        self._waits = clock
        self._tracked: dict[int, TrackedFile] = {}
        self._handed_out: dict[int, str] = {}
        self._never_open = itertools.count(_LARGEST_NUMBER, -1)

    def may_have_faults(self, file: Any) -> bool:
        """Whether *file*, as given to open(), is a path or number that faults may be about."""
        if isinstance(file, int):
            return self._identified(file) is not None
        is_path = isinstance(file, (str, bytes, os.PathLike))
        return is_path and not self._leaves_alone(self.absolute(file))

    def _leaves_alone(self, path: str) -> bool:
        """Whether an open of *path* has no faults. What may be data is counted."""
        if not self.policy.leaves_alone(path):
            return False
        if self.policy.spares_data(path) and self._kind_and_size(path)[0] == stat.S_IFREG:
            self.policy.count_unobserved(OF_EXCLUDED)
        return True

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """os.open(), with a descriptor of the file, of its substitute or of nothing."""
        where = self.absolute(path, dir_fd)
        kind, size = self._kind_and_size(where)
        if kind not in (None, stat.S_IFREG) or self._leaves_alone(where):
            return int(self.system.open(path, flags, mode, dir_fd=dir_fd))
        for action in self.policy.opened(Operation(OPEN, where), size, reads=_reads(flags)):
            if isinstance(action, decisions.Fail):
                raise OSError(action.errno, os.strerror(action.errno), os.fspath(path))
            if isinstance(action, decisions.Closed) and not action.reuse:
                return next(self._never_open)
            with self.counting_shortage(where):
                return self.track(self._instead(action, where, flags), where)
        with self.counting_shortage(where):
            fd = int(self.system.open(path, flags, mode, dir_fd=dir_fd))
        reads = size is not None and _reads(flags)
        return self.track(fd, where, reads=reads, writes=bool(flags & os.O_ACCMODE))

    def _instead(self, action: decisions.Action, path: str, flags: int) -> int:
        """A descriptor of what *action* puts in the place of *path*."""
        if isinstance(action, decisions.Substitute):
            return altered_copy(self.system, path, action.edit, flags)
        return unrelated_file(self.system, path, flags)

    @contextlib.contextmanager
    def counting_shortage(self, where: str) -> Iterator[None]:
        """Count an opening of *where* that fails since there are too many descriptors."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.EMFILE:
                self.policy.allocated(Operation(OPEN, where), is_full=True)
            raise

    def track(self, fd: int, path: str, *, reads: bool = True, writes: bool = False) -> int:
        """Remember that *fd* is *path*, if that matters, and give it back."""
        if reads or (writes and self.policy.faults.sees_writes):
            self._tracked[fd] = TrackedFile(path, self._identity(fd), reads, writes)
        return fd

    def forget(self, fd: int) -> None:
        """Forget *fd*, which is about to be closed."""
        self._tracked.pop(fd, None)
        self._handed_out.pop(fd, None)

    def track_duplicate(self, fd: int, other: int, to: str) -> int:
        """Track *other*, a duplicate of *fd*; code outside Python may read it unseen."""
        if tracked := self.observe(fd):
            self._tracked[other] = tracked
            self.hand_out(other, to)
        return other

    def observe(self, fd: int) -> TrackedFile | None:
        """The file of *fd*, if it is tracked. A replaced function uses *fd*: this is seen."""
        if what := self._handed_out.pop(fd, None):
            self.policy.count_unobserved(what, -1)
        return self._identified(fd)

    def use_matters(self, fd: int) -> bool:
        """Whether a read or a write of *fd* that goes unseen matters."""
        tracked, faults = self._identified(fd), self.policy.faults
        if tracked is None:
            return False
        is_read = tracked.reads and faults.needs_reads_of(tracked.path)
        return is_read or (tracked.writes and faults.needs_writes_of(tracked.path))

    def hand_out(self, fd: int, to: str) -> None:
        """Count *fd* as given to code that may use it unseen, until it comes back."""
        if fd not in self._handed_out and self.use_matters(fd):
            self._handed_out[fd] = to
            self.policy.count_unobserved(to)

    def allowed_length(self, fd: int, call: str, length: int, offset: int | None = None) -> int:
        """How many of *length* bytes a read may ask for; raises what the read is to raise.

        Without *offset* it begins where *fd* stands.
        """
        tracked = self.observe(fd)
        if tracked is None or not self.policy.faults.needs_reads_of(tracked.path):
            return length
        start, left = 0, 0
        if CALLS[call].reads_into_buffers:
            start = self.system.lseek(fd, 0, os.SEEK_CUR) if offset is None else offset
            left = max(0, min(length, self.system.fstat(fd).st_size - start))
        return self._carry_out(self.policy.read(Operation(call, tracked.path), start, left), length)

    def length_to_write(self, fd: int, call: str, length: int = 0) -> int:
        """How many of *length* bytes a write may put into *fd*; raises what it is to raise."""
        tracked = self.observe(fd)
        if tracked is None or not self.policy.faults.sees_writes:
            return length
        if not tracked.writes:
            if self.policy.faults.needs_writes_of(tracked.path):
                self.policy.count_unobserved(decisions.OF_INHERITED)
            return length
        return self._carry_out(written(self.policy, Operation(call, tracked.path), length), length)

    def _carry_out(self, actions: decisions.Actions, length: int) -> int:
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
        """Refuse a mapping whose pages would have to fail: only the kernel can do that."""
        tracked = self.observe(fd)
        if tracked and tracked.writes and self.policy.faults.needs_writes_of(tracked.path):
            self.policy.count_unobserved(decisions.BY_MAPPING)
        if tracked is None or not self.policy.faults.needs_reads_of(tracked.path):
            return
        length = length or self.system.fstat(fd).st_size - offset
        try:
            self._carry_out(self.policy.read(Operation(MAP, tracked.path), offset, length), length)
        except OSError:
            self.policy.count_unobserved("mmap")
            message = (
                f"a read fault is due for {tracked.path}, which is being mapped, and a mapping is"
                " read without Python. Use engine='kernel', or a fault in its opening or length"
            )
            self.policy.refuse(message)
            raise InvalidArgumentError(message) from None

    def stat_result(self, path: Any, found: Any, dir_fd: int | None) -> Any:
        """*found*, with the size that the file has under its faults; raises if it is missing."""
        where = self.absolute(path, dir_fd)
        if not stat.S_ISREG(found.st_mode) or self.policy.leaves_alone(where):
            return found
        operation = Operation(STAT, where)
        self._carry_out(self.policy.named(operation), 0)
        for action in self.policy.size_of(operation, found.st_size):
            if isinstance(action, decisions.Substitute) and action.edit.kept is not None:
                return self.with_size(found, action.edit.kept)
        return found

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
            name = behind_folder_link(name, os.getpid())
        return os.path.abspath(name)

    def with_size(self, found: Any, size: int) -> Any:
        """*found*, a stat result, with another size."""
        kind, (numbers, named) = found.__reduce__()
        changed = [*numbers]
        changed[stat.ST_SIZE] = size
        return kind(changed, named)

    def _kind_and_size(self, path: str) -> tuple[int | None, int | None]:
        try:
            found = self.system.stat(path)
        except (OSError, ValueError):
            return None, None
        kind = stat.S_IFMT(found.st_mode)
        return kind, found.st_size if kind == stat.S_IFREG else None

    def _identified(self, fd: int) -> TrackedFile | None:
        tracked = self._tracked.get(fd)
        if tracked is None:
            return None
        with contextlib.suppress(OSError):
            if self._identity(fd) == tracked.identity:
                return tracked
        self.forget(fd)
        return None

    def _identity(self, fd: int) -> tuple[int, int]:
        found = self.system.fstat(fd)
        return found.st_dev, found.st_ino


def _reads(flags: int) -> bool:
    """Whether *flags* open an existing file in a way that allows reading it."""
    without = os.O_CREAT | os.O_TRUNC | os.O_PATH | os.O_DIRECTORY
    return not flags & without and flags & os.O_ACCMODE != os.O_WRONLY
