"""The answers to calls that open, examine, read, map or write a file [runs in the supervisor].

Which file a descriptor is, /proc says when the call arrives. So it does not matter how the worker
got it: by open(2), as a duplicate, from its parent, or from another process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import stat
from collections.abc import Callable

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._engine.file_copies import FileCopies, FileEdit, reopen
from pytest_dataloader_faults._engine.kernel import caller, syscalls
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.kernel.calls import CALLS
from pytest_dataloader_faults._engine.plan import MAP, Due, FaultCounter, Operation
from pytest_dataloader_faults._engine.supervisor.answers.workers import (
    SupervisorServices,
    die_in_call,
)
from pytest_dataloader_faults._engine.supervisor.events import Action
from pytest_dataloader_faults._engine.supervisor.races import OpenCall
from pytest_dataloader_faults._engine.supervisor.worker_state import UNLINKED, WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults.faults.base import Place

# Some facts about which file a write is of. Files, pipes, sockets and shared memory look the same
# to the filter. The link in /proc/PID/fd distinguishes them, and has the current name of the file,
# even after a rename(2). A file without a name (O_TMPFILE, or unlinked) has a link count of 0:
# pytest keeps what a worker prints in one, so none of them is touched.


_MOST_NUMBERS = 1 << 20
_EXCLUDED_OPEN = "open of an excluded file"
"""Label in ``unobserved``: an open that only the exclusion of system folders kept from a fault."""


def on_open(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer an open(2) as its faults require; False if the kernel should execute it."""
    try:
        request = caller.open_request(call)
    except PermissionError:
        return _leave_to_kernel(worker, caller.INVISIBLE)
    is_there = not request.flags & os.O_CREAT or os.path.exists(request.raw)
    is_lock = bool(request.flags & os.O_EXCL)
    worker.note_use(request, is_there=is_there, is_lock=is_lock)
    if services.races:
        creates = bool(request.flags & os.O_TRUNC) or not is_there
        opening = OpenCall(request.path, request.reads, creates, is_lock)
        services.races.note_open(worker, opening)
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


def _leave_to_kernel(worker: WorkerState, why: str) -> bool:
    """The caller opens the file itself, and no fault can happen to it."""
    worker.unobserved[f"open {why}"] += 1
    return False


def _on_data_open(
    worker: WorkerState, call: Syscall, request: caller.PathRequest, copies: FileCopies
) -> bool:
    """Answer an open of what may be data; False if the kernel should execute it."""
    is_meant = worker.needs_answer(request.path)
    if difference := worker.identities.difference(call.pid):
        return is_meant and _leave_to_kernel(worker, difference)
    may_differ = request.reads and worker.targets(request.path, Place.DESCRIPTOR)
    if may_differ and request.resolve:
        return _leave_to_kernel(worker, "by openat2 with RESOLVE_* flags")
    path = caller.find(call, request) if may_differ else request.raw
    real, status = _look_at(path, request.flags & os.O_NOFOLLOW)
    if status is not None and not stat.S_ISREG(status.st_mode):
        return False
    if not request.is_descriptor:
        worker.note_name(request, real, is_there=status is not None)
    operation = Operation(call.name, request.path, call.pid)
    if status is not None:
        worker.count(request.path, "opens")
    if due := worker.fire_first_due(faults.OpenError, operation):
        worker.listener.fail(call, due.fault.errno)
        return True
    if status is None or not may_differ or not os.access(path, os.R_OK, effective_ids=True):
        return False
    return _differs(worker, call, request, path, status.st_size, copies)


