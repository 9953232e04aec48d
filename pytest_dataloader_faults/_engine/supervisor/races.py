"""Workers wait for each other, so that their races show [runs in the supervisor]."""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_dataloader_faults._engine.supervisor.events import Action, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_excluded

# Some facts about open file descriptions (open(2)). Descriptors of two processes may have one
# between them, with one offset and one set of status flags, or one each of the same file, and /proc
# shows no difference. kcmp(2) would show it, but containers forbid it. So a flag that means nothing
# to a regular file, O_NONBLOCK, is turned over for a moment through one descriptor and looked for
# through the other.
#
# Some facts about a descriptor that was opened before the workers were forked. All of them share
# its open file description, so its offset too (fork(2)). One seeks, another seeks, the first one
# reads what the second one requested. On a quick disk the window is a microsecond wide, and
# thousands of epochs pass before it shows. So the first worker that is about to read(2) at such an
# offset waits until another one is as well: then both have sought, and at most one of them can get
# what it wanted.
#
# If a dataset guards its descriptor with a lock, or opens separate files for each worker, two
# readers are never at the same file. The first one continues after a while, and after two such
# waits no worker waits again. A trial that fails after vain waits is repeated without them. If
# there are several such files, a worker that waits continues as soon as the next one reaches
# another file, so that workers go from file to file in turns until they are at the same one.


def shared_files(workers: list[WorkerState]) -> defaultdict[int, set[str]]:
    """By process: the files that it and another of *workers* have read through one offset."""
    shared: defaultdict[int, set[str]] = defaultdict(set)
    with_own_files = (each for each in workers if each.has_own_files)
    for worker, peer in itertools.combinations(with_own_files, 2):
        for path, descriptor in worker.read_at_offset.items():
            counterpart = peer.read_at_offset.get(path)
            if counterpart is not None and _share_offset(worker, descriptor, peer, counterpart):
                shared[worker.pid].add(path)
                shared[peer.pid].add(path)
    return shared


def _share_offset(
    worker: WorkerState, descriptor: int, peer: WorkerState, counterpart: int
) -> bool:
    first, second = worker.inherited[descriptor].duplicate, peer.inherited[counterpart].duplicate
    return first is not None and second is not None and share_description(first, second)


def share_description(fd: int, peer_fd: int) -> bool:
    """Whether two descriptors of this process have one offset between them."""
    flags, peer_flags = (fcntl.fcntl(each, fcntl.F_GETFL) for each in (fd, peer_fd))
    fcntl.fcntl(fd, fcntl.F_SETFL, flags ^ os.O_NONBLOCK)
    try:
        return fcntl.fcntl(peer_fd, fcntl.F_GETFL) != peer_flags
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


_READ_TIMEOUT = 0.5
_MEETINGS = 8
_MAX_TIMEOUTS = 2


class VainWaits:
    """The first wait of a worker for another one in vain, as long as no two have met anywhere.

    A dataset may fail only because of such a wait, for example if another worker does not wait for
    a lock that long. Later ones may be in vain only because that worker has failed. *unprovoked*:
    globs of the files at which none waits.
    """

    def __init__(self, unprovoked: tuple[str, ...] = ()) -> None:
        self.is_unprovoked = GlobMatcher(unprovoked).means
        self._worker: WorkerState | None = None
        self._have_met = False

    def note(self, worker: WorkerState, path: str) -> None:
        """*worker* has waited at *path* in vain."""
        if not self._have_met and self._worker is None:
            self._worker = worker
            worker.notes["vain_waits"].add(path)

    def note_meeting(self) -> None:
        """Two workers have met, so that a failure may show a race."""
        self._have_met = True
        if self._worker is not None:
            self._worker.notes["vain_waits"].clear()


class SharedOffsetBarrier:
    """Workers that wait at a shared offset, by file."""

    def __init__(self, timers: Timers, vain_waits: VainWaits) -> None:
        self._timers = timers
        self._vain_waits = vain_waits
        self._waiting: dict[str, tuple[Action, int]] = {}
        self._met: Counter[str] = Counter()
        self._timeouts = 0

    def arrive(self, worker: WorkerState, path: str, continue_syscall: Action) -> None:
        """*worker* is about to read *path*; *continue_syscall* lets it."""
        if path in self._waiting:
            self._met[path] += 1
            self._vain_waits.note_meeting()
            self._release(path)
            continue_syscall()
        elif not self._may_wait(path):
            continue_syscall()
        else:
            for waiting_path in tuple(self._waiting):
                self._release(waiting_path)
            end = self._timers.after(_READ_TIMEOUT, lambda: self._give_up(worker, path))
            self._waiting[path] = (continue_syscall, end)

    def _may_wait(self, path: str) -> bool:
        is_over = self._met[path] >= _MEETINGS or self._timeouts >= _MAX_TIMEOUTS
        return not is_over and not self._vain_waits.is_unprovoked(path)

    def _release(self, path: str) -> None:
        continue_syscall, end = self._waiting.pop(path)
        self._timers.cancel(end)
        continue_syscall()

    def _give_up(self, worker: WorkerState, path: str) -> None:
        self._vain_waits.note(worker, path)
        self._timeouts += 1
        self._release(path)


