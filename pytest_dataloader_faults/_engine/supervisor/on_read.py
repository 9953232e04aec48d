"""What reads of followed files are answered [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from pytest_dataloader_faults._engine.file_copies import FileCopies, FileEdit
from pytest_dataloader_faults._engine.kernel.bpf import READS
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall, TrackedFile, signed
from pytest_dataloader_faults._engine.kernel.syscalls import (
    Span,
    can_be_short,
    give_short,
    source_for,
    span,
)
from pytest_dataloader_faults._engine.supervisor.on_fetch import die_in_read, due_in_read
from pytest_dataloader_faults._engine.supervisor.shared_offsets import CALLS as MEETING
from pytest_dataloader_faults._engine.supervisor.shared_offsets import SharedOffsetBarrier
from pytest_dataloader_faults._engine.supervisor.timers import DeathScheduler, Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import (
    BYTES_OF,
    READS_OF,
    WorkerState,
)
from pytest_dataloader_faults.faults import HungRead, ReadError, ShortRead, SlowRead

Action = Callable[[], None]


@dataclass(frozen=True)
class SupervisorServices:
    """What answers are made of. *meet*: bring reads at a shared offset together."""

    substitutes: FileCopies
    delays: Timers
    gates: DeathScheduler
    rendezvous: SharedOffsetBarrier
    meet: bool


def on_read(worker: WorkerState, call: Syscall, means: SupervisorServices) -> None:
    """Answer a read, or a mapping, of what may be a followed file."""
    followed = worker.followed_by(call.pid, signed(call.arguments[READS[call.name]]))
    if followed is None:
        worker.listener.go_on(call)
        return
    wanted = span(call, source_for(call, followed))
    counts = worker.opened[followed.path]
    counts[READS_OF] += 1
    counts[BYTES_OF] += wanted.length
    if followed.inherited and call.name in MEETING:
        worker.read_at_offset[followed.path] = signed(call.arguments[READS[call.name]])
    act = (
        _failing(worker, call, followed, wanted, means)
        or _short(worker, call, followed, wanted)
        or _plain(worker, call, followed, means)
    )
    if (death := due_in_read(worker, followed.path)) is not None:
        later = _unless_gone(worker, call, act)
        die_in_read(worker, death, followed.path, means.gates, means.delays, later)
    elif _hangs(worker, call, followed):
        worker.stuck = True
        means.gates.stick(worker.loader, _unless_gone(worker, call, act))
    elif seconds := _delay(worker, call, followed):
        means.delays.after(seconds, _unless_gone(worker, call, act))
    else:
        act()


def _unless_gone(worker: WorkerState, call: Syscall, act: Action) -> Action:
    """*act*, for later: by then the caller may have died, and the listener be closed with it."""

    def act_if_awaited() -> None:
        if worker.listener.is_waiting(call):
            with contextlib.suppress(ProcessLookupError):  # It has died since.
                act()

    return act_if_awaited


def _failing(
    worker: WorkerState,
    call: Syscall,
    followed: TrackedFile,
    wanted: Span,
    means: SupervisorServices,
) -> Action | None:
    for tally in worker.tallies.about(ReadError, followed.path):
        fault = tally.fault
        if fault.offset is not None and wanted.end <= fault.offset:
            continue
        if tally.reach():
            worker.fire(tally, call, followed.path)
            if call.name == "mmap":
                kept = fault.offset or 0
                return lambda: _fail_mapping(worker, call, followed.path, kept, means.substitutes)
            return lambda: worker.listener.fail(call, fault.errno)
    return None


def _fail_mapping(
    worker: WorkerState, call: Syscall, path: str, kept: int, substitutes: FileCopies
) -> None:
    """A page fault is no system call: let mmap(2) map a file that has no such page to give.

    The death that follows cannot wait at a gate, as others do: Python's mmap keeps the interpreter
    lock, and without it the worker cannot hand over the batches that it has made.
    """
    unreadable = substitutes.altered(path, FileEdit(kept)) if kept else substitutes.empty
    number = signed(call.arguments[READS["mmap"]])
    worker.listener.replace(call, unreadable, number)
    worker.stands_in(number, unreadable)
    worker.listener.go_on(call)


def _short(
    worker: WorkerState, call: Syscall, followed: TrackedFile, wanted: Span
) -> Action | None:
    for tally in worker.tallies.about(ShortRead, followed.path):
        length = tally.fault.max_bytes
        ours = source_for(call, followed)
        if ours is None or not can_be_short(call) or wanted.length <= length:
            continue
        if tally.reach():
            worker.fire(tally, call, followed.path)
            source = os.dup(ours)  # The file may be closed before the answer is due.
            return lambda: _answer_short(worker, call, source, length)
    return None


def _answer_short(worker: WorkerState, call: Syscall, source: int, length: int) -> None:
    try:
        worker.listener.result(call, give_short(call, source, length))
    finally:
        os.close(source)


def _plain(
    worker: WorkerState, call: Syscall, followed: TrackedFile, means: SupervisorServices
) -> Action:
    def go_on() -> None:
        worker.listener.go_on(call)

    if means.meet and followed.inherited and call.name in MEETING:
        late = _unless_gone(worker, call, go_on)
        return lambda: means.rendezvous.arrive(followed.path, late)
    return go_on


def _hangs(worker: WorkerState, call: Syscall, followed: TrackedFile) -> bool:
    for tally in worker.tallies.about(HungRead, followed.path):
        if tally.reach():
            worker.fire(tally, call, followed.path)
            return True
    return False


def _delay(worker: WorkerState, call: Syscall, followed: TrackedFile) -> float:
    """Seconds by which the answer is to be late."""
    total = 0.0
    for tally in worker.tallies.about(SlowRead, followed.path):
        if tally.reach():
            worker.fire(tally, call, followed.path)
            total += tally.fault.seconds
    return total
