"""What each call is answered: the place where a fault comes true [runs in the supervisor]."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from pytest_dataloader_faults._engine._bpf import ALLOCATORS, DUPLICATES, OPENS, READS, STATS
from pytest_dataloader_faults._engine._linux import F_DUPFD
from pytest_dataloader_faults._engine._paths import is_excluded
from pytest_dataloader_faults._engine._rendezvous import CALLS as MEETING
from pytest_dataloader_faults._engine._rendezvous import Rendezvous
from pytest_dataloader_faults._engine._sizes import is_about_link, tell_size
from pytest_dataloader_faults._engine._substitute import Substitutes, reopen
from pytest_dataloader_faults._engine._target import (
    Call,
    Opening,
    descriptors,
    looked_at,
    opening,
    signed,
)
from pytest_dataloader_faults._engine._worker_state import WorkerState
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
)

OPENS_OF, READS_OF, BYTES_OF = range(3)
"""Places in the counts that are kept per file."""
_RESULT_IS_CHOSEN = ("dup2", "dup3")


@dataclass(frozen=True)
class Means:
    """What answers are made of. *meet*: bring reads at a shared offset together."""

    substitutes: Substitutes
    rendezvous: Rendezvous
    meet: bool


def answer(worker: WorkerState, call: Call, means: Means) -> None:
    """Answer *call* of *worker* as its faults demand."""
    if worker.limit is not None:
        _note_exhaustion(worker, call)
    if call.name in OPENS:
        _on_open(worker, call, opening(call), means.substitutes)
    elif call.name in READS:
        _on_read(worker, call, means)
    elif call.name in DUPLICATES:
        _on_duplicate(worker, call)
    elif call.name in STATS:
        _on_stat(worker, call, looked_at(call))
    else:
        worker.listener.go_on(call)


def _note_exhaustion(worker: WorkerState, call: Call) -> None:
    """The kernel will refuse a call for want of a descriptor; we only write that down."""
    if call.name not in (*OPENS, *ALLOCATORS, *DUPLICATES) or call.name in _RESULT_IS_CHOSEN:
        return
    used = descriptors(call.pid)
    for tally in worker.tallies.of(DescriptorExhaustion):
        tally.reached += 1
        if all(number in used for number in range(worker.limit or 0)):
            path = opening(call).path if call.name in OPENS else ""
            worker.fire(tally, call, path)


def _on_open(worker: WorkerState, call: Call, wanted: Opening, substitutes: Substitutes) -> None:
    path = wanted.path
    if is_excluded(path) and not worker.tallies.ask_for(path):
        worker.listener.go_on(call)
        return
    kind = _kind(path)
    if kind == stat.S_IFREG:
        worker.opened[path][OPENS_OF] += 1
    if kind in (None, stat.S_IFREG) and _open_fails(worker, call, wanted):
        return
    if kind != stat.S_IFREG or not wanted.reads:
        worker.listener.go_on(call)
    elif not _is_closed(worker, call, path) and not _is_shorter(worker, call, wanted, substitutes):
        _follow_or_go_on(worker, call, wanted)


def _open_fails(worker: WorkerState, call: Call, wanted: Opening) -> bool:
    for tally in worker.tallies.about(OpenError, wanted.path):
        if tally.reach():
            worker.fire(tally, call, wanted.path)
            worker.listener.fail(call, tally.fault.errno)
            return True
    return False


def _is_closed(worker: WorkerState, call: Call, path: str) -> bool:
    """A number that is not open is what a descriptor looks like that was closed behind one."""
    for tally in worker.tallies.about(ClosedDescriptor, path):
        if tally.reach():
            worker.fire(tally, call, path)
            worker.listener.result(call, worker.new_number(call.pid))
            return True
    return False


def _is_shorter(worker: WorkerState, call: Call, wanted: Opening, substitutes: Substitutes) -> bool:
    cut = worker.cut(wanted.path)
    if cut is None:
        return False
    worker.fire(cut.tally, call, wanted.path)
    _give(worker, call, wanted, reopen(substitutes.truncated(wanted.path, cut.kept), wanted.flags))
    return True


def _on_stat(worker: WorkerState, call: Call, path: str) -> None:
    about_file = _kind(path) == stat.S_IFREG and not is_about_link(call, path)
    cut = worker.cut(path) if about_file else None
    if cut is None:
        worker.listener.go_on(call)
        return
    worker.fire(cut.tally, call, path)
    tell_size(call, path, cut.kept)
    worker.listener.result(call, 0)


def _follow_or_go_on(worker: WorkerState, call: Call, wanted: Opening) -> None:
    """Open the file for the caller, at a number that the filter hands over on read."""
    if not worker.tallies.follows(ReadError, wanted.path):
        worker.listener.go_on(call)
        return
    try:
        flags = wanted.flags & ~os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        source = os.open(wanted.path, flags)
    except OSError:  # The caller gets the same error from its own call.
        worker.listener.go_on(call)
    else:
        _give(worker, call, wanted, source)


def _give(worker: WorkerState, call: Call, wanted: Opening, source: int) -> None:
    number = worker.new_number(call.pid)
    worker.follow(number, wanted.path, source)
    on_exec = bool(wanted.flags & os.O_CLOEXEC)
    worker.listener.give(call, source, number, close_on_exec=on_exec)


def _on_read(worker: WorkerState, call: Call, means: Means) -> None:
    fd = signed(call.arguments[READS[call.name]])
    followed = worker.followed_by(call, fd)
    if followed is None:
        worker.listener.go_on(call)
        return
    counts = worker.opened[followed.path]
    counts[READS_OF] += 1
    counts[BYTES_OF] += _length(call, followed.source)
    for tally in worker.tallies.about(ReadError, followed.path):
        if tally.reach():
            worker.fire(tally, call, followed.path)
            _fail_read(worker, call, tally.fault.errno, means.substitutes)
            return
    if means.meet and followed.inherited and call.name in MEETING:
        means.rendezvous.arrive(followed.path, lambda: worker.listener.go_on(call))
    else:
        worker.listener.go_on(call)


def _length(call: Call, source: int | None) -> int:
    """How many bytes a read or mapping will give; 0 for vectored calls, which are not looked into.

    *source* shares the caller's file offset, so it can be asked without touching the caller.
    """
    if call.name == "mmap":
        return call.arguments[1]
    if source is None or call.name not in ("read", "pread64"):
        return 0
    start = call.arguments[3] if call.name == "pread64" else os.lseek(source, 0, os.SEEK_CUR)
    return max(0, min(call.arguments[2], os.fstat(source).st_size - start))


def _fail_read(worker: WorkerState, call: Call, number: int, substitutes: Substitutes) -> None:
    """A page fault is no system call: let mmap(2) map a file that has no page to give.

    The death that follows cannot wait at a gate, as others do: Python's mmap keeps the interpreter
    lock, and without it the worker cannot hand over the batches that it has made.
    """
    if call.name == "mmap":
        fd = signed(call.arguments[READS["mmap"]])
        worker.listener.replace(call, substitutes.empty, fd)
        worker.listener.go_on(call)
    else:
        worker.listener.fail(call, number)


def _on_duplicate(worker: WorkerState, call: Call) -> None:
    """A duplicate of a followed descriptor must be one, and so must have a high number."""
    followed = worker.followed_by(call, signed(call.arguments[0]))
    if followed is None or followed.source is None:
        worker.listener.go_on(call)
    elif call.name in _RESULT_IS_CHOSEN:
        worker.unreached[call.name] = worker.unreached.get(call.name, 0) + 1
        worker.listener.go_on(call)
    else:
        source = os.dup(followed.source)
        number = worker.new_number(call.pid)
        worker.follow(number, followed.path, source)
        plain = call.name == "dup" or call.arguments[1] == F_DUPFD
        worker.listener.give(call, source, number, close_on_exec=not plain)


def _kind(path: str) -> int | None:
    """S_IFREG, S_IFDIR, ... or None where there is nothing to be seen."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return None
