"""New files that a second worker empties before the first one reads them [in the supervisor].

Some facts about a cache that two workers look for before either creates it. Both write it. The
second open(2) empties the file, which harms only a worker that has written to it, and opens it
before the second write(2). So the workers go in turns: the second open waits until the first
worker, having written, opens the file again; that open waits for the second write; and that write a
little longer, so that the first worker reads an empty file. If the workers do not meet, the one
that waits continues after a while.

Two workers that fill one temporary file, and both rename it, then do so one after the other, which
hides their race. So a trial has either these turns or those of ``new_files``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from pytest_dataloader_faults._engine.supervisor.events import Action, Timers
from pytest_dataloader_faults._engine.supervisor.new_files import HEAD_START, FileBarrier, OpenCall
from pytest_dataloader_faults._engine.supervisor.shared_offsets import VainWaits
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState

_TIMEOUT = 0.2


@dataclass
class _SharedFile:
    """The file *path*, which the worker *creator* has created, and *emptier* empties.

    *waiting*: what lets a call continue that waits now, by ``"write"`` and ``"read"`` of the
    creator, and ``"empty"``. *timer* does so if the workers do not meet.
    """

    path: str
    creator: WorkerState
    emptier: WorkerState | None = None
    is_written: bool = False
    waiting: dict[str, Action] = field(default_factory=dict)
    timer: int = -1

    def let_continue(self, name: str) -> None:
        """Let the call *name* continue, if it waits."""
        continue_syscall = self.waiting.pop(name, None)
        if continue_syscall is not None:
            continue_syscall()


class EmptiedFileBarrier(FileBarrier):
    """The files that workers create, each with the worker that empties it."""

    def __init__(self, timers: Timers, vain_waits: VainWaits) -> None:
        super().__init__(timers, vain_waits)
        self._files: dict[str, _SharedFile] = {}

    def hold_open(self, worker: WorkerState, call: OpenCall, continue_syscall: Action) -> bool:
        file = self._files.get(call.path)
        if file is None:
            if self.may_hold(worker, call):
                self._files[call.path] = _SharedFile(call.path, worker)
            return False
        if worker is file.creator:
            if not call.reads or "empty" not in file.waiting:
                return False
            self._wait(file, "read", continue_syscall)
            file.let_continue("empty")
            return True
        if file.emptier or call.is_lock:
            return False
        if not call.empties:
            if call.reads and "write" in file.waiting:
                self._note_meeting(file, worker)
            return False
        file.emptier = worker
        self._wait(file, "empty", continue_syscall)
        file.let_continue("write")
        return True

    def hold_write(self, worker: WorkerState, path: str, continue_syscall: Action) -> bool:
        file = self._files.get(path)
        if file is None:
            return False
        if worker is file.emptier and "read" in file.waiting:
            self._let_read(file, continue_syscall)
            return True
        if worker is not file.creator or file.is_written:
            return False
        file.is_written = True
        if file.emptier or not self.count_wait():
            return False
        self._wait(file, "write", continue_syscall)
        return True

    def _note_meeting(self, file: _SharedFile, reader: WorkerState) -> None:
        """Note that *reader* opens the *file* while it is empty."""
        reader.notes["unwritten_files"].add(file.path)
        self.vain_waits.note_meeting()

    def _let_read(self, file: _SharedFile, continue_write: Action) -> None:
        """Let the creator read the empty *file*; what *continue_write* does follows later."""
        self._note_meeting(file, file.creator)
        self.timers.cancel(file.timer)
        file.let_continue("read")
        self.timers.after(HEAD_START, continue_write, [file.creator.pid])

    def _wait(self, file: _SharedFile, name: str, continue_syscall: Action) -> None:
        """Let the call *name* wait for the other worker."""
        file.waiting[name] = continue_syscall
        self.timers.cancel(file.timer)
        give_up = functools.partial(self._give_up, file, name)
        file.timer = self.timers.after(_TIMEOUT, give_up, self.started[file.creator.loader])

    def _give_up(self, file: _SharedFile, name: str) -> None:
        self.vain_waits.note(file.creator, file.path)
        file.let_continue(name)
