"""The answers to calls that name a file, or make a descriptor [runs in the supervisor].

They open it, look at it, duplicate its descriptor, or reserve room for it.
"""

from __future__ import annotations

import errno
import os
import resource

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen, unrelated_file
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
    Closed,
    Fail,
    Operation,
    Substitute,
)
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import is_shortage
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import proc

_TOO_LOW = (
    "the dataset has lowered its limit of descriptors to {}, and files under faults get numbers"
    " from {} on. Have it keep a higher limit in this test"
)


def on_open(worker: WorkerState, call: Syscall, copies: FileCopies) -> bool:
    """Answer an open(2) as the faults of its file demand; False if the kernel is to make it."""
    try:
        name = worker.memory.path(call)
        known = worker.known_paths.get(name)
        if known is not None and call.name == "openat" and not call.arguments[2] & os.O_CREAT:
            known.opens += 1
            worker.note_open(os.fsdecode(name))
            return False
        wanted = caller.open_request(call, name)
    except PermissionError:
        return _leave_to_kernel(worker, INVISIBLE)
    if wanted.flags & os.O_CREAT:
        worker.created.add(wanted.path, is_there=os.path.exists(wanted.raw))
    if worker.policy.leaves_alone(wanted.path):
        if worker.policy.spares_data(wanted.path) and os.path.isfile(wanted.raw):
            worker.policy.unobserved[OF_EXCLUDED] += 1
        return False
    if worker.faults.concerns(wanted.path):
        return _on_meant_open(worker, call, wanted, copies)
    if os.path.isfile(wanted.raw):
        worker.count_known_open(wanted.path)
    return False


def _leave_to_kernel(worker: WorkerState, why: str) -> bool:
    """The caller opens the file itself, and no fault can happen to it."""
    worker.policy.unobserved[f"open {why}"] += 1
    return False


def _on_meant_open(
    worker: WorkerState, call: Syscall, wanted: PathRequest, copies: FileCopies
) -> bool:
    """A fault may be about the file. It is opened before it is decided which one is due."""
    found = _opened(worker, call, wanted)
    if found is None:
        return False
    operation, source = Operation(call.name, wanted.path, call.pid), found.source
    actions = worker.policy.opened(operation, found.size, reads=source is not None)
    if source is not None and not actions and worker.faults.needs_reads_of(wanted.path):
        _return_tracked(worker, call, wanted.path, source, wanted.flags)
        return True
    try:
        for action in actions:
            _carry_out(worker, call, wanted, action, copies, f"/proc/self/fd/{source}")
    finally:
        if source is not None:
            os.close(source)
    return bool(actions)


def _opened(worker: WorkerState, call: Syscall, wanted: PathRequest) -> OpenedFile | None:
    """The file as its caller would open it; None if the caller is to do that itself."""
    if difference := worker.identities.difference(call.pid):
        _leave_to_kernel(worker, difference)
        return None
    content = wanted.reads and worker.faults.needs_content_of(wanted.path)
    try:
        return callers_file.opened(call, wanted, content=content)
    except MagicLinkError:
        _leave_to_kernel(worker, "by way of a link of /proc")
    except OSError as error:
        if is_shortage(error):
            raise
    return None  # The caller gets the same error from its own call.


def _carry_out(
    worker: WorkerState,
    call: Syscall,
    wanted: PathRequest,
    action: Action,
    copies: FileCopies,
    source: str,
) -> None:
    """Answer *call* by *action*. *source*: the name of the file that was opened, if one was."""
    if isinstance(action, Fail):
        worker.listener.fail(call, action.errno)
    elif isinstance(action, Substitute):
        copy = reopen(copies.altered(wanted.path, action.edit, source), wanted.flags)
        _return_tracked(worker, call, wanted.path, copy, wanted.flags)
    elif isinstance(action, Closed) and action.reuse:
        other = unrelated_file(os, wanted.path, wanted.flags, source=source)
        _return_tracked(worker, call, wanted.path, other, wanted.flags)
    else:  # A number that is not open is what a descriptor looks like that was closed.
        worker.listener.return_value(call, worker.files.next_high_fd(call.pid))


def on_stat(worker: WorkerState, call: Syscall) -> bool:
    """Answer a stat(2) or access(2) of a file that is missing, or a stat(2) of one that is shorter.

    False if the kernel is to make it.
    """
    try:
        wanted = caller.stat_request(call, worker.memory.path(call))
    except PermissionError:
        return False
    if not worker.faults.targets(wanted.path) or worker.identities.difference(call.pid):
        return False
    try:
        pin = callers_file.pinned(call, wanted)
    except (MagicLinkError, OSError) as error:
        if is_shortage(error):
            raise
        return False  # The caller gets the same error from its own call.
    try:
        size = callers_file.data_size(pin)
        return size is not None and _look_at(worker, call, wanted.path, pin, size)
    finally:
        os.close(pin)


def _look_at(worker: WorkerState, call: Syscall, path: str, pin: int, size: int) -> bool:
    """Answer as the file is under its faults; False if it is there, and has its own size."""
    operation = Operation(call.name, path, call.pid)
    for action in worker.policy.named(operation):
        if isinstance(action, Fail):
            worker.listener.fail(call, action.errno)
            return True
    if call.facts.result_at is None:
        return False
    try:
        write_stat(call, pin, size)  # As the kernel would, which shows whether the call succeeds.
    except OSError:
        return False
    for action in worker.policy.size_of(operation, size):
        if isinstance(action, Substitute) and action.edit.kept is not None:
            write_stat(call, pin, action.edit.kept)
            worker.listener.return_value(call, 0)
            return True
    return False


def on_duplicate(worker: WorkerState, call: Syscall) -> bool:
    """Answer a dup(2) of a followed descriptor; False if the kernel is to make it.

    The duplicate must be followed, too, and so must have a high number.
    """
    followed = worker.files.at(call.pid, caller.signed(call.arguments[0]))
    if followed is None or followed.source is None or followed.reopened:
        return False
    if call.facts.number_at is not None:
        worker.policy.unobserved[call.name] += 1
        return False
    flags = 0 if call.name == "dup" or call.arguments[1] == F_DUPFD else os.O_CLOEXEC
    _return_tracked(worker, call, followed.path, os.dup(followed.source), flags)
    return True


def on_room(worker: WorkerState, call: Syscall) -> bool:
    """Fail a fallocate(2) in /dev/shm, as if that were full; False if the kernel is to make it."""
    path = proc.link_of(call.pid, caller.signed(call.arguments[0]))
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
