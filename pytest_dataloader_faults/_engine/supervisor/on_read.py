"""The answers to reads of followed files [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from pytest_dataloader_faults._engine.file_copies import FileCopies, FileEdit
from pytest_dataloader_faults._engine.kernel.bpf import READS
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall, TrackedFile, signed
from pytest_dataloader_faults._engine.kernel.syscalls import give_short, source_for, span
from pytest_dataloader_faults._engine.policy import (
    MAP,
    Actions,
    Delay,
    Die,
    Fail,
    Hang,
    Operation,
    Short,
)
from pytest_dataloader_faults._engine.supervisor.death_scheduler import DeathScheduler
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.on_fetch import die_in_read
from pytest_dataloader_faults._engine.supervisor.shared_offsets import CALLS as SHARED_OFFSET_CALLS
from pytest_dataloader_faults._engine.supervisor.shared_offsets import SharedOffsetBarrier
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState

Answer = Callable[[], None]


@dataclass(frozen=True)
class SupervisorServices:
    """What answers need. *provokes_races*: bring reads at a shared offset together."""

    copies: FileCopies
    timers: Timers
    deaths: DeathScheduler
    barrier: SharedOffsetBarrier
    provokes_races: bool


def on_read(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer a read, or a mapping, of what may be a followed file."""
    number = signed(call.arguments[READS[call.name]])
    followed = worker.files.at(call.pid, number)
    if followed is None:
        worker.listener.continue_syscall(call)
        return
    if followed.inherited and call.name in SHARED_OFFSET_CALLS:
        worker.files.read_at_offset[followed.path] = number
    wanted = span(call, source_for(call, followed))
    operation = Operation(call.name, followed.path, call.pid)
    actions = worker.policy.read(operation, wanted.start, wanted.length)
    answer = _answer(worker, call, followed, actions, services)
    _after_what_takes_time(worker, call, actions, answer, services)


def _answer(
    worker: WorkerState,
    call: Syscall,
    followed: TrackedFile,
    actions: Actions,
    services: SupervisorServices,
) -> Answer:
    """What answers *call* in the end."""
    for action in actions:
        if isinstance(action, Fail) and call.name == MAP:
            kept = action.offset
            return lambda: _fail_mapping(worker, call, followed.path, kept, services.copies)
        if isinstance(action, Fail):
            number = action.errno
            return lambda: worker.listener.fail(call, number)
        if isinstance(action, Short) and (ours := source_for(call, followed)) is not None:
            source, length = os.dup(ours), action.max_bytes  # It may be closed before the answer.
            return lambda: _answer_short(worker, call, source, length)
    return _plain(worker, call, followed, services)


def _after_what_takes_time(
    worker: WorkerState,
    call: Syscall,
    actions: Actions,
    answer: Answer,
    services: SupervisorServices,
) -> None:
    """Answer after the death, hang or delays among *actions*; at once, if there are none."""
    later = _unless_gone(worker, call, answer)
    for action in actions:
        if isinstance(action, Die):
            die_in_read(worker, action, services.deaths, services.timers, later)
            return
        if isinstance(action, Hang):
            worker.hung = True
            services.deaths.add_hung(worker.loader, later)
            return
    if seconds := sum(action.seconds for action in actions if isinstance(action, Delay)):
        services.timers.after(seconds, later)
    else:
        answer()


def _unless_gone(worker: WorkerState, call: Syscall, answer: Answer) -> Answer:
    """*answer*, for later. By then the caller may be dead, and the listener closed with it."""

    def answer_if_awaited() -> None:
        if worker.listener.is_waiting(call):
            with contextlib.suppress(ProcessLookupError):  # It has died since.
                answer()

    return answer_if_awaited


def _fail_mapping(
    worker: WorkerState, call: Syscall, path: str, kept: int, copies: FileCopies
) -> None:
    """A page fault is no system call: let mmap(2) map a file that has no such page to give.

    The death that follows cannot be scheduled, as others are: Python's mmap keeps the interpreter
    lock, and without it the worker cannot hand over the batches that it has made.
    """
    unreadable = copies.altered(path, FileEdit(kept)) if kept else copies.empty
    number = signed(call.arguments[READS["mmap"]])
    worker.listener.replace_fd(call, unreadable, number)
    worker.files.set_stand_in(number, unreadable)
    worker.listener.continue_syscall(call)


def _answer_short(worker: WorkerState, call: Syscall, source: int, length: int) -> None:
    try:
        worker.listener.return_value(call, give_short(call, source, length))
    finally:
        os.close(source)


def _plain(
    worker: WorkerState, call: Syscall, followed: TrackedFile, services: SupervisorServices
) -> Answer:
    def continue_syscall() -> None:
        worker.listener.continue_syscall(call)

    if services.provokes_races and followed.inherited and call.name in SHARED_OFFSET_CALLS:
        late = _unless_gone(worker, call, continue_syscall)
        return lambda: services.barrier.arrive(followed.path, late)
    return continue_syscall
