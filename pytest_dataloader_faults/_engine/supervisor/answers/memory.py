"""The answers to calls that get memory [runs in the supervisor].

Some facts about glibc. A large allocation is one mmap(2). If that fails, malloc(3) extends the heap
by brk(2), or by mprotect(2) in the heap of a thread; if that also fails, it calls mmap(2) for
another heap. Then it starts over with another arena, and realloc(3) a third time. So an allocation
that is to fail needs several answers, and only what follows in this order belongs to it. A caller
that tries the same size again at once cannot be told apart from the third start.

brk(2) has no error: it returns the end of the heap, which has not moved.

Some facts about CPython. Its small objects are in arenas of 1 MiB, which it gets by mmap(2). An
object of any size may need a new one, wherever the interpreter is, also in torch's code and in this
package's. malloc(3) adds a header to an allocation, so 1 MiB of data is never exactly an arena.
"""

from __future__ import annotations

from pytest_dataloader_faults._engine.calls import Role
from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import (
    RefusedAllocation,
    WorkerState,
)
from pytest_dataloader_faults._engine.system.proc import mappings
from pytest_dataloader_faults.faults import MemoryExhaustion
from pytest_dataloader_faults.outcomes.text import format_size

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
    if call.pid != worker.memory_taker:
        counter = _due_counter(worker, call, size)
        if counter is None:
            return None
        worker.policy.fire(counter, f"{call.name} of {format_size(size)}", pid=call.pid)
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


def _due_counter(
    worker: WorkerState, call: Syscall, size: int
) -> FaultCounter[MemoryExhaustion] | None:
    """The counter of the first fault whose turn it is."""
    if not worker.makes_batch or call.pid in worker.queue_threads:
        return None
    for counter in worker.faults.counters_of_kind(MemoryExhaustion):
        fault = counter.fault
        is_meant = fault.sample is None or fault.sample in worker.samples
        if is_meant and size >= fault.min_bytes and counter.reach():
            return counter
    return None


def end_of_heap(pid: int) -> int:
    """The address up to which brk(2) has extended the memory of *pid*; 0 if it has no heap."""
    end = 0
    for mapping in mappings(pid):
        if mapping.endswith(" [heap]\n"):
            end = int(mapping.split(" ")[0].partition("-")[2], 16)
        elif end:  # The kernel may list it in several parts.
            break
    return end
