"""Reads of several workers through one file offset: find them, provoke races [in the supervisor].

Some facts about open file descriptions (open(2)). Descriptors of two processes may have one between
them, with one offset and one set of status flags, or one each of the same file, and /proc shows no
difference. kcmp(2) would show it, but containers forbid it. So a flag that means nothing to a
regular file, O_NONBLOCK, is turned over for a moment through one descriptor and looked for through
the other.

Some facts about a descriptor that was opened before the workers were forked. All of them share its
open file description, so its offset too (fork(2)). One seeks, another seeks, the first one reads
what the second one requested. On a quick disk the window is a microsecond wide, and thousands of
epochs pass before it shows. So the first worker that is about to read(2) at such an offset waits
until another one is as well: then both have sought, and at most one of them can get what it wanted.

If a dataset guards its descriptor with a lock, or opens separate files for each worker, two readers
are never at the same file. The first one continues after a while, and after two such waits no
worker waits again. A trial that fails after vain waits is repeated without them. If there are
several such files, a worker that waits continues as soon as the next one reaches another file, so
that workers go from file to file in turns until they are at the same one.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections import Counter, defaultdict

from pytest_dataloader_faults._engine.supervisor.events import Action, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults.globs import GlobMatcher


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


_TIMEOUT = 0.5
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
            end = self._timers.after(_TIMEOUT, lambda: self._give_up(worker, path))
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
