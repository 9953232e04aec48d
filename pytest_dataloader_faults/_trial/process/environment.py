"""What a loader's workers need of this machine, and whether a trial failed for want of it.

Some facts about what a loader takes (torch 2.13, fork, measured by taking away until a trial of
small samples failed). Descriptors, in addition to those that are open when it starts: 16 with one
worker, 20 with two, 26 with four, 41 with eight. In /dev/shm each lock of its queues is a file of
one page, and so is each tensor of a batch: 80 KiB with one worker, 96 with two, 112 with four. In
the folder for temporary files each worker that passes a tensor has a socket, which takes an inode
and no bytes. If there is less, torch raises, or drops a batch and waits forever: either looks like
a flaw of the dataset. So a trial is refused if there is less than was ever enough.

Limits of processes add up: of the user, of each control group, of the machine. Only starting some
shows how many are left. One that has ended counts until it is waited for.

Some facts about the cause of such errors. "No space left on device" or "Too many open files" can
come from an armed fault, from a dataset that uses too much, or from a machine that has too little.
So such an error is the machine's only if no fault could cause it, and if the machine still lacks
the resource after all of the trial's processes, files and shared memory were removed.
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
from pytest_dataloader_faults.outcomes.text import pluralize

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

_ALLOW = "Allow it, for example in the container's seccomp profile"
_MORE_DESCRIPTORS = "Raise the limit: ulimit -n 4096"
_MORE_SHARED = (
    "Remove unused files from /dev/shm, or make it larger: docker run --shm-size=1g, or mount -o"
    " remount,size=1g /dev/shm"
)
_WORDS = {
    errno.EMFILE: r"received 0 items of ancdata",
    errno.ENOSPC: r"insufficient shared memory|Disk quota exceeded",
    errno.EAGAIN: r"can't start new thread|pthread_create failed",
    errno.ENOMEM: r"Cannot allocate memory|DefaultCPUAllocator: can't allocate",
}
"""What errors say about each shortage, in addition to its errno and its message."""
_SCARCE = {*_WORDS, errno.ENFILE, errno.EDQUOT}
"""What the kernel answers when there is too little of something."""
_MOST_OF_LINE = 200


def _shortage_error(shortage: str, detail: str, remedy: str) -> UnusableEnvironmentError:
    return UnusableEnvironmentError(
        f"{shortage}: {detail}. {remedy}. No dataset was judged", shortage
    )


class FreeResources(NamedTuple):
    """What the process that drives a loader has left before any code of the dataset ran."""

    limit: int
    opened: int
    shared: os.statvfs_result | None

    @classmethod
    def now(cls) -> FreeResources:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = 1 << 30 if soft == resource.RLIM_INFINITY else soft
        opened = len(proc.descriptors("self")) - 1  # Not the one that lists them.
        return cls(limit, opened, _statvfs(_SHARED))

    def require_for(self, workers: int) -> None:
        """Refuse if this many *workers* cannot run: less than this was never enough."""
        if lack := self._find_descriptor_shortage(workers) or self._find_shared_memory_shortage(
            workers
        ):
            raise lack

    def _find_descriptor_shortage(self, workers: int) -> UnusableEnvironmentError | None:
        required = 13 + 3 * workers
        if self.limit - self.opened >= required:
            return None
        detail = (
            f"{self.opened} are open and the limit is {self.limit}, but a trial of a DataLoader"
            f" with num_workers={workers} needs {required} more, plus some for its dataset"
        )
        return _shortage_error("too few file descriptors", detail, _MORE_DESCRIPTORS)

    def _find_shared_memory_shortage(self, workers: int) -> UnusableEnvironmentError | None:
        required = 10 + 3 * workers
        may_write = os.access(_SHARED, os.W_OK | os.X_OK)
        if self.shared is None or self.shared.f_flag & os.ST_RDONLY or not may_write:
            state = "missing" if self.shared is None else "not writable"
            detail = f"{_SHARED} is {state}, but the queues of a DataLoader's workers need it"
            options = "docker run --shm-size=1g, or mount -o remount,rw"
            remedy = f"Mount it as writable: {options}"
            return _shortage_error("no shared memory", detail, remedy)
        if not _is_full(self.shared, required * _PAGE, required):
            return None
        detail = (
            f"{_describe_free_space(_SHARED, self.shared)}, but a trial of a DataLoader with"
            f" num_workers={workers} needs {_size(required * _PAGE)} and"
            f" {pluralize(required, 'file')}, plus some for its batches"
        )
        return _shortage_error("too little shared memory", detail, _MORE_SHARED)


def require_temporary_space() -> None:
    if lack := _find_temporary_space_shortage(0, _SOCKETS, f"{_SOCKETS} files are needed"):
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
        if line and (lack := find_shortage(number, line)):
            raise lack


def _errors(events: Iterable[JournalEvent]) -> Iterator[str]:
    """The texts of what went wrong; that of a hang or a death is empty."""
    for event in events:
        match event:
            case TrialEnded(timed_out, exitcode) if timed_out or exitcode:
                yield ""
            case Refused(_, text) | InternalError(text):
                yield text
            case PassEnded() if event.result.exception:
                yield event.result.exception.text


@contextlib.contextmanager
def report_shortages() -> Iterator[None]:
    """Report an OSError of the harness's own start as a shortage of this machine."""
    try:
        yield
    except OSError as error:
        if lack := forbidden_call_error(error):
            raise lack from error
        if error.errno not in _SCARCE:
            raise
        number = error.errno or 0
        text = f"{os.strerror(number)} ({error.filename or 'at the start of a trial'})"
        lack = find_shortage(number, text) or _shortage_error(
            "too few resources for a trial", text, "Free some"
        )
        raise lack from error


