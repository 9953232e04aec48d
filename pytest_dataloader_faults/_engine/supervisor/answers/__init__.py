"""What the supervisor answers: one module for each kind of call or message [runs in it].

Files are the core, which is imported here. Modules about something else say themselves what they
answer, so that nothing here needs to know of them: ``ANSWERS`` has their answers by the role of the
call, which come before those of the core, and ``ANSWERS_ALONE`` an answer to calls that are
recognized by their arguments, which no other module answers. ``ON_MESSAGE`` handles messages of
workers, and ``HISTORY`` is what the module remembers of each worker.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from pytest_dataloader_faults._engine.calls import OF_WRITES, Role
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.opens import (
    on_bystanders_open,
    on_fallocate,
    on_open,
    on_stat,
)
from pytest_dataloader_faults._engine.supervisor.answers.reads import on_read
from pytest_dataloader_faults._engine.supervisor.answers.services import (
    CallAnswer,
    SupervisorServices,
)
from pytest_dataloader_faults._engine.supervisor.answers.starts import on_start
from pytest_dataloader_faults._engine.supervisor.answers.writes import on_write
from pytest_dataloader_faults._engine.supervisor.worker_state import AnswerHistory, WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.imports import import_modules


def _note_unobservable(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    worker.policy.unobserved[call.name] += 1
    return False


def _note_change(worker: WorkerState, _call: Syscall, _services: SupervisorServices) -> bool:
    worker.identities.note_change()
    return False


_OF_FILES: dict[Role, CallAnswer] = {
    Role.OPENS: on_open,
    Role.UNOBSERVABLE: _note_unobservable,
    Role.TRANSFERS: on_read,
    Role.STATS: on_stat,
    Role.CHECKS: on_stat,
    Role.ATTRIBUTES: on_stat,
    Role.RESERVES: on_fallocate,
    Role.CHANGES_IDENTITY: _note_change,
}
_OF_BYSTANDERS: dict[Role, list[CallAnswer]] = {
    Role.OPENS: [on_bystanders_open],
    Role.CHANGES_IDENTITY: [_note_change],
    Role.STARTS: [on_start],
}
"""What is answered to a process in which no fault fires: nothing, but what it does is noted."""
_MAKE_DESCRIPTORS = (Role.OPENS, Role.ALLOCATES, Role.DUPLICATES)


def _list_answers() -> dict[Role, list[CallAnswer]]:
    """The answers by the role of their calls, those of files last."""
    answers: defaultdict[Role, list[CallAnswer]] = defaultdict(list)
    for table in (*(getattr(each, "ANSWERS", {}) for each in _MODULES), _OF_FILES):
        for role, try_answer in table.items():
            answers[role].append(try_answer)
    return dict(answers)


_MODULES = import_modules(__name__, __path__)
_ANSWERS = _list_answers()
_ALONE: list[tuple[Callable[[Syscall], bool], CallAnswer]] = [
    each.ANSWERS_ALONE for each in _MODULES if hasattr(each, "ANSWERS_ALONE")
]
"""Which calls each recognizes, and its answer."""
HISTORIES: list[type[AnswerHistory]] = [
    each.HISTORY for each in _MODULES if hasattr(each, "HISTORY")
]
"""What they remember of each worker."""
ON_MESSAGE: dict[type, Callable[[WorkerState, Any], None]] = {
    kind: handle for each in _MODULES for kind, handle in getattr(each, "ON_MESSAGE", {}).items()
}
"""What is done at a message that only one of the modules knows, by its type."""


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand; the kernel makes a call that has none."""
    if worker.is_bystander:
        answers = _OF_BYSTANDERS.get(call.facts.role, [])
        _answer_or_continue(answers, worker, call, services)
        return
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    for recognizes, try_answer in _ALONE:
        if recognizes(call):
            _answer_or_continue([try_answer], worker, call, services)
            return
    answers = _ANSWERS.get(call.facts.role, [])
    answer_rest = functools.partial(_answer_or_continue, answers, worker, call, services)
    may_write = call.facts.writes_fd is not None and worker.faults.sees & OF_WRITES
    if not may_write or not on_write(worker, call, services, answer_rest):
        answer_rest()


def _answer_or_continue(
    answers: Iterable[CallAnswer], worker: WorkerState, call: Syscall, services: SupervisorServices
) -> None:
    """Answer *call* by the first of *answers* that does; otherwise the kernel executes it."""
    if not any(try_answer(worker, call, services) for try_answer in answers):
        worker.listener.continue_syscall(call)


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel itself refuses a call for want of a descriptor; the policy only counts it."""
    if call.facts.role not in _MAKE_DESCRIPTORS or call.facts.number_at is not None:
        return
    numbers = proc.descriptors(call.pid)
    is_full = all(number in numbers for number in range(worker.limit or 0))
    name = caller.read_path(call) if is_full and call.facts.role is Role.OPENS else None
    path = "" if name is None else caller.resolve_path(call, name, changes=False).path
    worker.policy.note_allocation(Operation(call.name, path, call.pid), is_full=is_full)
