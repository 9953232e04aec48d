"""The answers to writes of regular files [runs in the supervisor].

Some facts about which file a write is of. Files, pipes, sockets and shared memory look the same to
the filter. The link in /proc/PID/fd distinguishes them, and has the current name of the file, even
after a rename(2). A file without a name (O_TMPFILE, or unlinked) has a link count of 0: pytest
keeps what a worker prints in one, so none of them is touched.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall, to_signed
from pytest_dataloader_faults._engine.kernel.syscalls import (
    Description,
    description_of,
    requested_length,
)
from pytest_dataloader_faults._engine.policy import (
    BY_MAPPING,
    OF_INHERITED,
    Action,
    Die,
    Fail,
    Operation,
    Short,
    write_actions,
)
from pytest_dataloader_faults._engine.supervisor.answers.deaths import die_in_call
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults.base import Place


def on_write(
    worker: WorkerState,
    call: Syscall,
    services: SupervisorServices,
    answer_rest: Callable[[], None],
) -> bool:
    """Answer *call*, which may write to a file, as its faults demand; False if it has none.

    The first write to a new file may have to wait until *answer_rest* answers it.
    """
    number = _number(call)
    path = _written_path(worker, call.pid, number)
    if path is None:
        return False
    is_meant = worker.faults.has_fault_in(path, Place.WRITE)
    if call.name == "mmap" or worker.has_inherited(number, path):
        worker.policy.unobserved[BY_MAPPING if call.name == "mmap" else OF_INHERITED] += is_meant
        return False
    if call.facts.has_data and Place.LOCK in worker.faults.sees:
        worker.write_locks.note_write(call.pid, path)
    try:
        length = requested_length(call) if is_meant and call.facts.writes_buffers else 0
    except OSError:  # The kernel also refuses the call.
        return False
    actions = write_actions(worker.policy, Operation(call.name, path, call.pid), length)
    if any(_carry_out(worker, call, each, length, services) for each in actions):
        return True
    is_first = services.provokes_races and call.facts.has_data
    late = worker.answer_if_waiting(call, answer_rest)
    return is_first and services.new_files.hold_write(worker, path, late)


def _carry_out(
    worker: WorkerState, call: Syscall, action: Action, length: int, services: SupervisorServices
) -> bool:
    """Answer *call* by *action*; False if that cannot be done here."""
    if isinstance(action, Die):
        return _die_after_half(worker, call, action, length // 2, services)
    if isinstance(action, Short):
        return _write_part(worker, call, action.max_bytes)
    assert isinstance(action, Fail)
    worker.listener.fail(call, action.errno)
    return True


def _written_path(worker: WorkerState, pid: int, number: int) -> str | None:
    """The name of the file, if it is a regular one that has a name and that matters."""
    try:
        path = worker.link_at(pid, number)
        if not path.startswith("/") or worker.policy.is_exempt(path):
            return None
        status = os.stat(f"/proc/{pid}/fd/{number}")
    except PermissionError:
        worker.policy.unobserved[f"write {INVISIBLE}"] += 1
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
    worker: WorkerState, call: Syscall, death: Die, half: int, services: SupervisorServices
) -> bool:
    """Let the worker die once *half* of the bytes are written; False if that cannot be done."""
    target = _target(worker, call) if half else None
    if half and target is None:
        return False
    last_write = _LastWrite(worker, call, target, half)
    die_in_call(
        worker,
        death,
        services.deaths,
        services.timers,
        last_write.answer,
        before_death=last_write.write_half,
    )
    return True


@dataclass
class _LastWrite:
    """A write whose caller dies when *half* of the bytes are in the file of *target*.

    Of a call that copies from another file, nothing is: its *half* is 0, and *target* is None.
    """

    worker: WorkerState
    call: Syscall
    target: Description | None
    half: int
    count: int | None = None

    def write_half(self) -> None:
        if self.target is not None:
            with contextlib.suppress(OSError):  # The disk is full in truth.
                self.count = self.target.write(self.worker.listener, self.call, self.half)

    def answer(self) -> None:
        """For a caller that was stopped and continues, or if faults must not fire any more."""
        if self.target is not None:
            os.close(self.target.descriptor)
            self.target = None
        listener = self.worker.listener
        resume = functools.partial(listener.continue_syscall, self.call)
        if self.count is not None:
            resume = functools.partial(listener.return_value, self.call, self.count)
        self.worker.answer_if_waiting(self.call, resume)()


def _number(call: Syscall) -> int:
    return to_signed(call.argument(call.facts.writes_fd))


def _target(worker: WorkerState, call: Syscall) -> Description | None:
    """Where a part of *call* can be written; None, which is refused, if nowhere."""
    try:
        return description_of(call, _number(call))
    except PermissionError as error:
        worker.refuse(
            f"a {call.name} cannot be shortened: pidfd_getfd(2) is forbidden here (the container's"
            f" seccomp profile?), and the file cannot be opened again: {error}. Use WriteError, or"
            " docker run --cap-add SYS_PTRACE"
        )
        return None
