"""What a loader's workers need of this machine, and whether a trial failed for want of it.

Some facts about what a loader takes (torch 2.13, fork, measured by taking away until a trial of
small samples failed). Descriptors, besides those that are open as it starts: 16 with one worker, 20
with two, 26 with four, 41 with eight. In /dev/shm each lock of its queues is a file of one page,
and so is each tensor of a batch: 80 KiB with one worker, 96 with two, 112 with four. In the folder
for temporary files each worker that passes a tensor has a socket, which takes an inode and no
bytes. Where there is less, torch raises, or drops a batch and waits forever: either looks like a
flaw of the dataset. So a trial is refused where there is less than was ever enough.

Limits of processes add up: of the user, of each control group, of the machine. Only starting some
shows how many are left. One that has ended counts until it is waited for.

Some facts about the cause of such errors. "No space left on device" or "Too many open files" can be
a fault that was armed, a dataset that takes too much, or a machine that has too little. So an error
of that kind is the machine's only if no fault asked for it, and if the machine still lacks the
thing now that all of the trial's processes, files and shared memory are gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.children import reap
from pytest_dataloader_faults._engine.system.processes import MORE_PROCESSES, fork
from pytest_dataloader_faults._settings.jobs import Job
from pytest_dataloader_faults._trial.journal import (
    InternalError,
    JournalEvent,
    PassEnded,
    Refused,
    TrialEnded,
)
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError
from pytest_dataloader_faults.outcomes.text import counted

_SHARED = "/dev/shm"
_ORDINARY = 256
"""Descriptors: with fewer left, the limit is too low for an ordinary dataset."""
_PROCESSES = 64
_MEMORY = 64 << 20
_BYTES, _FILES = 1 << 20, 16
"""A file system that has less left is full."""
_SMALL = 1 << 30, 1 << 10
"""A file system that has less left is small."""
_SOCKETS = 8
_PAGE = resource.getpagesize()

_ALLOW = "Allow it, in the seccomp profile of the container for example"
_MORE_DESCRIPTORS = "Raise the limit: ulimit -n 4096"
_MORE_SHARED = (
    "Remove unused files from it, or make it larger: docker run --shm-size=1g, or mount -o"
    " remount,size=1g /dev/shm"
)
_WORDS = {
    errno.EMFILE: r"received 0 items of ancdata",
    errno.ENOSPC: r"insufficient shared memory|Disk quota exceeded",
    errno.EAGAIN: r"can't start new thread|pthread_create failed",
    errno.ENOMEM: r"Cannot allocate memory|DefaultCPUAllocator: can't allocate",
}
"""What errors say of each, besides its number and its text."""
_SCARCE = {*_WORDS, errno.ENFILE, errno.EDQUOT}
"""What the kernel answers when there is too little of something."""
_MOST_OF_LINE = 200


def _lack(what: str, found: str, remedy: str) -> UnusableEnvironmentError:
    return UnusableEnvironmentError(f"{what}: {found}. {remedy}. No dataset was judged", what)


class FreeResources(NamedTuple):
    """What the process that drives a loader has left before any code of the dataset ran."""

    limit: int
    opened: int
    shared: os.statvfs_result | None

    @classmethod
    def now(cls) -> FreeResources:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = 1 << 30 if soft == resource.RLIM_INFINITY else soft
        opened = proc.own_descriptors()
        return cls(limit, opened, _statvfs(_SHARED))

    def require_for(self, workers: int) -> None:
        """Refuse where this many *workers* cannot run: less than this was never enough."""
        if lack := self._few_descriptors(workers) or self._little_shared(workers):
            raise lack

    def _few_descriptors(self, workers: int) -> UnusableEnvironmentError | None:
        least = 13 + 3 * workers
        if self.limit - self.opened >= least:
            return None
        found = (
            f"{self.opened} are open and the limit is {self.limit}; a trial of a DataLoader with"
            f" num_workers={workers} needs {least} more, and its dataset needs some as well"
        )
        return _lack("too few file descriptors", found, _MORE_DESCRIPTORS)

    def _little_shared(self, workers: int) -> UnusableEnvironmentError | None:
        least = 10 + 3 * workers
        may_write = os.access(_SHARED, os.W_OK | os.X_OK)
        if self.shared is None or self.shared.f_flag & os.ST_RDONLY or not may_write:
            there = "not there" if self.shared is None else "not writable"
            found = f"{_SHARED} is {there}, and the queues of a DataLoader's workers need it"
            options = "docker run --shm-size=1g, or mount -o remount,rw"
            remedy = f"Mount it so that it can be written: {options}"
            return _lack("no shared memory", found, remedy)
        if not _is_full(self.shared, least * _PAGE, least):
            return None
        found = (
            f"{_left_of(_SHARED, self.shared)}; a trial of a DataLoader with num_workers={workers}"
            f" needs {_size(least * _PAGE)} and {counted(least, 'file')}, and its batches need more"
        )
        return _lack("too little shared memory", found, _MORE_SHARED)


def require_temporary_room() -> None:
    if lack := _little_temporary(0, _SOCKETS, f"{_SOCKETS} files are needed"):
        raise lack


def require_environment(job: Job, events: Iterable[JournalEvent], printed: str) -> None:
    """Raise if *events* or what *job* *printed* report a failure that this machine caused."""
    errors = list(_errors(events))
    if not errors:
        return
    armed = {each.errno for each in job.faults}
    if job.options.descriptors is not None:
        armed.add(errno.EMFILE)
    lines = "\n".join([*errors, printed]).splitlines()
    for number in _WORDS.keys() - armed:
        texts = rf"{re.escape(os.strerror(number))}|\bErrno {number}\b|{_WORDS[number]}"
        line = next((line.strip()[:_MOST_OF_LINE] for line in lines if re.search(texts, line)), "")
        if line and (lack := shortage(number, line)):
            raise lack


def _errors(events: Iterable[JournalEvent]) -> Iterator[str]:
    """The texts of what went wrong; that of a hang or a death is empty."""
    for event in events:
        match event:
            case TrialEnded(timed_out, exitcode) if timed_out or exitcode:
                yield ""
            case Refused(_, text) | InternalError(text):
                yield text
            case PassEnded() if event.found.exception:
                yield event.found.exception.text


@contextlib.contextmanager
def reported_as_shortage() -> Iterator[None]:
    """Report an OSError of the harness's own start as a shortage of this machine."""
    try:
        yield
    except OSError as error:
        if lack := forbidden(error):
            raise lack from error
        if error.errno not in _SCARCE:
            raise
        number = error.errno or 0
        text = f"{os.strerror(number)} ({error.filename or 'as a trial began'})"
        lack = shortage(number, text) or _lack("too little to begin with", text, "Free some")
        raise lack from error


