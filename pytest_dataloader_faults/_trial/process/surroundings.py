"""What a trial has for itself and needs of this machine, and how pytest waits for it [in pytest].

The processes of a trial inherit its surroundings by fork.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import tempfile
import traceback
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pytest_dataloader_faults._engine.file_copies import copy_folder
from pytest_dataloader_faults._engine.kernel.linux import file_clock
from pytest_dataloader_faults._engine.system import proc, temporary
from pytest_dataloader_faults._engine.system.proc import is_stopped
from pytest_dataloader_faults._engine.system.processes import (
    BETWEEN_LOOKS,
    MORE_PROCESSES,
    ChildProcess,
    Patience,
    describe_end,
    fork,
    has_ended,
    reap,
)
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    SharedCount,
    SharedMemoryCleaner,
)
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    Failed,
    Journal,
    JournalEvent,
    PassEnded,
    ProcessesStarted,
    TrialEnded,
    failed,
)
from pytest_dataloader_faults._trial.process import fork_server
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    LostProcessError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.outcomes.stages import JobKilled
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.wire import Note

_DYING = 2.0
"""Seconds until a process that was sent SIGKILL has ended, and a supervisor without its trial."""


class Surroundings(NamedTuple):
    """The journal, files for what is printed and for stacks, folders, and a fork server.

    *for_sockets* and *private* are names of folders until the warden makes them. The private one is
    that of the factory, if it has one: a *copy* of another folder, or empty.
    *shared*: the folder of a factory that is the same in all jobs of a group, and lasts as long.
    *fired*: how many faults have fired in the jobs of the group.
    *server* starts workers that are not below the warden; None if the loader has no such workers.
    """

    facts: Journal
    printed: AnonymousFile
    stacks: AnonymousFile
    for_sockets: str
    private: tuple[str, ...]
    shared: tuple[str, ...]
    copy: str | None
    fired: SharedCount
    shared_memory: SharedMemoryCleaner
    server: fork_server.TrialServer | None = None

    @property
    def own_folders(self) -> tuple[str, ...]:
        """The folders whose files belong to the trial, and are removed with it."""
        return (*self.private, *self.shared)

    @property
    def server_pids(self) -> tuple[int, int] | None:
        """The keeper and the fork server, if there is one."""
        return self.server.pids if self.server else None

    def make_folders(self) -> None:
        """Make the folders [in the warden].

        Raises:
            InvalidArgumentError: The folder to copy cannot be copied.
        """
        temporary.make_for_sockets(self.for_sockets)
        _make_folders(self.private, self.copy)

    def remove_folders(self, *, shared: bool = False) -> None:
        """Remove the folders with what is in them; *shared*: for pytest, which was killed."""
        for folder in (self.for_sockets, *self.private, *(self.shared if shared else ())):
            temporary.remove(folder)

    def end_processes(self, warden: int) -> None:
        """End what *warden*, which was killed or has failed, leaves running, and wait for that.

        A spawned worker that imports torch would find out when that is done.
        """
        from pytest_dataloader_faults._trial.resources import end_session  # It imports psutil.

        if self.server:
            self.server.end()
        # The supervisor, which ends with the warden, first ends what workers have started.
        end_session(warden, _DYING, grace=_DYING)
        for pid in self._pids():
            end_session(pid, _DYING)
        for pid in self._pids():  # Workers end with the session of the main process.
            has_ended(pid, _DYING)
        self.remove_shared_memory()
        self.remove_segments()

    def remove_shared_memory(self, killed: Collection[int] = ()) -> None:
        """Remove what the trial's processes have left in it, and those *killed*. All are dead."""
        self.shared_memory.remove({*killed, *self._pids()})

    def remove_segments(self) -> None:
        """Remove the shared memory of a job that was killed."""
        killed = (note for note in self.facts.of(Note) if isinstance(note, JobKilled))
        self.shared_memory.remove_segments(name for note in killed for name in note.segments)

    def _pids(self) -> set[int]:
        return {pid for event in self.facts.of(ProcessesStarted) for pid in event.pids}


