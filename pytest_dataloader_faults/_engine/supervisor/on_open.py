"""The answer to each system call that the filter hands over [runs in the supervisor]."""

from __future__ import annotations

import errno
import os
import stat

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen, unrelated_file
from pytest_dataloader_faults._engine.kernel.bpf import (
    ALLOCATORS,
    BLIND,
    DUPLICATES,
    LOCKS,
    OPENS,
    READS,
    ROOM,
    STATS,
)
from pytest_dataloader_faults._engine.kernel.linux import F_DUPFD
from pytest_dataloader_faults._engine.kernel.remote_process import (
    OpenRequest,
    ResolvedPath,
    Syscall,
    descriptors,
    link_of,
    open_request,
    resolved_path,
    signed,
)
from pytest_dataloader_faults._engine.kernel.syscalls import is_about_link, write_stat
from pytest_dataloader_faults._engine.policy import Closed, Fail, Operation, Substitute
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import is_shortage
from pytest_dataloader_faults._engine.supervisor.on_read import SupervisorServices, on_read
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults._globs import is_package_data

_RESULT_IS_CHOSEN = ("dup2", "dup3")


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if call.name in OPENS:
        _on_open(worker, call, open_request(call), services.copies)
    elif call.name in READS:
        on_read(worker, call, services)
    elif call.name in DUPLICATES:
        _on_duplicate(worker, call)
    elif call.name in STATS:
        _on_stat(worker, call, resolved_path(call))
    elif call.name in ROOM:
        _on_room(worker, call)
    elif call.name in LOCKS:
        _on_lock(worker, call)
    else:
        worker.policy.unobserved.update([call.name] if call.name in BLIND else [])
        worker.listener.continue_syscall(call)


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel itself refuses a call for want of a descriptor; the policy only counts it."""
    if call.name not in (*OPENS, *ALLOCATORS, *DUPLICATES) or call.name in _RESULT_IS_CHOSEN:
        return
    used = descriptors(call.pid)
    is_full = all(number in used for number in range(worker.limit or 0))
    path = open_request(call).path if is_full and call.name in OPENS else ""
    worker.policy.allocated(Operation(call.name, path, call.pid), is_full=is_full)


def _on_open(worker: WorkerState, call: Syscall, wanted: OpenRequest, copies: FileCopies) -> None:
    path = wanted.path
    kind, size = _kind_and_size(wanted.raw)
    worker.created.add(path, wanted.flags, is_there=kind is not None)
    if worker.policy.leaves_alone(path):
        if size is not None and worker.faults.would_target(path) and is_package_data(path):
            worker.policy.unobserved["open of an excluded file"] += 1
        worker.listener.continue_syscall(call)
    elif kind in (None, stat.S_IFREG):
        _open_file(worker, call, wanted, size, copies)
    else:
        worker.listener.continue_syscall(call)


def _open_file(
    worker: WorkerState, call: Syscall, wanted: OpenRequest, size: int | None, copies: FileCopies
) -> None:
    """Open a regular file, or one that is not there."""
    path = wanted.path
    operation = Operation(call.name, path, call.pid)
    for action in worker.policy.opened(operation, size, reads=wanted.reads):
        if isinstance(action, Fail):
            worker.listener.fail(call, action.errno)
        elif isinstance(action, Substitute):
            copy = copies.altered(path, action.edit)
            _return_file(worker, call, wanted, reopen(copy, wanted.flags))
        elif isinstance(action, Closed) and action.reuse:
            _return_file(worker, call, wanted, unrelated_file(os, path, wanted.flags))
        else:  # A number that is not open is what a descriptor looks like that was closed.
            worker.listener.return_value(call, worker.files.next_high_fd(call.pid))
        return
    if size is not None and wanted.reads:
        _follow_or_go_on(worker, call, wanted)
    else:
        worker.listener.continue_syscall(call)


def _on_stat(worker: WorkerState, call: Syscall, place: ResolvedPath) -> None:
    path = place.path
    _, size = _kind_and_size(place.raw)
    if size is not None and not is_about_link(call, path):
        for action in worker.policy.size_of(Operation(call.name, path, call.pid), size):
            if isinstance(action, Substitute) and action.edit.kept is not None:
                write_stat(call, path, action.edit.kept)
                worker.listener.return_value(call, 0)
                return
    worker.listener.continue_syscall(call)


def _follow_or_go_on(worker: WorkerState, call: Syscall, wanted: OpenRequest) -> None:
    """Open the file for the caller, at a number that the filter hands over on read."""
    if not worker.faults.needs_reads_of(wanted.path):
        worker.listener.continue_syscall(call)
        return
    try:
        flags = wanted.flags & ~os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        source = os.open(wanted.raw, flags)
    except OSError as error:
        if is_shortage(error):
            raise
        worker.listener.continue_syscall(call)  # The caller gets the same error from its own call.
    else:
        _return_file(worker, call, wanted, source)


def _return_file(worker: WorkerState, call: Syscall, wanted: OpenRequest, source: int) -> None:
    _return_tracked(worker, call, wanted.path, source, on_exec=bool(wanted.flags & os.O_CLOEXEC))


def _return_tracked(
    worker: WorkerState, call: Syscall, path: str, source: int, *, on_exec: bool
) -> None:
    """Answer *call* with a descriptor of *source*, and follow it."""
    try:
        number = _return_descriptor(worker, call, source, on_exec)
    except OSError as error:
        os.close(source)
        if not worker.keep_low_fds or error.errno != errno.EMFILE:
            raise
        worker.listener.fail(call, errno.EMFILE)  # As the kernel would: no number is free.
    else:
        worker.files.add(number, path, source)


def _return_descriptor(worker: WorkerState, call: Syscall, source: int, on_exec: bool) -> int:
    """Answer *call* with a descriptor of *source*; its number."""
    busy: set[int] = set()
    while not worker.keep_low_fds:
        number = worker.files.next_high_fd(call.pid, busy)
        try:
            worker.listener.return_fd(call, source, number, close_on_exec=on_exec)
        except OSError as error:
            if error.errno != errno.EBUSY:  # Another thread is about to have that very number.
                raise
            busy.add(number)
        else:
            return number
    return worker.listener.return_fd(call, source, None, close_on_exec=on_exec)


def _on_duplicate(worker: WorkerState, call: Syscall) -> None:
    """A duplicate of a followed descriptor must be one, and so must have a high number."""
    followed = worker.files.at(call.pid, signed(call.arguments[0]))
    if followed is None or followed.source is None or followed.reopened:
        worker.listener.continue_syscall(call)
    elif call.name in _RESULT_IS_CHOSEN:
        worker.policy.unobserved[call.name] += 1
        worker.listener.continue_syscall(call)
    else:
        plain = call.name == "dup" or call.arguments[1] == F_DUPFD
        _return_tracked(worker, call, followed.path, os.dup(followed.source), on_exec=not plain)


def _on_room(worker: WorkerState, call: Syscall) -> None:
    """Reserving room in a file of /dev/shm fails as it does when that is full."""
    path = link_of(call.pid, signed(call.arguments[0]))
    for action in worker.policy.reserved(Operation(call.name, path, call.pid)):
        if isinstance(action, Fail):
            worker.leftover_shm.append(path)
            worker.listener.fail(call, action.errno)
            return
    worker.listener.continue_syscall(call)


def _on_lock(worker: WorkerState, call: Syscall) -> None:
    """flock(2) is the open file description's: ours would keep it when the worker has closed."""
    worker.files.stop_sharing(call.pid, signed(call.arguments[0]))
    worker.listener.continue_syscall(call)


def _kind_and_size(path: str) -> tuple[int | None, int | None]:
    """S_IFREG, S_IFDIR, ... or None where there is nothing, and the size of a regular file."""
    try:
        found = os.stat(path)
    except OSError:
        return None, None
    kind = stat.S_IFMT(found.st_mode)
    return kind, found.st_size if kind == stat.S_IFREG else None
