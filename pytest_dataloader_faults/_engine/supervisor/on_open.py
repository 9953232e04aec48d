"""The answer to each system call that the filter hands over [runs in the supervisor]."""

from __future__ import annotations

import errno
import os
import stat

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen, unrelated_file
from pytest_dataloader_faults._engine.kernel import bpf, remote_process
from pytest_dataloader_faults._engine.kernel.linux import F_DUPFD
from pytest_dataloader_faults._engine.kernel.remote_process import OpenRequest, Syscall
from pytest_dataloader_faults._engine.kernel.syscalls import is_about_link, write_stat
from pytest_dataloader_faults._engine.policy import (
    TO_NETWORK,
    Action,
    Closed,
    Fail,
    Operation,
    Substitute,
)
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import is_shortage
from pytest_dataloader_faults._engine.supervisor.on_read import SupervisorServices, on_read
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults._globs import is_package_data

_RESULT_IS_CHOSEN = ("dup2", "dup3")


def answer(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand; the kernel makes a call that has none."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if call.name in bpf.READS:
        on_read(worker, call, services)
    elif not _is_answered(worker, call, services.copies):
        worker.listener.continue_syscall(call)


def _is_answered(worker: WorkerState, call: Syscall, copies: FileCopies) -> bool:
    if call.name in bpf.OPENS:
        return _on_open(worker, call, copies)
    if call.name in bpf.DUPLICATES:
        return _on_duplicate(worker, call)
    if call.name in bpf.STATS:
        return _on_stat(worker, call)
    if call.name in bpf.ROOM:
        return _on_room(worker, call)
    if call.name in bpf.LOCKS:  # flock(2) is of the open file description, which ours would keep.
        worker.files.stop_sharing(call.pid, remote_process.signed(call.arguments[0]))
    elif call.name == "connect":
        worker.policy.unobserved[TO_NETWORK] += remote_process.is_to_network(call)
    elif call.name in bpf.BLIND:
        worker.policy.unobserved[call.name] += 1
    return False


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel itself refuses a call for want of a descriptor; the policy only counts it."""
    makers = (*bpf.OPENS, *bpf.ALLOCATORS, *bpf.DUPLICATES)
    if call.name not in makers or call.name in _RESULT_IS_CHOSEN:
        return
    used = remote_process.descriptors(call.pid)
    is_full = all(number in used for number in range(worker.limit or 0))
    name = worker.memory.path(call) if is_full and call.name in bpf.OPENS else None
    path = "" if name is None else remote_process.resolved_path(call, name).path
    worker.policy.allocated(Operation(call.name, path, call.pid), is_full=is_full)


def _on_open(worker: WorkerState, call: Syscall, copies: FileCopies) -> bool:
    name = worker.memory.path(call)
    known = worker.known_paths.get(name)
    if known is not None and call.name == "openat" and not call.arguments[2] & os.O_CREAT:
        known.opens += 1
        return False
    wanted = remote_process.open_request(call, name)
    path = wanted.path
    kind, size = _kind_and_size(wanted.raw)
    worker.created.add(path, wanted.flags, is_there=kind is not None)
    if worker.policy.leaves_alone(path):
        if size is not None and worker.faults.would_target(path) and is_package_data(path):
            worker.policy.unobserved["open of an excluded file"] += 1
        return False
    if kind not in (None, stat.S_IFREG):
        return False
    if not worker.faults.concerns(path):
        if size is not None:
            worker.count_known_open(path)
        return False
    operation = Operation(call.name, path, call.pid)
    for action in worker.policy.opened(operation, size, reads=wanted.reads):
        _carry_out(worker, call, wanted, action, copies)
        return True
    return size is not None and wanted.reads and _is_followed(worker, call, wanted)


def _carry_out(
    worker: WorkerState, call: Syscall, wanted: OpenRequest, action: Action, copies: FileCopies
) -> None:
    if isinstance(action, Fail):
        worker.listener.fail(call, action.errno)
    elif isinstance(action, Substitute):
        copy = reopen(copies.altered(wanted.path, action.edit), wanted.flags)
        _return_tracked(worker, call, wanted.path, copy, wanted.flags)
    elif isinstance(action, Closed) and action.reuse:
        other = unrelated_file(os, wanted.path, wanted.flags)
        _return_tracked(worker, call, wanted.path, other, wanted.flags)
    else:  # A number that is not open is what a descriptor looks like that was closed.
        worker.listener.return_value(call, worker.files.next_high_fd(call.pid))


def _is_followed(worker: WorkerState, call: Syscall, wanted: OpenRequest) -> bool:
    """Open the file for the caller, at a number that the filter hands over on read."""
    if not worker.faults.needs_reads_of(wanted.path):
        return False
    try:
        flags = wanted.flags & ~os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        source = os.open(wanted.raw, flags)
    except OSError as error:
        if is_shortage(error):
            raise
        return False  # The caller gets the same error from its own call.
    _return_tracked(worker, call, wanted.path, source, wanted.flags)
    return True


def _on_stat(worker: WorkerState, call: Syscall) -> bool:
    path, raw = remote_process.resolved_path(call, worker.memory.path(call))
    _, size = _kind_and_size(raw)
    if size is not None and not is_about_link(call, path):
        for action in worker.policy.size_of(Operation(call.name, path, call.pid), size):
            if isinstance(action, Substitute) and action.edit.kept is not None:
                write_stat(call, path, action.edit.kept)
                worker.listener.return_value(call, 0)
                return True
    return False


def _on_duplicate(worker: WorkerState, call: Syscall) -> bool:
    """A duplicate of a followed descriptor must be one, and so must have a high number."""
    followed = worker.files.at(call.pid, remote_process.signed(call.arguments[0]))
    if followed is None or followed.source is None or followed.reopened:
        return False
    if call.name in _RESULT_IS_CHOSEN:
        worker.policy.unobserved[call.name] += 1
        return False
    flags = 0 if call.name == "dup" or call.arguments[1] == F_DUPFD else os.O_CLOEXEC
    _return_tracked(worker, call, followed.path, os.dup(followed.source), flags)
    return True


def _on_room(worker: WorkerState, call: Syscall) -> bool:
    """Reserving room in a file of /dev/shm fails as it does when that is full."""
    path = remote_process.link_of(call.pid, remote_process.signed(call.arguments[0]))
    for action in worker.policy.reserved(Operation(call.name, path, call.pid)):
        if isinstance(action, Fail):
            worker.leftover_shm.append(path)
            worker.listener.fail(call, action.errno)
            return True
    return False


def _return_tracked(worker: WorkerState, call: Syscall, path: str, source: int, flags: int) -> None:
    """Answer *call* with a descriptor of *source*, opened with *flags*, and follow it."""
    try:
        number = _return_descriptor(worker, call, source, bool(flags & os.O_CLOEXEC))
    except OSError as error:
        os.close(source)
        if not worker.keep_low_fds or error.errno != errno.EMFILE:
            raise
        worker.listener.fail(call, errno.EMFILE)  # As the kernel would: no number is free.
    else:
        worker.files.add(number, path, source)


def _return_descriptor(worker: WorkerState, call: Syscall, source: int, on_exec: bool) -> int:
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


def _kind_and_size(path: str) -> tuple[int | None, int | None]:
    """S_IFREG, S_IFDIR, ... or None where there is nothing, and the size of a regular file."""
    try:
        found = os.stat(path)
    except OSError:
        return None, None
    kind = stat.S_IFMT(found.st_mode)
    return kind, found.st_size if kind == stat.S_IFREG else None