@contextlib.contextmanager
def shared_folders(folders: tuple[str, ...], copy: str | None) -> Iterator[None]:
    """Make *folders* for a group of jobs, empty or a *copy*, and remove them at the end."""
    try:
        _make_folders(folders, copy)
        yield
    finally:
        for folder in folders:
            temporary.remove(folder)


def _make_folders(folders: Iterable[str], copy: str | None) -> None:
    for folder in folders:
        try:
            if copy is None:
                os.mkdir(folder, 0o700)
            else:
                copy_folder(copy, folder)
        except OSError as error:
            if copy is None:
                raise
            message = f"copy={copy!r} could not be copied to {folder}: {error}"
            raise InvalidArgumentError(message) from error


@contextlib.contextmanager
def surroundings_for(
    job: Job, folders: tuple[str, ...], fired: SharedCount
) -> Iterator[Surroundings]:
    """The surroundings of *job*, whose factory gets one of *folders*, if it gets one."""
    is_shared = job.rank is not None and job.rank.shares_folder
    private, shared = ((), folders) if is_shared else (folders, ())
    with contextlib.ExitStack() as scope:
        files = Journal("facts"), AnonymousFile("stderr"), AnonymousFile("stacks")
        for file in files:
            scope.callback(file.close)
        for_sockets, copy = temporary.name_for_sockets(), job.settings.copy
        cleaner = SharedMemoryCleaner()
        around = Surroundings(*files, for_sockets, private, shared, copy, fired, cleaner)
        scope.callback(around.remove_folders)  # Unless it was killed, the warden has done so.
        require_temporary_space()
        server = fork_server.server_for(job, around.printed.fd)
        if server:
            scope.callback(server.close)
        began, is_seen = file_clock(), False
        try:
            yield around._replace(server=server)
            is_seen = not job.is_reference  # Its processes are not filtered.
        finally:
            if not is_seen:
                job.history.unseen.append((began, file_clock()))


# Pytest waits for the warden, which may be killed or stopped like any process.

_GRACE = 30.0
"""Seconds a warden gets beyond its deadline before it counts as broken itself."""
_LOOKS = 5
"""How many times in a row, a second apart, a warden must be seen stopped."""
STOPPED = "was stopped (SIGSTOP, or a debugger)"
NOTHING_SHOWN = (
    " before the trial was finished, so the trial proves nothing about the dataset. Run it again."
    " If it happens again, find out what kills or stops processes on this machine"
)


def wait_for(warden: ChildProcess, deadline: float, facts: Journal) -> int | None:
    """Wait until *warden* has ended, at most *deadline* seconds and a grace; its exit code.

    If it is stopped, it is ended.
    """
    patience, stopped = Patience(deadline + _GRACE, [warden.pid]), 0
    try:
        while not warden.has_ended(BETWEEN_LOOKS):
            stopped = stopped + 1 if is_stopped(warden.pid) else 0
            if stopped == _LOOKS:
                what = f"{describe_warden(warden.pid)} {STOPPED}{NOTHING_SHOWN}"
                facts.write(failed(LostProcessError(f"{what}.")))
                warden.send(signal.SIGTERM)  # It ends its tree first.
                warden.send(signal.SIGCONT)
            if patience.is_over():
                warden.send(signal.SIGKILL)
    except BaseException:  # As at Ctrl-C.
        end(warden)
        raise
    return warden.reap()


def end(warden: ChildProcess) -> None:
    """End *warden*, which ends its tree first, and wait for it."""
    warden.send(signal.SIGTERM)
    if not warden.ends_in_time(_GRACE):
        warden.send(signal.SIGKILL)
    warden.reap()


def describe_warden(warden: int) -> str:
    return f"the process that enforces the trial's deadline (pid {warden})"


def lost_warden_error(warden: int, code: int | None) -> LostProcessError:
    """The error of a trial that did not end itself; *code*: the warden's exit code, if known."""
    ending = "has exited" if code is None else describe_end(code)
    return LostProcessError(f"{describe_warden(warden)} {ending}{NOTHING_SHOWN}.")


# What a loader needs of this machine, and whether a trial failed because that was lacking.