# Some facts about a cache that workers share. ``if not cache.exists(): write it`` has a window:
# from open(2), which creates the name, until the last write(2), another worker finds the name and
# reads half a file, or nothing. The window is as short as a write to the page cache, so thousands
# of epochs may pass before it shows. So the first write to a file that a worker has created or
# emptied waits until another worker opens that file, and then a little longer, so that the other
# one reads first.
#
# If a dataset fills a temporary file, or holds a lock meanwhile, no other worker opens the file.
# The writer then continues after a while: it cannot wait forever for a worker that waits for its
# lock. Time in which the other worker waits for a processor does not count. A trial that fails
# after a vain wait is repeated without that wait, because some code waits for a lock only briefly.
# Each file is waited for only once, and after a few files no worker waits again.


_TIMEOUT = 0.1
_START_TIMEOUT = 1.0
"""Seconds until another worker has started its first batch; spent in vain once only."""
HEAD_START = 0.02
"""Seconds for the worker that has just opened the file to read it."""
_MAX_WAITS = 6


class OpenCall(NamedTuple):
    """What an open(2) of *path* does: it *reads* the file, or *creates* or empties it.

    *is_lock*: with O_EXCL, which fails if the file is there.
    """

    path: str
    reads: bool = False
    creates: bool = False
    is_lock: bool = False


@dataclass
class _NewFile:
    """A file that the worker *creator* has created or emptied.

    *readers*: other workers that have opened it to read. *openers*: the process ids of all others
    that have opened it. *is_lock*: whether one has tried to create it with O_EXCL. *write*: lets
    its first write continue, which *timer* will do; None before that write.
    """

    creator: WorkerState
    readers: list[WorkerState] = field(default_factory=list)
    openers: set[int] = field(default_factory=set)
    is_lock: bool = False
    is_written: bool = False
    write: Action | None = None
    timer: int = -1

    @property
    def waits(self) -> bool:
        """Whether its first write waits, and no other worker has opened the file."""
        return self.write is not None and not (self.openers or self.is_written)


class NewFileBarrier:
    """The files that workers create, each with its first write, at which workers wait."""

    def __init__(self, timers: Timers, vain_waits: VainWaits) -> None:
        self._timers, self._vain_waits = timers, vain_waits
        self._started: defaultdict[int, set[int]] = defaultdict(set)
        """By loader, the process ids of the workers that have started a batch."""
        self._files: dict[str, _NewFile] = {}
        self._waits = 0
        self._start_timeout = _START_TIMEOUT

    def note_start(self, worker: WorkerState) -> None:
        """*worker* starts a batch, so that it may open files."""
        started = self._started[worker.loader]
        if worker.pid not in started:
            started.add(worker.pid)
            for file in self._files.values():
                if file.waits and file.creator is not worker:
                    self._wait(file, _TIMEOUT, started)

    def _may_hold(self, worker: WorkerState, call: OpenCall) -> bool:
        """Whether workers may wait for each other at the file that *worker* opens by *call*."""
        if not (call.creates and worker.has_peers) or self._waits >= _MAX_WAITS:
            return False
        return not (is_excluded(call.path) or self._vain_waits.is_unprovoked(call.path))

    def note_open(self, worker: WorkerState, call: OpenCall) -> None:
        """Note the *call*, for which a first write may wait."""
        file = self._files.get(call.path)
        if file is None:
            if self._may_hold(worker, call):
                self._files[call.path] = _NewFile(worker)
        elif file.creator is not worker and not file.is_written:
            if call.reads and not call.is_lock and worker not in file.readers:
                file.readers.append(worker)
            if file.waits:  # Only once: polling a lock file does not extend the wait.
                self._wait(file, HEAD_START, [worker.pid])
            file.openers.add(worker.pid)
            file.is_lock = file.is_lock or call.is_lock
            if file.write is not None:
                self._note_meeting(file, call.path)

    def hold_write(self, worker: WorkerState, path: str, continue_syscall: Action) -> bool:
        """Let *worker* wait before its first write to *path*; False if it need not.

        *continue_syscall* lets it write.
        """
        file = self._files.get(path)
        if file is None or file.creator is not worker or file.write:
            return False
        self._note_meeting(file, path)
        self._waits += 1
        if self._waits > _MAX_WAITS:
            return False
        file.write = functools.partial(self._write, path, continue_syscall)
        if file.openers:
            self._wait(file, HEAD_START, file.openers)
        elif peers := self._started_peers(worker):
            self._wait(file, _TIMEOUT, peers)
        else:
            self._wait(file, self._start_timeout)
        return True

    def _started_peers(self, worker: WorkerState) -> set[int]:
        return self._started[worker.loader] - {worker.pid}

    def _note_meeting(self, file: _NewFile, path: str) -> None:
        """Note which workers have opened *path*, which its creator writes."""
        for reader in file.readers:
            reader.notes["unwritten_files"].add(path)
        if file.openers and not file.is_lock:
            self._vain_waits.note_meeting()

    def _wait(self, file: _NewFile, seconds: float, pids: Collection[int] = ()) -> None:
        assert file.write is not None
        self._timers.cancel(file.timer)
        file.timer = self._timers.after(seconds, file.write, pids)

    def _write(self, path: str, continue_syscall: Action) -> None:
        file = self._files[path]
        file.is_written = True
        if not file.openers:
            self._vain_waits.note(file.creator, path)
            if not self._started_peers(file.creator):
                self._start_timeout = _TIMEOUT
        continue_syscall()
