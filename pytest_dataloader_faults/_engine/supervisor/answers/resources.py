"""The answers to calls that lock files, get memory, or start threads [runs in the supervisor]."""

from __future__ import annotations

import errno
import fcntl
import functools
import math
import sys
import time

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall, to_signed
from pytest_dataloader_faults._engine.kernel.calls import Role
from pytest_dataloader_faults._engine.plan import FaultCounter, Operation
from pytest_dataloader_faults._engine.supervisor.answers.workers import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.events import Action
from pytest_dataloader_faults._engine.supervisor.worker_state import RefusedAllocation, WorkerState
from pytest_dataloader_faults._engine.system.proc import end_of_heap, has_signal_to_handle
from pytest_dataloader_faults.faults import LockError, MemoryExhaustion, ThreadExhaustion
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.outcomes.text import format_size

# Some facts about waiting for a lock. A signal with a handler interrupts such a wait: a dataset may
# limit it by alarm(2), and torch ends its workers by SIGTERM. But a call that the filter holds
# wakes for fatal signals only. So the supervisor looks for pending signals now and then, and
# answers with EINTR: then the handler runs, and Python makes the call again unless the handler
# raises an error.
#
# Some facts about descriptors. A lock of flock(2), and one of F_OFD_SETLK, belongs to the open file
# description, and lasts until its last duplicate is closed. So the supervisor must not keep one.
# The others belong to the process and the file.


_OF_DESCRIPTION = (linux.F_OFD_SETLK, linux.F_OFD_SETLKW)
_WAITING = (linux.F_SETLKW, linux.F_OFD_SETLKW)
_COMMANDS = (linux.F_SETLK, linux.F_SETLKW, *_OF_DESCRIPTION)
_TYPE_SIZE = 2
"""Of l_type, the first field of struct flock, in bytes."""
_LOOK_EVERY = 0.05
"""Seconds between two looks for a signal."""


