"""What the supervisor answers: one module for each kind of call or message [runs in it]."""

from __future__ import annotations

from pytest_dataloader_faults._engine.calls import Role
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.network import on_connect
from pytest_dataloader_faults._engine.supervisor.answers.opens import (
    on_duplicate,
    on_open,
    on_room,
    on_stat,
)
from pytest_dataloader_faults._engine.supervisor.answers.reads import on_read
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.answers.writes import on_write
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc

_MAKE_DESCRIPTORS = (Role.OPENS, Role.ALLOCATES, Role.DUPLICATES)


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand; the kernel makes a call that has none."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if call.facts.writes_fd is not None and on_write(worker, call, services):
        return
    if call.facts.reads_fd is not None:
        on_read(worker, call, services)
    elif not _try_answer(worker, call, services):
        worker.listener.continue_syscall(call)


def _try_answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a call by what it does, or note it; False if the kernel is to make it."""
    role = call.facts.role
    if role is Role.OPENS:
        return on_open(worker, call, services.copies)
    if role is Role.DUPLICATES:
        return on_duplicate(worker, call)
    if role in (Role.STATS, Role.CHECKS):
        return on_stat(worker, call)
    if role is Role.RESERVES:
        return on_room(worker, call)
    if role is Role.CONNECTS:
        return on_connect(worker, call, services.relay)
    if role is Role.LOCKS:  # flock(2) is of the open file description, which ours would keep.
        worker.files.stop_sharing(call.pid, caller.signed(call.arguments[0]))
    elif role is Role.UNOBSERVABLE:
        worker.policy.unobserved[call.name] += 1
    elif role is Role.CHANGES_IDENTITY:
        worker.identities.note_change(call)
    return False


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel itself refuses a call for want of a descriptor; the policy only counts it."""
    if call.facts.role not in _MAKE_DESCRIPTORS or call.facts.number_at is not None:
        return
    used = proc.descriptors(call.pid)
    is_full = all(number in used for number in range(worker.limit or 0))
    name = worker.memory.path(call) if is_full and call.facts.role is Role.OPENS else None
    path = "" if name is None else caller.resolved_path(call, name).path
    worker.policy.allocated(Operation(call.name, path, call.pid), is_full=is_full)
