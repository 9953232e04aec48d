"""The answers to calls that start threads and processes [runs in the supervisor].

Some facts about these calls. glibc starts a thread, and a process of posix_spawn(3), by clone3(2),
whose flags are in memory, and by clone(2) only if clone3(2) is missing. It passes on any other
error. Python starts a process by vfork(2), or by fork(3), which glibc makes of clone(2).

Some facts about torch's threads in a worker. The thread of its queue starts when the first batch
is sent, between two fetches. When that thread sends its first tensor, it starts another one, which
passes on descriptors, while the worker may be making the next batch. If one of them cannot start,
the loader waits forever, whatever the dataset does.
"""

from __future__ import annotations

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults import ThreadExhaustion

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
            worker.policy.unobserved[f"{call.name} {INVISIBLE}"] += 1
        return False  # The kernel also refuses the call, or its flags are unknown.
    if flags & _NEW_NAMESPACES:
        worker.identities.note_change()
    if not worker.makes_batch or call.pid in worker.queue_threads:
        return False
    is_thread = bool(flags & linux.CLONE_THREAD)
    worker.policy.tallies["starts"]["thread" if is_thread else "process"] += 1
    number = _fire_due(worker, call)
    if number:
        worker.listener.fail(call, number)
    return bool(number)


def _flags_of(call: Syscall) -> int:
    """The CLONE_* flags of *call*."""
    if call.name == "clone3":
        data = linux.read_memory(call.pid, call.arguments[0], _FLAGS_SIZE)
        return int.from_bytes(data, "little")
    return call.arguments[0] if call.name == "clone" else 0


def _fire_due(worker: WorkerState, call: Syscall) -> int:
    """The errno of the first fault whose turn it is, which fires by that; 0 if there is none."""
    policy = worker.policy
    for counter in worker.faults.counters_of_kind(ThreadExhaustion):
        if counter.reach():
            policy.fire(counter, call.name, None, call.pid)
            return counter.fault.errno
    return 0
