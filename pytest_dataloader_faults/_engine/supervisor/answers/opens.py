"""The answers to calls that open or examine a file, or reserve space for it [in the supervisor]."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from typing import NamedTuple

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, PathRequest, Syscall
from pytest_dataloader_faults._engine.kernel.syscalls import write_stat
from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.races import OpenCall
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults import OpenError, SharedMemoryExhaustion, TruncatedFile
from pytest_dataloader_faults.faults.base import Place

_MOST_NUMBERS = 1 << 20
_EXCLUDED_OPEN = "open of an excluded file"
"""Label in ``unobserved``: an open that only the exclusion of system folders kept from a fault."""


def on_open(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer an open(2) as its faults require; False if the kernel should execute it."""
    try:
        request = caller.open_request(call)
    except PermissionError:
        return _leave_to_kernel(worker, INVISIBLE)
    is_there = not request.flags & os.O_CREAT or os.path.exists(request.raw)
    is_lock = bool(request.flags & os.O_EXCL)
    worker.note_use(request, is_there=is_there, is_lock=is_lock)
    if services.provokes_races:
        empties = bool(request.flags & os.O_TRUNC)
        creates = empties or not is_there
        opening = OpenCall(request.path, request.reads, creates, empties, is_lock)
        if _is_held(worker, call, opening, services):
            return True
    if worker.is_exempt(request.path):
        if worker.may_exempt_data(request.path) and os.path.isfile(request.raw):
            worker.unobserved[_EXCLUDED_OPEN] += 1
        return False
    return _on_data_open(worker, call, request, services.copies)


def on_bystanders_open(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Note what the process reads; the kernel executes its open(2)."""
    with contextlib.suppress(PermissionError):
        worker.note_reading(caller.open_request(call))
    return False


def _is_held(
    worker: WorkerState, call: Syscall, opening: OpenCall, services: SupervisorServices
) -> bool:
    """Whether *call*, an *opening*, waits for another worker, and is answered later."""

    def answer() -> None:
        if not on_open(worker, call, services):
            worker.listener.continue_syscall(call)

    late = worker.answer_if_waiting(call, answer)
    return services.new_files.hold_open(worker, opening, late)


def _leave_to_kernel(worker: WorkerState, why: str) -> bool:
    """The caller opens the file itself, and no fault can happen to it."""
    worker.unobserved[f"open {why}"] += 1
    return False


def _on_data_open(
    worker: WorkerState, call: Syscall, request: PathRequest, copies: FileCopies
) -> bool:
    """Answer an open of what may be data; False if the kernel should execute it."""
    is_meant = worker.needs_answer(request.path)
    if difference := worker.identities.difference(call.pid):
        return is_meant and _leave_to_kernel(worker, difference)
    may_differ = request.reads and worker.has_fault_in(request.path, Place.DESCRIPTOR)
    if may_differ and request.resolve:
        return _leave_to_kernel(worker, "by openat2 with RESOLVE_* flags")
    path = caller.find(call, request) if may_differ else request.raw
    file = _look_at(path, request.flags & os.O_NOFOLLOW)
    if file is not None and not stat.S_ISREG(file.status.st_mode):
        return False
    if not request.is_descriptor:
        real = file.path if file else os.path.realpath(path)
        worker.note_name(request, real, is_there=file is not None)
    operation = Operation(call.name, request.path, call.pid)
    if file is not None:
        worker.count(request.path, "opens")
    if fault := worker.fire_first_due(OpenError, operation):
        worker.listener.fail(call, fault.errno)
        return True
    if file is None or not may_differ or not os.access(path, os.R_OK, effective_ids=True):
        return False
    return _differs(worker, call, request, path, file.status.st_size, copies)


def _differs(
    worker: WorkerState,
    call: Syscall,
    request: PathRequest,
    source: str,
    size: int,
    copies: FileCopies,
) -> bool:
    """Answer *call* with a closed descriptor or a copy of *source*, if a fault demands that."""
    operation = Operation(call.name, request.path, call.pid)
    if worker.closes(operation):
        # A number that is not open is what a descriptor looks like that was closed.
        worker.listener.return_value(call, _unused_number(call.pid))
        return True
    edit = worker.edit_for(operation, size)
    if edit is not None:
        copy = reopen(copies.get_copy(request.path, edit, source), request.flags)
        return_fd(worker, call, copy, request.flags)
    return edit is not None


class _File(NamedTuple):
    """A file, by its path without links."""

    path: str
    status: os.stat_result


def _look_at(path: str, flags: int) -> _File | None:
    """The file that *path* leads to; None if the kernel finds none, or may not."""
    try:
        pin = os.open(path, flags | os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _File(proc.link_of("self", pin), os.fstat(pin))
    finally:
        os.close(pin)


def return_fd(worker: WorkerState, call: Syscall, source: int, flags: int) -> None:
    """Answer *call*, an open with *flags*, with a descriptor of *source*, and close that here."""
    try:
        worker.listener.return_fd(call, source, flags)
    finally:
        os.close(source)


def _unused_number(pid: int) -> int:
    """The highest number that is not open in *pid*: the kernel gives the lowest ones."""
    soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = proc.descriptors(pid)
    return next(
        number for number in range(min(soft, _MOST_NUMBERS) - 1, -1, -1) if number not in used
    )


def on_stat(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Answer a stat(2) or access(2) of a file that is missing, or a stat(2) of one that is shorter.

    False if the kernel should execute it.
    """
    try:
        request = caller.stat_request(call)
    except PermissionError:
        return False
    if not worker.targets(request.path) or worker.identities.difference(call.pid):
        return False
    look = os.O_PATH | os.O_CLOEXEC | (request.flags & os.O_NOFOLLOW)
    try:
        pin = os.open(caller.find(call, request), look)
    except OSError:
        return False  # The caller gets the same error from its own call.
    try:
        status = os.fstat(pin)
        is_file = stat.S_ISREG(status.st_mode)
        return is_file and _answer_stat(worker, call, request.path, pin, status.st_size)
    finally:
        os.close(pin)


def _answer_stat(worker: WorkerState, call: Syscall, path: str, pin: int, size: int) -> bool:
    """Answer as the file is under its faults; False if it is there, and has its own size."""
    operation = Operation(call.name, path, call.pid)
    hiding = worker.fire_first_due(OpenError, operation, lambda fault: fault.hides_file)
    if hiding:
        worker.listener.fail(call, hiding.errno)
        return True
    if call.facts.result_at is None or not any(worker.counters_of_kind(TruncatedFile)):
        return False
    try:
        write_stat(call, pin, size)  # As the kernel would, which shows whether the call succeeds.
    except OSError:
        return False
    edit = worker.edit_for(operation, size, sizes=True)
    if edit is None or edit.length is None:
        return False
    write_stat(call, pin, edit.length)
    worker.listener.return_value(call, 0)
    return True


def on_fallocate(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Fail a fallocate(2) in /dev/shm, as if full; False if the kernel should execute it."""
    path = proc.link_of(call.pid, caller.to_signed(call.arguments[0]))
    for counter in worker.counters_of_kind(SharedMemoryExhaustion):
        if path.startswith("/dev/shm/") and counter.reach():
            worker.fire(counter, call.name, path, call.pid)
            worker.leftover_shm.append(path)
            worker.listener.fail(call, counter.fault.errno)
            return True
    return False