def _differs(
    worker: WorkerState,
    call: Syscall,
    request: caller.PathRequest,
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
        worker.listener.return_fd(call, copy, request.flags)
    return edit is not None


def _look_at(path: str, flags: int) -> tuple[str, os.stat_result | None]:
    """The file that *path* leads to, without links; None if the kernel finds none, or may not."""
    try:
        pin = os.open(path, flags | os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path), None
    try:
        return proc.link_of("self", pin), os.fstat(pin)
    finally:
        os.close(pin)


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
    hiding = worker.fire_first_due(faults.OpenError, operation, lambda each: each.fault.hides_file)
    if hiding:
        worker.listener.fail(call, hiding.fault.errno)
        return True
    if call.facts.result_at is None or not any(worker.counters_of_kind(faults.TruncatedFile)):
        return False
    try:
        # As the kernel would, which shows whether the call succeeds.
        syscalls.write_stat(call, pin, size)
    except OSError:
        return False
    edit = worker.edit_for(operation, size, sizes=True)
    if edit is None or edit.length is None:
        return False
    syscalls.write_stat(call, pin, edit.length)
    worker.listener.return_value(call, 0)
    return True


def on_fallocate(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Fail a fallocate(2) in /dev/shm, as if full; False if the kernel should execute it."""
    path = proc.link_of(call.pid, caller.to_signed(call.arguments[0]))
    if not path.startswith("/dev/shm/"):
        return False
    operation = Operation(call.name, path, call.pid)
    due = worker.fire_first_due(faults.SharedMemoryExhaustion, operation)
    if due:
        worker.leftover_shm.append(path)
        worker.listener.fail(call, due.fault.errno)
    return due is not None


_READS = frozenset(name for name, facts in CALLS.items() if facts.reads_into_buffers)
_MAPPED_WRITE = "write through a mapping"
_INHERITED_WRITE = "write to a file that was open before the worker started"
"""Labels in ``unobserved``: writes that no call shows, and writes that cannot fail."""


def is_plain_read(worker: WorkerState, call: Syscall) -> bool:
    """Whether *call* is a read that no fault and no count is about. Most are: this is quick."""
    if call.name not in _READS:
        return False
    try:
        path = worker.path_at(call.pid, caller.to_signed(call.arguments[0]))
    except OSError:
        return False
    return not path or not worker.needs_reads_of(path)


def on_read(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a read, or a mapping, of a file; False if the kernel should execute it."""
    if call.facts.reads_fd is None:
        return False
    number = caller.to_signed(call.argument(call.facts.reads_fd))
    found = _find_read(worker, call, number)
    if found is None:
        return False
    path, read_span = found
    shares_offset = call.facts.shares_offset and worker.has_inherited(number, path)
    if shares_offset:
        worker.read_at_offset[path] = number
    due = worker.read_due(Operation(call.name, path, call.pid), *read_span)
    answer = _read_answer(worker, call, number, path, due, services)
    later = worker.answer_if_waiting(call, answer)
    if due.death:
        die_in_call(worker, due.death, path, services, later)
    elif due.hangs:
        worker.hung = True
        services.deaths.add_hung(worker.loader, later)
    elif due.seconds:
        services.timers.after(due.seconds, later)
    elif services.races and shares_offset and not (due.errno or due.max_bytes):
        services.races.hold_read(worker, path, later)
    else:
        answer()
    return True


def _find_read(
    worker: WorkerState, call: Syscall, number: int
) -> tuple[str, tuple[int, int]] | None:
    """The file that *call* reads by descriptor *number*, and what of it; None if it is exempt."""
    try:
        path = worker.path_at(call.pid, number)
        is_meant = path and worker.needs_reads_of(path)
        if not is_meant or not _is_file(call.pid, number):
            return None
        if difference := worker.identities.difference(call.pid):
            worker.unobserved[f"read {difference}"] += 1
            return None
        return path, syscalls.span(call, number)
    except PermissionError:
        worker.unobserved[f"read {caller.INVISIBLE}"] += 1
    except (FileNotFoundError, ProcessLookupError):  # The kernel refuses the call.
        pass
    return None


def _is_file(pid: int, number: int) -> bool:
    """Whether a descriptor is a regular file, and not one that was opened in another container."""
    link = f"/proc/{pid}/fd/{number}"
    path = os.readlink(link)
    is_here = path.endswith(UNLINKED) or os.path.lexists(path)
    return is_here and stat.S_ISREG(os.stat(link).st_mode)


def _read_answer(
    worker: WorkerState,
    call: Syscall,
    number: int,
    path: str,
    due: Due,
    services: SupervisorServices,
) -> Action:
    """What answers *call*, a read of *path*, in the end."""

    def fail_mapping() -> None:
        """A page fault is not a system call: let mmap(2) map a file that lacks the page.

        The death that follows cannot be scheduled, as others are: Python's mmap keeps the GIL, and
        without it the worker cannot send the batches that it has made.
        """
        mapped = f"/proc/{call.pid}/fd/{number}"
        unreadable = services.copies.get_copy(path, FileEdit(due.offset), mapped)
        worker.listener.replace_fd(call, unreadable, number)
        worker.listener.continue_syscall(call)

    def give_part() -> None:
        description = syscalls.description_of(call, number)
        try:
            count = description.read(worker.listener, call, due.max_bytes or 0)
            services.bytes_read.add(count)
            worker.listener.return_value(call, count)
        finally:
            os.close(description.descriptor)

    if due.errno:
        fail = functools.partial(worker.listener.fail, call, due.errno)
        return fail_mapping if call.name == MAP and due.errno != errno.ENODEV else fail
    proceed = functools.partial(worker.listener.continue_syscall, call)
    return proceed if due.max_bytes is None else give_part


def on_write(
    worker: WorkerState,
    call: Syscall,
    services: SupervisorServices,
    answer_rest: Callable[[], None],
) -> bool:
    """Answer *call*, which may write to a file, as its faults demand; False if it has none.

    The first write to a new file may have to wait until *answer_rest* answers it.
    """
    number = caller.to_signed(call.argument(call.facts.writes_fd))
    path = _written_path(worker, call.pid, number)
    if path is None:
        return False
    is_meant = worker.targets(path, Place.WRITE)
    if call.name == MAP or worker.has_inherited(number, path):
        worker.unobserved[_MAPPED_WRITE if call.name == MAP else _INHERITED_WRITE] += is_meant
        return False
    if call.facts.has_data and Place.LOCK in worker.sees:
        worker.write_locks.note_write(call.pid, path)
    try:
        length = syscalls.requested_length(call) if is_meant and call.facts.writes_buffers else 0
    except OSError:  # The kernel also refuses the call.
        return False
    due = worker.write_due(Operation(call.name, path, call.pid), length)
    if _answer_write(worker, call, path, length, due, services):
        return True
    if services.races is None or not call.facts.has_data:
        return False
    late = worker.answer_if_waiting(call, answer_rest)
    return services.races.hold_write(worker, path, late)


def _answer_write(
    worker: WorkerState,
    call: Syscall,
    path: str,
    length: int,
    due: Due,
    services: SupervisorServices,
) -> bool:
    """Answer *call*, a write to *path*; False if nothing is due, or if it cannot be done here."""
    if due.death:
        return _die_after_half(worker, call, due.death, path, length // 2, services)
    if due.max_bytes is not None:
        return _write_part(worker, call, due.max_bytes)
    if due.errno:
        worker.listener.fail(call, due.errno)
    return bool(due.errno)


def _written_path(worker: WorkerState, pid: int, number: int) -> str | None:
    """The name of the file, if it is a regular one that has a name and that matters."""
    try:
        path = worker.link_at(pid, number)
        if not path.startswith("/") or worker.is_exempt(path):
            return None
        status = os.stat(f"/proc/{pid}/fd/{number}")
    except PermissionError:
        worker.unobserved[f"write {caller.INVISIBLE}"] += 1
        return None
    except (FileNotFoundError, ProcessLookupError):  # The kernel refuses the call.
        return None
    return path if stat.S_ISREG(status.st_mode) and status.st_nlink else None


def _write_part(worker: WorkerState, call: Syscall, length: int) -> bool:
    """Write the first *length* bytes instead of *call*; False if that cannot be done here."""
    target = _target(worker, call)
    if target is None:
        return False
    try:
        worker.listener.return_value(call, target.write(worker.listener, call, length))
    except OSError as error:  # Of the file itself, whose disk may be full.
        worker.listener.fail(call, error.errno or errno.EIO)
    finally:
        os.close(target.descriptor)
    return True


def _die_after_half(
    worker: WorkerState,
    call: Syscall,
    death: FaultCounter[faults.WorkerKilled],
    path: str,
    half: int,
    services: SupervisorServices,
) -> bool:
    """Let the worker die once *half* of the bytes are written; False if that cannot be done.

    Of a call that copies from another file, nothing is written: its *half* is 0.
    """
    target = _target(worker, call) if half else None
    if half and target is None:
        return False
    written: list[int] = []
    closing = contextlib.ExitStack()
    if target is not None:
        closing.callback(os.close, target.descriptor)

    def write_half() -> None:
        if target is not None:
            with contextlib.suppress(OSError):  # The disk really is full.
                written.append(target.write(worker.listener, call, half))

    def answer() -> None:
        """For a caller that was stopped and continues, or if faults must not fire any more."""
        closing.close()
        resume = functools.partial(worker.listener.continue_syscall, call)
        if written:
            resume = functools.partial(worker.listener.return_value, call, written[0])
        worker.answer_if_waiting(call, resume)()

    die_in_call(worker, death, path, services, answer, before_death=write_half)
    return True


def _target(worker: WorkerState, call: Syscall) -> syscalls.Description | None:
    """Where a part of *call* can be written; None, which is refused, if nowhere."""
    try:
        return syscalls.description_of(call, caller.to_signed(call.argument(call.facts.writes_fd)))
    except PermissionError as error:
        worker.refuse(
            f"a {call.name} cannot be shortened: pidfd_getfd(2) is forbidden here (the container's"
            f" seccomp profile?), and the file cannot be opened again: {error}. Use WriteError, or"
            " docker run --cap-add SYS_PTRACE"
        )
        return None
