"""The answers to calls that name a file, or make a descriptor [runs in the supervisor].

They open it, examine it, duplicate its descriptor, or reserve space for it.
"""

from __future__ import annotations

import errno
import os
import resource

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen
from pytest_dataloader_faults._engine.kernel import caller, callers_file
from pytest_dataloader_faults._engine.kernel.caller import PathRequest, Syscall
from pytest_dataloader_faults._engine.kernel.callers_file import (
    INVISIBLE,
    MagicLinkError,
    OpenedFile,
)
from pytest_dataloader_faults._engine.kernel.linux import F_DUPFD
from pytest_dataloader_faults._engine.kernel.syscalls import write_stat
from pytest_dataloader_faults._engine.policy import (
    OF_EXCLUDED,
    Action,
    Fail,
    Operation,
    Substitute,
)
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import is_shortage
from pytest_dataloader_faults._engine.supervisor.new_files import OpenCall
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.globs import is_excluded

_TOO_LOW = (
    "the dataset lowered its limit of file descriptors to {}, but files under faults get numbers"
    " from {} up. Keep a higher limit in this test"
)


def opens_known_file(worker: WorkerState, call: Syscall) -> bool:
    """Whether *call* opens a file that no fault is about, as far as is known; such opens count."""
    if call.name != "openat" or call.arguments[2] & os.O_CREAT:
        return False
    try:
        return worker.count_known_open(worker.memory.path(call))
    except PermissionError:
        return False