def forbidden_call_error(error: OSError) -> UnusableEnvironmentError | None:
    """What this machine does not allow, if *error* of the harness's own code shows that."""
    if error.errno not in (errno.EPERM, errno.ENOSYS):
        return None
    frame = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{frame.line} raised {type(error).__name__}: {error}, but every trial needs this call"
    return _shortage_error("a system call is forbidden", detail, _ALLOW)


def find_shortage(number: int, text: str) -> UnusableEnvironmentError | None:
    """What this machine lacks now, if *text* reports the errno *number*; None if nothing."""
    if number in (errno.EMFILE, errno.ENFILE):
        return _few_descriptors_left(text)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return _full_shared(text) or _find_temporary_space_shortage(
            _BYTES, _FILES, f"{text!r} was reported"
        )
    return _find_process_shortage(text) if number == errno.EAGAIN else _find_memory_shortage(text)


def _few_descriptors_left(text: str) -> UnusableEnvironmentError | None:
    limit, opened, _ = FreeResources.now()
    if limit - opened >= _ORDINARY:
        return None
    detail = f"{text!r} was reported; the limit is {limit}, and pytest itself has {opened} open"
    return _shortage_error("too few file descriptors", detail, _MORE_DESCRIPTORS)


def _full_shared(text: str) -> UnusableEnvironmentError | None:
    """For an error of torch, a small /dev/shm is enough: the trial's files were removed by now."""
    room = _statvfs(_SHARED)
    by_torch = re.search(r"unable to .{,60}(shared memory|</torch_)", text)
    if room is None or not _is_full(room, *(_SMALL if by_torch else (_BYTES, _FILES))):
        return None
    detail = f"{text!r} was reported, and {_describe_free_space(_SHARED, room)}"
    return _shortage_error("too little shared memory", detail, _MORE_SHARED)


def _find_temporary_space_shortage(
    size: int, files: int, why: str
) -> UnusableEnvironmentError | None:
    folder = tempfile.gettempdir()
    room = _statvfs(folder)
    if room is None or not _is_full(room, size, files):
        return None
    remedy = f"Free disk space in {folder}, or set TMPDIR to a folder that has some"
    return _shortage_error(
        "no disk space for temporary files", f"{_describe_free_space(folder, room)}; {why}", remedy
    )


def _find_process_shortage(text: str) -> UnusableEnvironmentError | None:
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
    detail = (
        f"{text!r} was reported, and only {pluralize(len(children), 'more process')} could start,"
        " but a trial needs three, plus two for each worker and some for its dataset"
    )
    return _shortage_error("too few processes", detail, MORE_PROCESSES)


def _find_memory_shortage(text: str) -> UnusableEnvironmentError | None:
    free_bytes = proc.memory_left()
    if free_bytes is None or free_bytes >= _MEMORY:
        return None
    detail = f"{text!r} was reported, and {_size(free_bytes)} are left"
    remedy = "Stop processes that use much memory, or add memory to the machine or control group"
    return _shortage_error("too little memory", detail, remedy)


def _statvfs(folder: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _is_full(room: os.statvfs_result, size: int, files: int) -> bool:
    """Whether less is left than *size* bytes and *files* files; some have no limit of files."""
    return room.f_bavail * room.f_frsize < size or (room.f_files > 0 and room.f_favail < files)


def _describe_free_space(folder: str, room: os.statvfs_result) -> str:
    free_size, size = (_size(count * room.f_frsize) for count in (room.f_bavail, room.f_blocks))
    files = f" and {pluralize(room.f_favail, 'file')}" if room.f_files else ""
    return f"{folder} has {free_size}{files} left (its size is {size})"


def _size(count: int) -> str:
    return f"{count >> 10} KiB" if count < _BYTES else f"{count >> 20} MiB"


def limit_descriptors(count: int | None) -> None:
    """Allow *count* more descriptors than are open, here and in processes started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is not None:
        room = max(proc.descriptors("self")) + 1 + count
        limit = room if soft == resource.RLIM_INFINITY else min(soft, room)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
