"""First writes to new files, which wait until another worker opens the file [in the supervisor].

Some facts about a cache that workers share. ``if not cache.exists(): write it`` has a window: from
open(2), which creates the name, until the last write(2), another worker finds the name and reads
half a file, or nothing. The window is as short as a write to the page cache, so thousands of epochs
may pass before it shows. So the first write to a file that a worker has created or emptied waits
until another worker opens that file, and then a little longer, so that the other one reads first.

If a dataset fills a temporary file, or holds a lock meanwhile, no other worker opens the file.
The writer then continues after a while: it cannot wait forever for a worker that waits for its
lock. Time in which the other worker waits for a processor does not count. A trial that fails after
a vain wait is repeated without that wait, because some code waits for a lock only briefly. Each
file is waited for only once, and after a few files no worker waits again.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_dataloader_faults._engine.supervisor.events import Action, Timers
from pytest_dataloader_faults._engine.supervisor.shared_offsets import VainWaits
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults.globs import is_excluded

_TIMEOUT = 0.1
_START_TIMEOUT = 1.0
"""Seconds until another worker has started its first batch; spent in vain once only."""
_HEAD_START = 0.02
"""Seconds for the worker that has just opened the file to read it."""
_MAX_WAITS = 6


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
    """The files that workers create, each with its first write."""

    def __init__(self, timers: Timers, vain_waits: VainWaits) -> None:
        self._timers = timers
        self._vain_waits = vain_waits
        self._files: dict[str, _NewFile] = {}
        self._waits = 0
        self._started: defaultdict[int, set[int]] = defaultdict(set)
        """By loader, the workers that have started a batch."""
        self._start_timeout = _START_TIMEOUT

    def note_start(self, worker: WorkerState) -> None:
        """*worker* starts a batch, so that it may open files."""
        started = self._started[worker.loader]
        if worker.pid not in started:
            started.add(worker.pid)
            for file in self._files.values():
                if file.waits and file.creator is not worker:
                    self._wait(file, _TIMEOUT, started)

    def note_open(
        self, worker: WorkerState, path: str, *, creates: bool, reads: bool, is_lock: bool = False
    ) -> None:
        """*worker* opens *path*, to read the file, or *creates* or empties it.

        *is_lock*: with O_EXCL, which fails if the file is there.
        """
        file = self._files.get(path)
        if file is None:
            may_wait = creates and worker.has_peers and self._waits < _MAX_WAITS
            if may_wait and not (is_excluded(path) or self._vain_waits.is_unprovoked(path)):
                self._files[path] = _NewFile(worker)
        elif file.creator is not worker and not file.is_written:
            if reads and not is_lock and worker not in file.readers:
                file.readers.append(worker)
            if file.waits:  # Only once: polling a lock file does not extend the wait.
                self._wait(file, _HEAD_START, [worker.pid])
            file.openers.add(worker.pid)
            file.is_lock = file.is_lock or is_lock
            if file.write is not None:
                self._note_meeting(file, path)

    def hold(self, worker: WorkerState, path: str, continue_syscall: Action) -> bool:
        """Let *worker* wait before its first write to *path*; False if it need not.

        *continue_syscall* lets it write.
        """
        file = self._files.get(path)
        if file is None or file.creator is not worker or file.write:
            return False
        self._note_meeting(file, path)
        if self._waits >= _MAX_WAITS:
            return False
        self._waits += 1
        file.write = functools.partial(self._write, path, continue_syscall)
        if file.openers:
            self._wait(file, _HEAD_START, file.openers)
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
