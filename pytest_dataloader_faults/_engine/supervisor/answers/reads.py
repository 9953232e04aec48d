"""The answers to reads of followed files [runs in the supervisor]."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.kernel.caller import Syscall, TrackedFile, to_signed
from pytest_dataloader_faults._engine.kernel.callers_file import INVISIBLE
from pytest_dataloader_faults._engine.kernel.syscalls import give_short, source_for, span
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
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState


def on_read(worker: WorkerState, call: Syscall, services: SupervisorServices) -> None:
    """Answer a read, or a mapping, of what may be a followed file."""
    number = to_signed(call.argument(call.facts.reads_fd))
    try:
        file = worker.files.at(call.pid, number)
    except PermissionError:
        worker.policy.unobserved[f"read {INVISIBLE}"] += 1
        file = None
    if file is None:
        worker.listener.continue_syscall(call)
        return
    if file.inherited and call.facts.shares_offset:
        worker.files.read_at_offset[file.path] = number
    source = source_for(call, file)
    read_span = span(call, source)
    operation = Operation(call.name, file.path, call.pid)
    actions = worker.policy.read_actions(operation, read_span.start, read_span.length)
    _Read(worker, call, file, source, services).answer(actions)


@dataclass(frozen=True)
class _Read:
    worker: WorkerState
    call: Syscall
    file: TrackedFile
    source: int | None
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
            if isinstance(action, Short) and self.source is not None:
                source = os.dup(self.source)  # It may be closed before the answer.
                return functools.partial(self._answer_short, source, action.max_bytes)
        plain = functools.partial(self.worker.listener.continue_syscall, self.call)
        is_shared = self.file.inherited and self.call.facts.shares_offset
        if self.services.provokes_races and is_shared:
            late = self.worker.answer_if_waiting(self.call, plain)
            return lambda: self.services.barrier.arrive(self.worker, self.file.path, late)
        return plain

    def _fail_mapping(self, length: int) -> None:
        """A page fault is not a system call: let mmap(2) map a file that lacks the page.

        The death that follows cannot be scheduled, as others are: Python's mmap keeps the GIL, and
        without it the worker cannot send the batches that it has made.
        """
        copies = self.services.copies
        number = to_signed(self.call.argument(self.call.facts.reads_fd))
        mapped = f"/proc/{self.call.pid}/fd/{number}"
        unreadable = copies.empty
        if length:
            unreadable = copies.get_copy(self.file.path, FileEdit(length), mapped)
        self.worker.listener.replace_fd(self.call, unreadable, number)
        self.worker.files.set_stand_in(number, unreadable)
        self.worker.listener.continue_syscall(self.call)

    def _answer_short(self, source: int, length: int) -> None:
        try:
            count = give_short(self.call, source, length)
            self.services.bytes_read.add(count)
            self.worker.listener.return_value(self.call, count)
        finally:
            os.close(source)