_SHARED = "/dev/shm"
_ORDINARY = 256
"""Descriptors: with fewer left, the limit is too low for an ordinary dataset."""
_FEW_PROCESSES = 64
_LITTLE_MEMORY = 64 << 20
_BYTES, _FILES = 1 << 20, 16
"""A file system that has less left is full."""
_SMALL = 1 << 30, 1 << 10
"""A file system that has less left is small."""
_SOCKETS = 8
_PAGE = resource.getpagesize()
_MOST_OF_LINE = 200

_WORDS = {
    errno.EMFILE: r"received 0 items of ancdata",
    errno.ENOSPC: r"insufficient shared memory|Disk quota exceeded",
    errno.EAGAIN: r"can't start new thread|pthread_create failed",
    errno.ENOMEM: r"Cannot allocate memory|DefaultCPUAllocator: can't allocate",
}
"""What errors say about each shortage, in addition to its errno and its message."""
_DESCRIPTORS, _PROCESSES = "too few file descriptors", "too few processes"
_NO_SHARED, _LITTLE_SHARED = "no shared memory", "too little shared memory"
_TEMPORARY, _MEMORY = "no disk space for temporary files", "too little memory"
_FORBIDDEN, _OTHER = "a system call is forbidden", "too few resources for a trial"
_REMEDIES = {
    _DESCRIPTORS: "Raise the limit: ulimit -n 4096",
    _PROCESSES: MORE_PROCESSES,
    _NO_SHARED: "Mount it as writable: docker run --shm-size=1g, or mount -o remount,rw",
    _LITTLE_SHARED: "Remove unused files from /dev/shm, or make it larger:"
    " docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm",
    _TEMPORARY: "Free disk space there, or set TMPDIR to a folder that has some",
    _MEMORY: "Stop processes that use much memory, or add memory to the machine or control group",
    _FORBIDDEN: "Allow it, for example in the container's seccomp profile",
    _OTHER: "Free some",
}


def _shortage_error(shortage: str, detail: str) -> UnusableEnvironmentError:
    message = f"{shortage}: {detail}. {_REMEDIES[shortage]}. No dataset was judged"
    return UnusableEnvironmentError(message, shortage)


# Some facts about what a loader takes (torch 2.13, fork, measured by taking away until a trial of
# small samples failed). Descriptors, in addition to those that are open when it starts: 16 with one
# worker, 20 with two, 26 with four, 41 with eight. In /dev/shm each lock of its queues is a file of
# one page, and so is each tensor of a batch: 80 KiB with one worker, 96 with two, 112 with four. In
# the folder for temporary files each worker that passes a tensor has a socket, which takes an inode
# and no bytes. If there is less, torch raises, or drops a batch and waits forever: either looks
# like a flaw of the dataset. So a trial is refused if there is less than was ever enough.


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
        descriptors, files = 13 + 3 * workers, 10 + 3 * workers
        they_need = f"a trial of a DataLoader with num_workers={workers} needs"
        if self.limit - self.opened < descriptors:
            detail = (
                f"{self.opened} are open and the limit is {self.limit}, but {they_need}"
                f" {descriptors} more, plus some for its dataset"
            )
            raise _shortage_error(_DESCRIPTORS, detail)
        may_write = os.access(_SHARED, os.W_OK | os.X_OK)
        if self.shared is None or self.shared.f_flag & os.ST_RDONLY or not may_write:
            state = "missing" if self.shared is None else "not writable"
            detail = f"{_SHARED} is {state}, but the queues of a DataLoader's workers need it"
            raise _shortage_error(_NO_SHARED, detail)
        if free := _describe_if_full(_SHARED, self.shared, files * _PAGE, files):
            detail = (
                f"{free}, but {they_need} {_size(files * _PAGE)} and {pluralize(files, 'file')},"
                " plus some for its batches"
            )
            raise _shortage_error(_LITTLE_SHARED, detail)


def require_temporary_space() -> None:
    if free := _free_space_if_full(tempfile.gettempdir(), 0, _SOCKETS):
        raise _shortage_error(_TEMPORARY, f"{free}, but {_SOCKETS} files are needed")


# Some facts about the cause of such errors. "No space left on device" or "Too many open files" can
# come from an armed fault, from a dataset that uses too much, or from a machine that has too
# little. So such an error is the machine's only if no fault could cause it, and if the machine
# still lacks the resource after all of the trial's processes, files and shared memory were removed.


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
        if line and (lack := _find_shortage(number, line)):
            raise lack