def on_lock(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer *call* as its faults demand, if it locks or unlocks a file; False if it has none."""
    if call.name != "flock" and not (call.name == "fcntl" and _command(call) in _COMMANDS):
        return False
    number = to_signed(call.arguments[0])
    if call.name == "flock" or _command(call) in _OF_DESCRIPTION:
        worker.close_inherited(number)
    if Place.LOCK not in worker.sees:
        return False
    path = _locked_path(worker, call, number)
    if path is None:
        worker.write_locks.note_unlock(number)
        return False
    note_lock = functools.partial(worker.write_locks.note_lock, number, path)
    worker.count(path, "locks")
    operation = Operation(call.name, path, call.pid)
    counter = worker.fire_first_due(LockError, operation, lambda each: _seconds_left(each) > 0)
    if counter is None:
        note_lock()
        return False
    if counter.fault.is_held and _waits(call):
        _hold(worker, call, services, _seconds_left(counter), note_lock)
    else:
        worker.listener.fail(call, counter.fault.errno)
    return True


def _command(call: Syscall) -> int:
    return to_signed(call.arguments[1])


def _locked_path(worker: WorkerState, call: Syscall, number: int) -> str | None:
    """The file that *call* locks; None if it unlocks one, or if the file does not matter."""
    try:
        path = worker.link_at(call.pid, number)
        is_exempt = not path.startswith("/") or worker.is_exempt(path)
        return None if is_exempt or _unlocks(call) else path
    except PermissionError:
        worker.unobserved[f"lock {INVISIBLE}"] += 1
    except OSError:  # The kernel also refuses the call.
        pass
    return None


def _unlocks(call: Syscall) -> bool:
    if call.name == "flock":
        return bool(call.arguments[1] & fcntl.LOCK_UN)
    lock_type = linux.read_memory(call.pid, call.arguments[2], _TYPE_SIZE)
    return int.from_bytes(lock_type, sys.byteorder) == fcntl.F_UNLCK


def _waits(call: Syscall) -> bool:
    """Whether *call* waits until it has the lock."""
    if call.name == "flock":
        return not call.arguments[1] & fcntl.LOCK_NB
    return _command(call) in _WAITING


def _seconds_left(counter: FaultCounter[LockError]) -> float:
    """How long the other job still holds its locks; 0 if it has released them."""
    seconds = counter.fault.seconds
    if seconds is None:
        return math.inf
    began = next((each.time for each in counter.firings), None)
    return seconds if began is None else max(0.0, began + seconds - time.monotonic())


def _hold(
    worker: WorkerState,
    call: Syscall,
    services: SupervisorServices,
    seconds: float,
    note_lock: Action,
) -> None:
    """Let the caller wait for *seconds*, until nothing may hang any more, or until a signal."""
    resume = worker.answer_if_waiting(
        call, functools.partial(worker.listener.continue_syscall, call)
    )

    def release() -> None:
        note_lock()
        resume()

    services.deaths.add_hung(worker.loader, resume)
    if seconds == math.inf:
        worker.hung = True
    else:
        services.timers.after(seconds, release)

    def interrupt() -> None:
        if not worker.listener.is_waiting(call):
            return
        if has_signal_to_handle(call.pid):
            worker.hung = False
            worker.listener.fail(call, errno.EINTR)
        elif worker.armed:
            services.timers.after(_LOOK_EVERY, interrupt)

    services.timers.after(_LOOK_EVERY, interrupt)


# Some facts about glibc. A large allocation is one mmap(2). If that fails, malloc(3) extends the
# heap by brk(2), or by mprotect(2) in the heap of a thread; if that also fails, it calls mmap(2)
# for another heap. Then it starts over with another arena, and realloc(3) a third time. So an
# allocation that is to fail needs several answers, and only what follows in this order belongs to
# it. A caller that tries the same size again at once cannot be told apart from the third start.
#
# brk(2) has no error: it returns the end of the heap, which has not moved.
#
# Some facts about CPython. Its small objects are in arenas of 1 MiB, which it gets by mmap(2). An
# object of any size may need a new one, wherever the interpreter is, also in torch's code and in
# this package's. malloc(3) adds a header to an allocation, so 1 MiB of data is never exactly an
# arena.


_MOST_STARTS = 3
"""In realloc(3); malloc(3) starts twice."""
_ARENA = 1 << 20
_PRIVATE = linux.MAP_PRIVATE | linux.MAP_ANONYMOUS
_NEW_HEAP = "mmap of a heap"
_RESERVE = "mmap without access"
_FALLBACKS = {
    "mmap": ("brk", "mprotect", _RESERVE),
    "brk": (_NEW_HEAP,),
    _NEW_HEAP: (_RESERVE,),
    "mprotect": (_RESERVE,),
    _RESERVE: (_RESERVE,),
}
"""What the C library tries after each call that failed."""


def is_allocation(call: Syscall) -> bool:
    """Whether *call* gets memory that no file backs."""
    if call.name == "mmap":
        return bool(call.arguments[3] & linux.MAP_ANONYMOUS)
    return call.facts.role is Role.GROWS


def on_allocation(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Let *call* fail if a fault demands it; False if the kernel should execute it."""
    refused = _refused_start(worker, call) or _refused_fallback(worker, call)
    allocations = worker.refused_allocations
    if refused is None:
        allocations.pop(call.pid, None)
        return False
    allocations[call.pid] = refused
    if call.name == "brk":
        worker.listener.return_value(call, end_of_heap(call.pid))
    else:
        worker.listener.fail(call, MemoryExhaustion.errno)
    return True


def _refused_start(worker: WorkerState, call: Syscall) -> RefusedAllocation | None:
    """The allocation that *call* starts, if it is to fail."""
    size = _size(call)
    earlier = worker.refused_allocations.get(call.pid)
    if not size or (earlier and _step(call, earlier) in _FALLBACKS[earlier.step]):
        return None
    if earlier and earlier.size == size and earlier.starts < _MOST_STARTS:
        return RefusedAllocation(size, earlier.starts + 1, "mmap")
    if call.pid != worker.memory_taker and not _fires_for(worker, call, size):
        return None
    return RefusedAllocation(size, 1, "mmap")


def _refused_fallback(worker: WorkerState, call: Syscall) -> RefusedAllocation | None:
    """The allocation that failed before and that *call* tries in another way."""
    earlier = worker.refused_allocations.get(call.pid)
    if earlier is None or (call.name == "brk" and call.arguments[0] <= end_of_heap(call.pid)):
        return None
    step = _step(call, earlier)
    return earlier._replace(step=step) if step in _FALLBACKS[earlier.step] else None


def _step(call: Syscall, earlier: RefusedAllocation) -> str:
    """What *call* would be after the last step of the *earlier* allocation."""
    if call.name != "mmap":
        return call.name
    if call.arguments[2] == linux.PROT_NONE:
        return _RESERVE
    return _NEW_HEAP if earlier.step == "brk" else "mmap"


def _size(call: Syscall) -> int:
    """The bytes that *call* allocates; 0 if it is not the start of an allocation."""
    if call.name == "mremap":
        return call.arguments[2] if call.arguments[2] > call.arguments[1] else 0
    address, size, access, flags = call.arguments[:4]
    is_arena = not address and size == _ARENA and flags == _PRIVATE
    is_start = call.name == "mmap" and access != linux.PROT_NONE and not is_arena
    return size if is_start else 0


def _fires_for(worker: WorkerState, call: Syscall, size: int) -> bool:
    """Whether a fault is due for an allocation of *size* bytes; it fires by that."""

    def concerns(counter: FaultCounter[MemoryExhaustion]) -> bool:
        sample = counter.fault.sample
        return (sample is None or sample in worker.samples) and size >= counter.fault.min_bytes

    if not worker.makes_batch or call.pid in worker.queue_threads:
        return False
    operation = Operation(f"{call.name} of {format_size(size)}", "", call.pid)
    return worker.fire_first_due(MemoryExhaustion, operation, concerns) is not None


# Some facts about these calls. glibc starts a thread, and a process of posix_spawn(3), by
# clone3(2), whose flags are in memory, and by clone(2) only if clone3(2) is missing. It passes on
# any other error. Python starts a process by vfork(2), or by fork(3), which glibc makes of
# clone(2).
#
# Some facts about torch's threads in a worker. The thread of its queue starts when the first batch
# is sent, between two fetches. When that thread sends its first tensor, it starts another one,
# which passes on descriptors, while the worker may be making the next batch. If one of them cannot
# start, the loader waits forever, whatever the dataset does.


_NEW_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUSER
_FLAGS_SIZE = 8
"""Of flags, the first field of struct clone_args, in bytes."""


def on_start(worker: WorkerState, call: Syscall, _: SupervisorServices) -> bool:
    """Answer *call* as the faults of *worker* demand; False if the kernel should execute it."""
    try:
        flags = _flags_of(call)
    except OSError as error:
        worker.identities.note_change()
        if isinstance(error, PermissionError):
            worker.unobserved[f"{call.name} {INVISIBLE}"] += 1
        return False  # The kernel also refuses the call, or its flags are unknown.
    if flags & _NEW_NAMESPACES:
        worker.identities.note_change()
    if not worker.makes_batch or call.pid in worker.queue_threads:
        return False
    is_thread = bool(flags & linux.CLONE_THREAD)
    worker.tallies["starts"]["thread" if is_thread else "process"] += 1
    due = worker.fire_first_due(ThreadExhaustion, Operation(call.name, "", call.pid))
    if due:
        worker.listener.fail(call, due.fault.errno)
    return due is not None


def _flags_of(call: Syscall) -> int:
    """The CLONE_* flags of *call*."""
    if call.name == "clone3":
        data = linux.read_memory(call.pid, call.arguments[0], _FLAGS_SIZE)
        return int.from_bytes(data, "little")
    return call.arguments[0] if call.name == "clone" else 0
