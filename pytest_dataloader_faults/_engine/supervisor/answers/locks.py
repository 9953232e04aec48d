"""The answers to flock(2), and to fcntl(2) if it locks a file [runs in the supervisor].

Some facts about waiting for a lock. A signal with a handler interrupts such a wait: a dataset may
limit it by alarm(2), and torch ends its workers by SIGTERM. But a call that the filter holds wakes
for fatal signals only. So the supervisor looks for pending signals now and then, and answers with
EINTR: then the handler runs, and Python makes the call again unless the handler raises an error.

Some facts about descriptors. A lock of flock(2), and one of F_OFD_SETLK, belongs to the open file
description, and lasts until its last duplicate is closed. So the supervisor must not keep one. The
others belong to the process and the file.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import math
import sys
import time

from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall, to_signed
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import FaultPolicy, Operation
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.events import Action
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system.proc import has_signal_to_handle
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.faults.base import Place

_OF_DESCRIPTION = (linux.F_OFD_SETLK, linux.F_OFD_SETLKW)
_WAITING = (linux.F_SETLKW, linux.F_OFD_SETLKW)
_COMMANDS = (linux.F_SETLK, linux.F_SETLKW, *_OF_DESCRIPTION)
_TYPE_SIZE = 2
"""Of l_type, the first field of struct flock, in bytes."""
_LOOK_EVERY = 0.05
"""Seconds between two looks for a signal."""


def _is_lock(call: Syscall) -> bool:
    """Whether *call* locks or unlocks a file."""
    return call.name == "flock" or (call.name == "fcntl" and _command(call) in _COMMANDS)


def on_lock(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer *call* as its faults demand, if it locks or unlocks a file; False if it has none."""
    if not _is_lock(call):
        return False
    number = to_signed(call.arguments[0])
    if call.name == "flock" or _command(call) in _OF_DESCRIPTION:
        worker.close_inherited(number)
    if Place.LOCK not in worker.faults.sees:
        return False
    path = _locked_path(worker, call, number)
    if path is None:
        worker.write_locks.note_unlock(number)
        return False
    note_lock = functools.partial(worker.write_locks.note_lock, number, path)
    counter = _fire_due(worker.policy, Operation(call.name, path, call.pid))
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
        is_exempt = not path.startswith("/") or worker.policy.is_exempt(path)
        return None if is_exempt or _unlocks(call) else path
    except PermissionError:
        worker.policy.unobserved[f"lock {INVISIBLE}"] += 1
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


def _fire_due(policy: FaultPolicy, operation: Operation) -> FaultCounter[LockError] | None:
    """Fire the first fault whose turn it is, and return its counter."""
    policy.count(operation.path, "locks")
    for counter in policy.faults.counters_for_path(LockError, operation.path):
        if _seconds_left(counter) and counter.reach():
            policy.fire(counter, *operation)
            return counter
    return None


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
