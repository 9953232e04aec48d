"""What each call is answered: the place where a fault comes true [runs in the supervisor]."""

from __future__ import annotations

import errno
import os
import stat

from pytest_dataloader_faults._engine.file_copies import FileCopies, reopen, stranger
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
    looked_at,
    opening,
    signed,
)
from pytest_dataloader_faults._engine.kernel.syscalls import is_about_link, tell_size
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import is_shortage
from pytest_dataloader_faults._engine.supervisor.on_read import SupervisorServices, on_read
from pytest_dataloader_faults._engine.supervisor.worker_state import OPENS_OF, WorkerState
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    SharedMemoryExhaustion,
)
from pytest_dataloader_faults.faults._globs import is_excluded, is_package_data

_RESULT_IS_CHOSEN = ("dup2", "dup3")
_SHARED_MEMORY = "/dev/shm/"


def answer(worker: WorkerState, call: Syscall, means: SupervisorServices) -> None:
    """Answer *call* of *worker* as its faults demand."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if call.name in OPENS:
        _on_open(worker, call, opening(call), means.substitutes)
    elif call.name in READS:
        on_read(worker, call, means)
    elif call.name in DUPLICATES:
        _on_duplicate(worker, call)
    elif call.name in STATS:
        _on_stat(worker, call, looked_at(call))
    elif call.name in ROOM:
        _on_room(worker, call)
    elif call.name in LOCKS:
        _on_lock(worker, call)
    else:
        worker.unobserved.update([call.name] if call.name in BLIND else [])
        worker.listener.go_on(call)


def _note_exhaustion(worker: WorkerState, call: Syscall) -> None:
    """The kernel will refuse a call for want of a descriptor; we only write that down."""
    if call.name not in (*OPENS, *ALLOCATORS, *DUPLICATES) or call.name in _RESULT_IS_CHOSEN:
        return
    used = descriptors(call.pid)
    for tally in worker.tallies.of(DescriptorExhaustion):
        tally.reached += 1
        if all(number in used for number in range(worker.limit or 0)):
            path = opening(call).path if call.name in OPENS else ""
            worker.fire(tally, call, path)


def _on_open(
    worker: WorkerState, call: Syscall, wanted: OpenRequest, substitutes: FileCopies
) -> None:
    path = wanted.path
    kind = _kind(wanted.raw)
    worker.created.note(path, wanted.flags, is_there=kind is not None)
    if is_excluded(path) and not worker.tallies.ask_for(path):
        if kind == stat.S_IFREG and worker.tallies.would_mean(path) and is_package_data(path):
            worker.unobserved["open of an excluded file"] += 1
        worker.listener.go_on(call)
        return
    if kind == stat.S_IFREG:
        worker.opened[path][OPENS_OF] += 1
    if kind in (None, stat.S_IFREG) and _open_fails(worker, call, wanted):
        return
    if kind != stat.S_IFREG or not wanted.reads:
        worker.listener.go_on(call)
    elif not _is_other(worker, call, wanted, substitutes):
        _follow_or_go_on(worker, call, wanted)


def _open_fails(worker: WorkerState, call: Syscall, wanted: OpenRequest) -> bool:
    for tally in worker.tallies.about(OpenError, wanted.path):
        if tally.reach():
            worker.fire(tally, call, wanted.path)
            worker.listener.fail(call, tally.fault.errno)
            return True
    return False


def _is_other(
    worker: WorkerState, call: Syscall, wanted: OpenRequest, substitutes: FileCopies
) -> bool:
    """Answer with something that is not the file, if that is what the faults demand."""
    return _is_closed(worker, call, wanted) or _is_altered(worker, call, wanted, substitutes)


def _is_closed(worker: WorkerState, call: Syscall, wanted: OpenRequest) -> bool:
    """A number that is not open is what a descriptor looks like that was closed behind one."""
    for tally in worker.tallies.about(ClosedDescriptor, wanted.path):
        if tally.fault.sample is None and tally.reach():
            worker.fire(tally, call, wanted.path)
            if tally.fault.reuse:
                _give(worker, call, wanted, stranger(wanted.path))
            else:
                worker.listener.result(call, worker.new_number(call.pid))
            return True
    return False


def _is_altered(
    worker: WorkerState, call: Syscall, wanted: OpenRequest, substitutes: FileCopies
) -> bool:
    altered = worker.altered(wanted.path)
    if altered is None:
        return False
    worker.fire_altered(altered, call.name, wanted.path, call.pid)
    copy = substitutes.altered(wanted.path, altered.alteration)
    _give(worker, call, wanted, reopen(copy, wanted.flags))
    return True


def _on_stat(worker: WorkerState, call: Syscall, place: ResolvedPath) -> None:
    path = place.path
    about_file = _kind(place.raw) == stat.S_IFREG and not is_about_link(call, path)
    altered = worker.altered(path) if about_file else None
    if altered is None or altered.alteration.kept is None:
        worker.listener.go_on(call)
        return
    worker.fire_altered(altered, call.name, path, call.pid)
    tell_size(call, path, altered.alteration.kept)
    worker.listener.result(call, 0)


def _follow_or_go_on(worker: WorkerState, call: Syscall, wanted: OpenRequest) -> None:
    """Open the file for the caller, at a number that the filter hands over on read."""
    if not worker.tallies.follows(wanted.path):
        worker.listener.go_on(call)
        return
    try:
        flags = wanted.flags & ~os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        source = os.open(wanted.raw, flags)
    except OSError as error:
        if is_shortage(error):
            raise
        worker.listener.go_on(call)  # The caller gets the same error from its own call.
    else:
        _give(worker, call, wanted, source)


def _give(worker: WorkerState, call: Syscall, wanted: OpenRequest, source: int) -> None:
    _hand_out(worker, call, wanted.path, source, on_exec=bool(wanted.flags & os.O_CLOEXEC))


def _hand_out(worker: WorkerState, call: Syscall, path: str, source: int, *, on_exec: bool) -> None:
    """Answer *call* with a descriptor of *source*, and follow it."""
    try:
        number = _place(worker, call, source, on_exec)
    except OSError as error:
        os.close(source)
        if not worker.low or error.errno != errno.EMFILE:
            raise
        worker.listener.fail(call, errno.EMFILE)  # As the kernel would: no number is free.
    else:
        worker.follow(number, path, source)


def _place(worker: WorkerState, call: Syscall, source: int, on_exec: bool) -> int:
    """Answer *call* with a descriptor of *source*; its number."""
    busy: set[int] = set()
    while not worker.low:
        number = worker.new_number(call.pid, busy)
        try:
            worker.listener.give(call, source, number, close_on_exec=on_exec)
        except OSError as error:
            if error.errno != errno.EBUSY:  # Another thread is about to have that very number.
                raise
            busy.add(number)
        else:
            return number
    return worker.listener.give(call, source, None, close_on_exec=on_exec)


def _on_duplicate(worker: WorkerState, call: Syscall) -> None:
    """A duplicate of a followed descriptor must be one, and so must have a high number."""
    followed = worker.followed_by(call.pid, signed(call.arguments[0]))
    if followed is None or followed.source is None or followed.apart:
        worker.listener.go_on(call)
    elif call.name in _RESULT_IS_CHOSEN:
        worker.unobserved[call.name] += 1
        worker.listener.go_on(call)
    else:
        plain = call.name == "dup" or call.arguments[1] == F_DUPFD
        _hand_out(worker, call, followed.path, os.dup(followed.source), on_exec=not plain)


def _on_room(worker: WorkerState, call: Syscall) -> None:
    """Reserving room in a file of /dev/shm fails as it does when that is full."""
    path = link_of(call.pid, signed(call.arguments[0]))
    for tally in worker.tallies.of(SharedMemoryExhaustion):
        if path.startswith(_SHARED_MEMORY) and tally.reach():
            worker.fire(tally, call, path)
            worker.remains.append(path)
            worker.listener.fail(call, tally.fault.errno)
            return
    worker.listener.go_on(call)


def _on_lock(worker: WorkerState, call: Syscall) -> None:
    """flock(2) is the open file description's: ours would keep it when the worker has closed."""
    worker.let_be(call.pid, signed(call.arguments[0]))
    worker.listener.go_on(call)


def _kind(path: str) -> int | None:
    """S_IFREG, S_IFDIR, ... or None where there is nothing to be seen."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return None
