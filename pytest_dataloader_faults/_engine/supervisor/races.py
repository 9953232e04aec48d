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
_MAX_WRITES = 6
"""First writes that wait."""
_READ_TIMEOUT = 0.5
_MAX_VAIN_READS, _MAX_MEETINGS = 2, 8
"""Reads that wait in vain, and meetings of readers at one file."""


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


class Rendezvous:
    """Where workers wait for each other: at reads through one offset, and at first writes.

    A dataset may fail only because one waits for another in vain, for example if that one does not
    wait for a lock so long. So the first such wait is noted, as long as no two workers have met
    anywhere; later ones may be in vain only because a worker has failed. *unprovoked*: globs of the
    files at which none waits.
    """

    def __init__(self, timers: Timers, unprovoked: tuple[str, ...] = ()) -> None:
        self._timers = timers
        self._is_unprovoked = GlobMatcher(unprovoked).means
        self._have_met = False
        self._in_vain: WorkerState | None = None
        self._started: defaultdict[int, set[int]] = defaultdict(set)
        """By loader, the process ids of the workers that have started a batch."""
        self._files: dict[str, _NewFile] = {}
        self._writes = 0
        self._start_timeout = _START_TIMEOUT
        self._reads: dict[str, tuple[Action, int]] = {}
        """By file, what lets a waiting read continue, and its timer."""
        self._meetings: Counter[str] = Counter()
        self._vain_reads = 0

    def _note_vain_wait(self, worker: WorkerState, path: str) -> None:
        if not self._have_met and self._in_vain is None:
            self._in_vain = worker
            worker.notes["vain_waits"].add(path)

    def _note_meeting(self) -> None:
        """Two workers have met, so that a failure may show a race."""
        self._have_met = True
        if self._in_vain is not None:
            self._in_vain.notes["vain_waits"].clear()

    def hold_read(self, worker: WorkerState, path: str, proceed: Action) -> None:
        """*worker* is about to read *path* at a shared offset; *proceed* lets it, now or later."""
        is_over = self._meetings[path] >= _MAX_MEETINGS or self._vain_reads >= _MAX_VAIN_READS
        if path in self._reads:
            self._meetings[path] += 1
            self._note_meeting()
            self._release_read(path)
            proceed()
        elif is_over or self._is_unprovoked(path):
            proceed()
        else:
            for waiting_path in tuple(self._reads):
                self._release_read(waiting_path)
            give_up = functools.partial(self._give_up_read, worker, path)
            self._reads[path] = proceed, self._timers.after(_READ_TIMEOUT, give_up)

    def _release_read(self, path: str) -> None:
        proceed, timer = self._reads.pop(path)
        self._timers.cancel(timer)
        proceed()

    def _give_up_read(self, worker: WorkerState, path: str) -> None:
        self._note_vain_wait(worker, path)
        self._vain_reads += 1
        self._release_read(path)

    def note_start(self, worker: WorkerState) -> None:
        """*worker* starts a batch, so that it may open files."""
        started = self._started[worker.loader]
        if worker.pid not in started:
            started.add(worker.pid)
            for file in self._files.values():
                if file.waits and file.creator is not worker:
                    self._wait(file, _TIMEOUT, started)

    def note_open(self, worker: WorkerState, call: OpenCall) -> None:
        """Note the *call*, for which a first write may wait."""
        file = self._files.get(call.path)
        if file is None:
            may_wait = call.creates and worker.has_peers and self._writes < _MAX_WRITES
            if may_wait and not (is_excluded(call.path) or self._is_unprovoked(call.path)):
                self._files[call.path] = _NewFile(worker)
        elif file.creator is not worker and not file.is_written:
            if call.reads and not call.is_lock and worker not in file.readers:
                file.readers.append(worker)
            if file.waits:  # Only once: polling a lock file does not extend the wait.
                self._wait(file, HEAD_START, [worker.pid])
            file.openers.add(worker.pid)
            file.is_lock = file.is_lock or call.is_lock
            if file.write is not None:
                self._note_openers(file, call.path)

    def hold_write(self, worker: WorkerState, path: str, proceed: Action) -> bool:
        """Let *worker* wait before its first write to *path*; False if it need not.

        *proceed* lets it write.
        """
        file = self._files.get(path)
        if file is None or file.creator is not worker or file.write:
            return False
        self._note_openers(file, path)
        self._writes += 1
        if self._writes > _MAX_WRITES:
            return False
        file.write = functools.partial(self._write, path, proceed)
        if file.openers:
            self._wait(file, HEAD_START, file.openers)
        elif peers := self._started_peers(worker):
            self._wait(file, _TIMEOUT, peers)
        else:
            self._wait(file, self._start_timeout)
        return True

    def _started_peers(self, worker: WorkerState) -> set[int]:
        return self._started[worker.loader] - {worker.pid}

    def _note_openers(self, file: _NewFile, path: str) -> None:
        """Note which workers have opened *path*, which its creator writes."""
        for reader in file.readers:
            reader.notes["unwritten_files"].add(path)
        if file.openers and not file.is_lock:
            self._note_meeting()

    def _wait(self, file: _NewFile, seconds: float, pids: Collection[int] = ()) -> None:
        assert file.write is not None
        self._timers.cancel(file.timer)
        file.timer = self._timers.after(seconds, file.write, pids)

    def _write(self, path: str, proceed: Action) -> None:
        file = self._files[path]
        file.is_written = True
        if not file.openers:
            self._note_vain_wait(file.creator, path)
            if not self._started_peers(file.creator):
                self._start_timeout = _TIMEOUT
        proceed()