def _errors(events: Iterable[JournalEvent]) -> Iterator[str]:
    """The texts of what went wrong; that of a hang or a death is empty."""
    for event in events:
        match event:
            case TrialEnded(end) if end.at_deadline or end.exitcode:
                yield ""
            case Failed(kind, text) if kind is not LostProcessError:
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
        number = error.errno or 0
        if number not in {*_WORDS, errno.ENFILE, errno.EDQUOT}:
            raise
        text = f"{os.strerror(number)} ({error.filename or 'at the start of a trial'})"
        raise _find_shortage(number, text) or _shortage_error(_OTHER, text) from error


def forbidden_call_error(error: OSError) -> UnusableEnvironmentError | None:
    """What this machine does not allow, if *error* of the harness's own code shows that."""
    if error.errno not in (errno.EPERM, errno.ENOSYS):
        return None
    frame = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{frame.line} raised {type(error).__name__}: {error}, but every trial needs this call"
    return _shortage_error(_FORBIDDEN, detail)


def _find_shortage(number: int, text: str) -> UnusableEnvironmentError | None:
    """What this machine lacks now, if *text* reports the errno *number*; None if nothing."""
    if number in (errno.EMFILE, errno.ENFILE):
        shortage, left = _DESCRIPTORS, _few_descriptors()
    elif number == errno.EAGAIN:
        shortage, left = _PROCESSES, _few_processes()
    elif number == errno.ENOMEM:
        shortage, free_bytes = _MEMORY, proc.memory_left()
        is_little = free_bytes is not None and free_bytes < _LITTLE_MEMORY
        left = f"{_size(free_bytes or 0)} are left" if is_little else ""
    else:
        # After an error of torch, a small /dev/shm is enough: the trial's files were removed.
        by_torch = re.search(r"unable to .{,60}(shared memory|</torch_)", text)
        limits = _SMALL if by_torch else (_BYTES, _FILES)
        shortage, left = _LITTLE_SHARED, _free_space_if_full(_SHARED, *limits)
        if not left:
            folder = tempfile.gettempdir()
            shortage, left = _TEMPORARY, _free_space_if_full(folder, _BYTES, _FILES)
    return _shortage_error(shortage, f"{text!r} was reported, and {left}") if left else None


def _few_descriptors() -> str:
    limit, opened, _ = FreeResources.now()
    is_low = limit - opened < _ORDINARY
    return f"the limit is {limit}, of which pytest itself has {opened} open" if is_low else ""


def _few_processes() -> str:
    """How many more can start, if that is few.

    Limits of processes add up: of the user, of each control group, of the machine. Only starting
    some shows how many are left. One that has ended counts until it is waited for.
    """
    children = []
    with contextlib.suppress(UnusableEnvironmentError):
        for _ in range(_FEW_PROCESSES):
            child = fork()
            if not child:
                os._exit(0)
            children.append(child)
    for child in children:
        reap(child)
    if len(children) == _FEW_PROCESSES:
        return ""
    return (
        f"only {pluralize(len(children), 'more process')} could start, but a trial needs three,"
        " plus two for each worker and some for its dataset"
    )


def _free_space_if_full(folder: str, size: int, files: int) -> str:
    room = _statvfs(folder)
    return _describe_if_full(folder, room, size, files) if room else ""


def _statvfs(folder: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _describe_if_full(folder: str, room: os.statvfs_result, size: int, files: int) -> str:
    """How much is left, if it is less than *size* bytes and *files* files; else "".

    Some file systems have no limit of files.
    """
    has_files = room.f_files == 0 or room.f_favail >= files
    if has_files and room.f_bavail * room.f_frsize >= size:
        return ""
    free_size, size_of_all = (_size(n * room.f_frsize) for n in (room.f_bavail, room.f_blocks))
    free_files = f" and {pluralize(room.f_favail, 'file')}" if room.f_files else ""
    return f"{folder} has {free_size}{free_files} left (its size is {size_of_all})"


def _size(count: int) -> str:
    return f"{count >> 10} KiB" if count < _BYTES else f"{count >> 20} MiB"