def forbidden(error: OSError) -> UnusableEnvironmentError | None:
    """What this machine does not allow, if *error* of the harness's own code says so."""
    if error.errno not in (errno.EPERM, errno.ENOSYS):
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    found = f"{last.line} raised {type(error).__name__}: {error}, and every trial needs this call"
    return _lack("a system call is forbidden", found, _ALLOW)


def shortage(number: int, text: str) -> UnusableEnvironmentError | None:
    """What this machine lacks now, where *text* reports the errno *number*; None if nothing."""
    if number in (errno.EMFILE, errno.ENFILE):
        return _few_descriptors_left(text)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return _full_shared(text) or _little_temporary(_BYTES, _FILES, f"{text!r} was reported")
    return _few_processes(text) if number == errno.EAGAIN else _little_memory(text)


def _few_descriptors_left(text: str) -> UnusableEnvironmentError | None:
    limit, opened, _ = FreeResources.now()
    if limit - opened >= _ORDINARY:
        return None
    found = f"{text!r} was reported; the limit is {limit}, and pytest itself has {opened} open"
    return _lack("too few file descriptors", found, _MORE_DESCRIPTORS)


def _full_shared(text: str) -> UnusableEnvironmentError | None:
    """For an error text of torch a small /dev/shm is enough: the trial's files are gone by now."""
    room = _statvfs(_SHARED)
    by_torch = re.search(r"unable to .{,60}(shared memory|</torch_)", text)
    if room is None or not _is_full(room, *(_SMALL if by_torch else (_BYTES, _FILES))):
        return None
    found = f"{text!r} was reported, and {_left_of(_SHARED, room)}"
    return _lack("too little shared memory", found, _MORE_SHARED)


def _little_temporary(size: int, files: int, why: str) -> UnusableEnvironmentError | None:
    folder = tempfile.gettempdir()
    room = _statvfs(folder)
    if room is None or not _is_full(room, size, files):
        return None
    remedy = f"Free some of {folder}, or set TMPDIR to a folder that has room"
    return _lack("no room for temporary files", f"{_left_of(folder, room)}; {why}", remedy)


def _few_processes(text: str) -> UnusableEnvironmentError | None:
    children = []
    with contextlib.suppress(UnusableEnvironmentError):
        for _ in range(_PROCESSES):
            child = fork()
            if not child:
                os._exit(0)
            children.append(child)
    for child in children:
        reap(child)
    if len(children) == _PROCESSES:
        return None
    found = (
        f"{text!r} was reported, and only {counted(len(children), 'more process')} could be"
        " started; a trial"
        " takes three, and two for each worker, and its dataset may take more"
    )
    return _lack("too few processes", found, MORE_PROCESSES)


def _little_memory(text: str) -> UnusableEnvironmentError | None:
    left = proc.memory_left()
    if left is None or left >= _MEMORY:
        return None
    found = f"{text!r} was reported, and {_size(left)} are left"
    remedy = "End processes that take much, or give the machine or its control group more"
    return _lack("too little memory", found, remedy)


def _statvfs(folder: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _is_full(room: os.statvfs_result, size: int, files: int) -> bool:
    """Whether less is left than *size* bytes and *files* files; some have no limit of files."""
    return room.f_bavail * room.f_frsize < size or (room.f_files > 0 and room.f_favail < files)


def _left_of(folder: str, room: os.statvfs_result) -> str:
    left, size = (_size(count * room.f_frsize) for count in (room.f_bavail, room.f_blocks))
    files = f" and {counted(room.f_favail, 'file')}" if room.f_files else ""
    return f"{folder} has {left}{files} left (its size is {size})"


def _size(count: int) -> str:
    return f"{count >> 10} KiB" if count < _BYTES else f"{count >> 20} MiB"
