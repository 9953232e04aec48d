"""What the supervisor answers: one module for each kind of call [runs in it]."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from pytest_dataloader_faults._engine.kernel import caller, linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.calls import CALLS, OF_WRITES, Role
from pytest_dataloader_faults._engine.supervisor.answers import files, resources
from pytest_dataloader_faults._engine.supervisor.answers.folders import on_list, on_stray
from pytest_dataloader_faults._engine.supervisor.answers.network import on_connect
from pytest_dataloader_faults._engine.supervisor.answers.workers import (
    CallAnswer,
    SupervisorServices,
)
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults import DescriptorExhaustion


def _note_unobservable(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    worker.unobserved[call.name] += 1
    return False


def _note_change(worker: WorkerState, _call: Syscall, _services: SupervisorServices) -> bool:
    worker.identities.note_change()
    return False


_ANSWERS: dict[Role, tuple[CallAnswer, ...]] = {
    Role.OPENS: (on_stray, files.on_open),
    Role.TRANSFERS: (files.on_read,),
    Role.EXAMINES: (on_stray, files.on_stat),
    **dict.fromkeys((Role.DUPLICATES, Role.LOCKS), (resources.on_lock,)),
    Role.STARTS: (resources.on_start,),
    Role.LISTS: (on_list,),
    Role.CONNECTS: (on_connect,),
    Role.RESERVES: (files.on_fallocate,),
    Role.UNOBSERVABLE: (_note_unobservable,),
    Role.CHANGES_IDENTITY: (_note_change,),
}
_OF_BYSTANDERS: dict[Role, tuple[CallAnswer, ...]] = {
    Role.OPENS: (files.on_bystanders_open,),
    Role.CHANGES_IDENTITY: (_note_change,),
    Role.STARTS: (resources.on_start,),
}
"""What is answered to a process in which no fault fires: nothing, but what it does is noted."""
_DUPLICATING = (linux.F_DUPFD, linux.F_DUPFD_CLOEXEC)
_MAKE_DESCRIPTORS = (Role.OPENS, Role.ALLOCATES, Role.DUPLICATES)


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand; the kernel makes a call that has none."""
    facts = CALLS[call.name]
    if worker.is_bystander:
        _answer_by(_OF_BYSTANDERS.get(facts.role, ()), worker, call, services)
        return
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if resources.is_allocation(call):
        _answer_by((resources.on_allocation,), worker, call, services)
        return
    answers = _ANSWERS.get(facts.role, ())
    if facts.writes_fd is not None and worker.sees & OF_WRITES:
        answer_rest = functools.partial(_answer_by, answers, worker, call, services)
        if files.on_write(worker, call, services, answer_rest):
            return
    _answer_by(answers, worker, call, services)


def _answer_by(
    answers: Iterable[CallAnswer], worker: WorkerState, call: Syscall, services: SupervisorServices
) -> None:
    """Answer *call* by the first of *answers* that does; otherwise the kernel executes it."""
    for try_answer in answers:
        if try_answer(worker, call, services):
            return
    worker.listener.continue_syscall(call)


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """Count a call that needs a descriptor, which the kernel itself refuses if there is none."""
    if call.facts.role not in _MAKE_DESCRIPTORS or call.facts.number_at is not None:
        return
    if call.name == "fcntl" and caller.to_signed(call.arguments[1]) not in _DUPLICATING:
        return
    numbers = proc.descriptors(call.pid)
    is_full = all(number in numbers for number in range(worker.limit or 0))
    name = caller.read_path(call) if is_full and call.facts.role is Role.OPENS else None
    path = "" if name is None else caller.resolve_path(call, name).path
    for counter in worker.counters_of_kind(DescriptorExhaustion):
        counter.matched += 1
        if is_full:
            worker.fire(counter, call.name, path, call.pid)
