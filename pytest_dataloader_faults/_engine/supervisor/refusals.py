"""Refuse what would change files for good, and note by which code [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.calls import Role
from pytest_dataloader_faults._engine.kernel.linux import raw_call
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.protection import Protection
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import StackRequest
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes.stages import FileHistory, Refusal
from pytest_dataloader_faults.outcomes.text import users_place
from pytest_dataloader_faults.wire import Firing

_MOST = 20
"""Refusals that are noted."""
_BETWEEN_LOOKS = 0.01


class SharedFiles(NamedTuple):
    """What the supervisors of a group share: how many faults have *fired*, and the *history*."""

    fired: SharedCount
    history: FileHistory


class Refusals:
    """Refuses calls of the *workers* of one scope, which has *plan*.

    *write* gets what happens to files. What the process *driver* prints to may be written to.
    """

    def __init__(
        self,
        plan: FaultPlan,
        files: SharedFiles,
        workers: Sequence[WorkerState],
        timers: Timers,
        write: Callable[[protocol.ToJournal], None],
        driver: int,
    ) -> None:
        self._files, self._workers = files, workers
        self._timers, self._write = timers, write
        self._has_faults = bool(plan.faults)
        self._means = GlobMatcher(plan.globs if plan.faults else ())
        self._refusals: dict[object, Refusal] = {}
        self._protection = Protection(
            *files, tuple(plan.spared), self._is_read, write, notes_changes=not plan.faults
        )
        for link in (f"/proc/{driver}/fd/{number}" for number in (1, 2)):
            with contextlib.suppress(OSError):
                self._protection.spare(proc.file_of(link))
        if any(Place.ALLOCATION in each.places for each in plan.faults):
            self.start()

    @property
    def noted(self) -> list[Refusal]:
        """What was refused."""
        return list(self._refusals.values())

    def start(self, _firing: Firing | None = None) -> None:
        """Keep files from now on, because a fault fires."""
        self._files.fired.add(1)

    def refuse(self, worker: WorkerState, call: Syscall) -> bool:
        """Let *call* fail if it would change files for good, or could do so unseen."""
        # By such a call, a process opens or uses files without a path or a call that a filter sees.
        # Libraries can do without: Docker's default profile refuses the first and the last one, and
        # a kernel may lack the second one.
        if (self._has_faults or call.tree) and call.facts.role is Role.UNOBSERVABLE:
            worker.listener.fail(call, errno.EPERM)
            return True
        loss = self._protection.find_loss(worker, call)
        if loss is None:
            return False
        path, key = loss.file.path, (loss.change, loss.file.path)
        is_noted = key in self._refusals or len(self._refusals) >= _MOST
        stacks = None if is_noted else _request_stacks(worker, call)
        worker.listener.fail(call, errno.EROFS)
        if not is_noted:
            is_read = self._means(path) or self._is_read(path)
            self._refusals[key] = Refusal(path, loss.change, call.name, worker.id, is_read)
            self._note_place(key, stacks)
        return True

    def end(self, *, of_trial: bool) -> None:
        """All processes have ended. *of_trial*: remove what they have created after a fault."""
        self._timers.expire(everything=True)
        if of_trial:
            self._protection.remove_created()

    def _is_read(self, path: str) -> bool:
        """Whether the dataset reads *path*."""
        if path in self._files.history.read:
            return True
        names = (name for worker in self._workers for name in worker.read_paths)
        return any(os.path.realpath(name) == path for name in names)

    def _note_place(self, key: object, stacks: StackRequest | None) -> None:
        """Write a refusal down once the *stacks* of its process are there."""
        if stacks is not None and not stacks.is_over():
            self._timers.after(_BETWEEN_LOOKS, partial(self._note_place, key, stacks))
            return
        place = users_place(stacks.take()) if stacks else ""
        self._refusals[key] = refusal = replace(self._refusals[key], place=place)
        self._write(refusal)


def _request_stacks(worker: WorkerState, call: Syscall) -> StackRequest | None:
    """The stack of the thread that made *call*; of another program, that of its worker."""
    for thread in (call.pid, worker.pid):
        with contextlib.suppress(LookupError, OSError):
            process = proc.status(thread).process
            return StackRequest(process, partial(raw_call, "tgkill", process, thread))
    return None
