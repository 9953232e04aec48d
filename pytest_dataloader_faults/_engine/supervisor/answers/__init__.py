"""What the supervisor answers: one module for each kind of call or message [runs in it]."""

from __future__ import annotations

import errno
import functools

from pytest_dataloader_faults._engine.calls import Role
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.listings import on_list
from pytest_dataloader_faults._engine.supervisor.answers.locks import is_lock, on_lock
from pytest_dataloader_faults._engine.supervisor.answers.memory import is_allocation, on_allocation
from pytest_dataloader_faults._engine.supervisor.answers.network import on_connect
from pytest_dataloader_faults._engine.supervisor.answers.opens import (
    on_duplicate,
    on_fallocate,
    on_open,
    on_stat,
)
from pytest_dataloader_faults._engine.supervisor.answers.reads import on_read
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.answers.starts import on_start
from pytest_dataloader_faults._engine.supervisor.answers.stray_entries import on_stray
from pytest_dataloader_faults._engine.supervisor.answers.writes import on_write
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc

_RING = "io_uring_setup"


def _refuse_ring(worker: WorkerState, call: Syscall) -> bool:
    """Refuse what would read files unseen, if libraries can do without; otherwise note the call.

    They can do without io_uring, which Docker's default profile refuses in the same way.
    """
    if call.name == _RING and worker.policy.faults.are_of_files:
        worker.listener.fail(call, errno.EPERM)
        return True
    worker.policy.unobserved[call.name] += 1
    return False


_ANSWERS = {
    Role.UNOBSERVABLE: _refuse_ring,
    Role.DUPLICATES: on_duplicate,
    Role.STATS: on_stat,
    Role.CHECKS: on_stat,
    Role.ATTRIBUTES: on_stat,
    Role.RESERVES: on_fallocate,
    Role.STARTS: on_start,
    Role.FORKS: on_start,
}
_NAME_FILES = (Role.OPENS, Role.STATS, Role.CHECKS, Role.ATTRIBUTES)
_MAKE_DESCRIPTORS = (Role.OPENS, Role.ALLOCATES, Role.DUPLICATES)


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand; the kernel makes a call that has none."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if is_allocation(call):
        if not on_allocation(worker, call):
            worker.listener.continue_syscall(call)
        return
    answer_rest = functools.partial(_answer_unwritten, worker, call, services)
    if call.facts.writes_fd is None or not on_write(worker, call, services, answer_rest):
        answer_rest()


def _answer_unwritten(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* as faults demand that are not about writes."""
    if call.facts.reads_fd is not None:
        on_read(worker, call, services)
        return
    try_answer = on_lock if is_lock(call) else _try_answer
    if not try_answer(worker, call, services):
        worker.listener.continue_syscall(call)


def _try_answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a call by what it does, or note it; False if the kernel should execute it."""
    role = call.facts.role
    if role in _NAME_FILES and on_stray(worker, call, services.copies):
        return True
    if role is Role.OPENS:
        return on_open(worker, call, services)
    if role is Role.LISTS:
        return on_list(worker, call, services.copies)
    if role in _ANSWERS:
        return _ANSWERS[role](worker, call)
    if role is Role.CONNECTS:
        return on_connect(worker, call, services)
    if role is Role.CHANGES_IDENTITY:
        worker.identities.note_change()
    return False


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel itself refuses a call for want of a descriptor; the policy only counts it."""
    if call.facts.role not in _MAKE_DESCRIPTORS or call.facts.number_at is not None:
        return
    numbers = proc.descriptors(call.pid)
    is_full = all(number in numbers for number in range(worker.limit or 0))
    name = worker.memory.path(call) if is_full and call.facts.role is Role.OPENS else None
    path = "" if name is None else caller.resolve_path(call, name).path
    worker.policy.note_allocation(Operation(call.name, path, call.pid), is_full=is_full)
