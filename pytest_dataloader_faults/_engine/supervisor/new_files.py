"""First writes to new files, which wait until another worker opens the file [in the supervisor].

Some facts about a cache that workers share. ``if not cache.exists(): write it`` has a window: from
open(2), which creates the name, until the last write(2), another worker finds the name and reads
half a file, or nothing. The window is as short as a write to the page cache, so thousands of epochs
may pass before it shows. So the first write to a file that a worker has created or emptied waits
until another worker opens that file, and then a little longer, so that the other one reads first.

If a dataset fills a temporary file, or holds a lock meanwhile, no other worker opens the file.
The writer then continues after a while: it cannot wait forever for a worker that waits for its
lock. Each file is waited for only once, and after a few files no worker waits again.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass

from pytest_dataloader_faults._engine.supervisor.events import Action, Timers
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

    *write*: lets its first write continue, which *timer* will do; None before that write.
    """

    creator: WorkerState
    is_opened: bool = False
    is_written: bool = False
    write: Action | None = None
    timer: int = -1

    @property
    def waits(self) -> bool:
        """Whether its first write waits, and no other worker has opened the file."""
        return self.write is not None and not (self.is_opened or self.is_written)


class NewFileBarrier:
    """The files that workers create, each with its first write."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
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
                    self._wait(file, _TIMEOUT)

    def note_open(self, worker: WorkerState, path: str, *, creates: bool, reads: bool) -> None:
        """*worker* opens *path*, to read the file, or *creates* or empties it."""
        file = self._files.get(path)
        if file is None:
            is_meant = creates and worker.has_peers and not is_excluded(path)
            if is_meant and self._waits < _MAX_WAITS:
                self._files[path] = _NewFile(worker)
        elif file.creator is not worker and not file.is_written:
            if reads:
                worker.notes["unwritten_files"].add(path)
            if file.waits:  # Only once: polling a lock file does not extend the wait.
                self._wait(file, _HEAD_START)
            file.is_opened = True

    def hold(self, worker: WorkerState, path: str, continue_syscall: Action) -> bool:
        """Let *worker* wait before its first write to *path*; False if it need not.

        *continue_syscall* lets it write.
        """
        file = self._files.get(path)
        if file is None or file.creator is not worker or file.write or self._waits >= _MAX_WAITS:
            return False
        self._waits += 1
        file.write = functools.partial(self._write, file, continue_syscall)
        unopened = _TIMEOUT if self._has_started_peers(worker) else self._start_timeout
        self._wait(file, _HEAD_START if file.is_opened else unopened)
        return True

    def _has_started_peers(self, worker: WorkerState) -> bool:
        return bool(self._started[worker.loader] - {worker.pid})

    def _wait(self, file: _NewFile, seconds: float) -> None:
        assert file.write is not None
        self._timers.cancel(file.timer)
        file.timer = self._timers.after(seconds, file.write)

    def _write(self, file: _NewFile, continue_syscall: Action) -> None:
        file.is_written = True
        if not (file.is_opened or self._has_started_peers(file.creator)):
            self._start_timeout = _TIMEOUT
        continue_syscall()