def on_open(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer an open(2) as its faults require; False if the kernel should execute it."""
    try:
        request = caller.open_request(call, worker.memory.path(call))
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
    if worker.policy.is_exempt(request.path):
        if worker.policy.may_exempt_data(request.path) and os.path.isfile(request.raw):
            worker.policy.unobserved[OF_EXCLUDED] += 1
        return False
    if worker.faults.needs_answer(request.path):
        return _on_targeted_open(worker, call, request, services.copies)
    if os.path.isfile(request.raw):
        worker.add_known_path(request.path)
    return False


def on_bystanders_open(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Follow a file that workers may inherit; False if the kernel should execute the open(2)."""
    try:
        request = caller.open_request(call, worker.memory.path(call))
    except PermissionError:
        return False
    worker.note_reading(request)
    if is_excluded(request.path) or not worker.faults.needs_reads_of(request.path):
        return False
    opened = _open_for_caller(worker, call, request)
    if opened is None or opened.source is None:
        return False
    return_tracked(worker, call, request.path, opened.source, request.flags)
    return True


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
    worker.policy.unobserved[f"open {why}"] += 1
    return False


def _on_targeted_open(
    worker: WorkerState, call: Syscall, request: PathRequest, copies: FileCopies
) -> bool:
    """A fault may be about the file. It is opened before it is decided which one is due."""
    opened = _open_for_caller(worker, call, request)
    if opened is None:
        return False
    operation, source = Operation(call.name, request.path, call.pid), opened.source
    actions = worker.policy.open_actions(operation, opened.size, reads=source is not None)
    if source is not None and not actions and worker.faults.needs_reads_of(request.path):
        return_tracked(worker, call, request.path, source, request.flags)
        return True
    try:
        for action in actions:
            _carry_out(worker, call, request, action, copies, f"/proc/self/fd/{source}")
    finally:
        if source is not None:
            os.close(source)
    return bool(actions)


def _open_for_caller(worker: WorkerState, call: Syscall, request: PathRequest) -> OpenedFile | None:
    """The file as its caller would open it; None if the caller should open it itself."""
    if difference := worker.identities.difference(call.pid):
        _leave_to_kernel(worker, difference)
        return None
    content = request.reads and worker.faults.needs_content_of(request.path)
    try:
        return callers_file.open_for_caller(call, request, content=content)
    except MagicLinkError:
        _leave_to_kernel(worker, "through a link in /proc")
    except OSError as error:
        if is_shortage(error):
            raise
    return None  # The caller gets the same error from its own call.


def _carry_out(
    worker: WorkerState,
    call: Syscall,
    request: PathRequest,
    action: Action,
    copies: FileCopies,
    source: str,
) -> None:
    """Answer *call* by *action*. *source*: the name of the file that was opened, if one was."""
    if isinstance(action, Fail):
        worker.listener.fail(call, action.errno)
    elif isinstance(action, Substitute):
        copy = reopen(copies.get_copy(request.path, action.edit, source), request.flags)
        return_tracked(worker, call, request.path, copy, request.flags)
    else:  # A number that is not open is what a descriptor looks like that was closed.
        worker.listener.return_value(call, worker.files.next_high_fd(call.pid))


def on_stat(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Answer a stat(2) or access(2) of a file that is missing, or a stat(2) of one that is shorter.

    False if the kernel should execute it.
    """
    try:
        request = caller.stat_request(call, worker.memory.path(call))
    except PermissionError:
        return False
    if not worker.faults.targets(request.path) or worker.identities.difference(call.pid):
        return False
    try:
        pin = callers_file.pin_file(call, request)
    except (MagicLinkError, OSError) as error:
        if is_shortage(error):
            raise
        return False  # The caller gets the same error from its own call.
    try:
        size = callers_file.data_size(pin)
        return size is not None and _answer_stat(worker, call, request.path, pin, size)
    finally:
        os.close(pin)


def _answer_stat(worker: WorkerState, call: Syscall, path: str, pin: int, size: int) -> bool:
    """Answer as the file is under its faults; False if it is there, and has its own size."""
    operation = Operation(call.name, path, call.pid)
    for action in worker.policy.stat_actions(operation):
        if isinstance(action, Fail):
            worker.listener.fail(call, action.errno)
            return True
    if call.facts.result_at is None:
        return False
    try:
        write_stat(call, pin, size)  # As the kernel would, which shows whether the call succeeds.
    except OSError:
        return False
    for action in worker.policy.stat_size_actions(operation, size):
        if isinstance(action, Substitute) and action.edit.length is not None:
            write_stat(call, pin, action.edit.length)
            worker.listener.return_value(call, 0)
            return True
    return False


def on_duplicate(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Answer a dup(2) of a followed descriptor; False if the kernel should execute it.

    The duplicate must also be followed, and so must have a high number.
    """
    followed = worker.files.at(call.pid, caller.to_signed(call.arguments[0]))
    if followed is None or followed.source is None or followed.reopened:
        return False
    if call.facts.number_at is not None:
        worker.policy.unobserved[call.name] += 1
        return False
    flags = 0 if call.name == "dup" or call.arguments[1] == F_DUPFD else os.O_CLOEXEC
    return_tracked(worker, call, followed.path, os.dup(followed.source), flags)
    return True


def on_fallocate(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Fail a fallocate(2) in /dev/shm, as if full; False if the kernel should execute it."""
    path = proc.link_of(call.pid, caller.to_signed(call.arguments[0]))
    for action in worker.policy.reserve_actions(Operation(call.name, path, call.pid)):
        if isinstance(action, Fail):
            worker.leftover_shm.append(path)
            worker.listener.fail(call, action.errno)
            return True
    return False


def return_tracked(worker: WorkerState, call: Syscall, path: str, source: int, flags: int) -> None:
    """Answer *call* with a descriptor of *source*, opened with *flags*, and follow it."""
    try:
        number = _return_descriptor(worker, call, source, bool(flags & os.O_CLOEXEC))
    except OSError as error:
        os.close(source)
        if not worker.keep_low_fds or error.errno != errno.EMFILE:
            raise
        worker.listener.fail(call, errno.EMFILE)  # As the kernel would if all numbers are in use.
    else:
        worker.files.add(number, path, source)


def _return_descriptor(worker: WorkerState, call: Syscall, source: int, on_exec: bool) -> int:
    busy: set[int] = set()
    if not worker.keep_low_fds and not worker.files.has_numbers:
        _keep_limit(worker, call)
    while not worker.keep_low_fds:
        number = worker.files.next_high_fd(call.pid, busy)
        try:
            worker.listener.return_fd(call, source, number, close_on_exec=on_exec)
        except OSError as error:
            if error.errno == errno.EBADF:  # The caller has a lower limit by now.
                _keep_limit(worker, call)
            elif error.errno != errno.EBUSY:  # Another thread is about to have that very number.
                raise
            busy.add(number)
        else:
            return number
    return worker.listener.return_fd(call, source, None, close_on_exec=on_exec)


def _keep_limit(worker: WorkerState, call: Syscall) -> None:
    """Give *worker* numbers below the limit that the caller has now."""
    soft, _ = resource.prlimit(call.pid, resource.RLIMIT_NOFILE)
    if not worker.files.limit(soft):
        worker.refuse(_TOO_LOW.format(soft, worker.files.base))
        raise OSError(errno.EMFILE, f"no number below {soft} is left")
