"""The answers to reads and mappings of files [runs in the supervisor].

Which file a descriptor is, /proc says when the call arrives. So it does not matter how the worker
got it: by open(2), as a duplicate, from its parent, or from another process.
"""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass

from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.kernel.caller import INVISIBLE, Syscall, to_signed
from pytest_dataloader_faults._engine.kernel.syscalls import description_of, span
from pytest_dataloader_faults._engine.policy import (
    MAP,
    Actions,
    Delay,
    Die,
    Fail,
    Hang,
    Operation,
    Short,
)
from pytest_dataloader_faults._engine.supervisor.answers.deaths import die_in_call
from pytest_dataloader_faults._engine.supervisor.answers.services import SupervisorServices
from pytest_dataloader_faults._engine.supervisor.events import Action
from pytest_dataloader_faults._engine.supervisor.worker_state import UNLINKED, WorkerState


def on_read(worker: WorkerState, call: Syscall, services: SupervisorServices) -> bool:
    """Answer a read, or a mapping, of a file; False if the kernel should execute it."""
    if call.facts.reads_fd is None:
        return False
    number = to_signed(call.argument(call.facts.reads_fd))
    try:
        path = worker.path_at(call.pid, number)
        is_meant = path and worker.faults.needs_reads_of(path)
        if not is_meant or not _is_file(call.pid, number):
            return False
        if difference := worker.identities.difference(call.pid):
            worker.policy.unobserved[f"read {difference}"] += 1
            return False
        read_span = span(call, number)
    except PermissionError:
        worker.policy.unobserved[f"read {INVISIBLE}"] += 1
        return False
    except (FileNotFoundError, ProcessLookupError):  # The kernel refuses the call.
        return False
    shares_offset = call.facts.shares_offset and worker.has_inherited(number, path)
    if shares_offset:
        worker.read_at_offset[path] = number
    actions = worker.policy.read_actions(Operation(call.name, path, call.pid), *read_span)
    _Read(worker, call, number, path, shares_offset, services).answer(actions)
    return True


def _is_file(pid: int, number: int) -> bool:
    """Whether a descriptor is a regular file, and not one that was opened in another container."""
    link = f"/proc/{pid}/fd/{number}"
    path = os.readlink(link)
    is_here = path.endswith(UNLINKED) or os.path.lexists(path)
    return is_here and stat.S_ISREG(os.stat(link).st_mode)


@dataclass(frozen=True)
class _Read:
    worker: WorkerState
    call: Syscall
    number: int
    path: str
    shares_offset: bool
    services: SupervisorServices

    def answer(self, actions: Actions) -> None:
        """After the death, hang or delays among *actions*; at once, if there are none."""
        answer, services = self._outcome(actions), self.services
        later = self.worker.answer_if_waiting(self.call, answer)
        for action in actions:
            if isinstance(action, Die):
                die_in_call(self.worker, action, services.deaths, services.timers, later)
                return
            if isinstance(action, Hang):
                self.worker.hung = True
                services.deaths.add_hung(self.worker.loader, later)
                return
        if seconds := sum(each.seconds for each in actions if isinstance(each, Delay)):
            services.timers.after(seconds, later)
        else:
            answer()

    def _outcome(self, actions: Actions) -> Action:
        for action in actions:
            if isinstance(action, Fail) and self.call.name == MAP:
                return functools.partial(self._fail_mapping, action.offset)
            if isinstance(action, Fail):
                return functools.partial(self.worker.listener.fail, self.call, action.errno)
            if isinstance(action, Short):
                return functools.partial(self._answer_short, action.max_bytes)
        plain = functools.partial(self.worker.listener.continue_syscall, self.call)
        if self.services.provokes_races and self.shares_offset:
            late = self.worker.answer_if_waiting(self.call, plain)
            return lambda: self.services.barrier.arrive(self.worker, self.path, late)
        return plain

    def _fail_mapping(self, length: int) -> None:
        """A page fault is not a system call: let mmap(2) map a file that lacks the page.

        The death that follows cannot be scheduled, as others are: Python's mmap keeps the GIL, and
        without it the worker cannot send the batches that it has made.
        """
        mapped = f"/proc/{self.call.pid}/fd/{self.number}"
        unreadable = self.services.copies.get_copy(self.path, FileEdit(length), mapped)
        self.worker.listener.replace_fd(self.call, unreadable, self.number)
        self.worker.listener.continue_syscall(self.call)

    def _answer_short(self, length: int) -> None:
        description = description_of(self.call, self.number)
        try:
            count = description.read(self.worker.listener, self.call, length)
            self.services.bytes_read.add(count)
            self.worker.listener.return_value(self.call, count)
        finally:
            os.close(description.descriptor)
