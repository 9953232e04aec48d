"""Faults of descriptors and mappings that a worker has already [runs in the supervisor].

It has them from before its filter was there, or keeps them from one sample to the next; so the
supervisor cannot answer a call, and the worker itself gets orders what to do with them. One message
takes up to 253 descriptors (SCM_MAX_FD, unix(7)), and the worker needs numbers for all of a message
at once. So orders are sent in parts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.policy import MAP, Operation
from pytest_dataloader_faults._engine.protocol import Hello, Proceed
from pytest_dataloader_faults._engine.supervisor.worker_state import InheritedFile, WorkerState
from pytest_dataloader_faults._engine.system.proc import descriptors, is_write_only, link_of
from pytest_dataloader_faults.faults import ClosedDescriptor
from pytest_dataloader_faults.faults.base import FiringKind

_IN_ONE_MESSAGE = 60


@dataclass
class DescriptorOrders:
    """What a worker must do to its own descriptors and mappings before its first fetch."""

    close: list[int] = field(default_factory=list)
    replace: list[tuple[int, int]] = field(default_factory=list)
    remap: list[tuple[int, int]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def message(self, worker: WorkerState) -> Proceed:
        """The message to *worker*, after which another one follows."""
        return worker.proceed()._replace(
            close=self.close, replace=self.replace, remap=self.remap, has_more=True
        )

    @property
    def is_full(self) -> bool:
        """Whether this part must be sent before there is another one."""
        return len(self.descriptors) >= _IN_ONE_MESSAGE

    def attach(self, descriptor: int) -> int:
        """The place of *descriptor* among those that go along."""
        if descriptor not in self.descriptors:
            self.descriptors.append(descriptor)
        return self.descriptors.index(descriptor)

    def add_fd(self, worker: WorkerState, fd: int, path: str, copies: FileCopies) -> None:
        """What *worker* does to its descriptor *fd*."""
        if is_write_only(fd, worker.pid):
            return
        source = f"/proc/{worker.pid}/fd/{fd}"
        operation = Operation("dup2", path, None, FiringKind.REPLACED)
        if worker.policy.closes(Operation("close", path)):
            self.close.append(fd)
        elif edit := worker.policy.edit_for(operation, os.stat(source).st_size):
            self.replace.append((fd, self.attach(copies.get_copy(path, edit, source))))

    def add_mapping(self, worker: WorkerState, place: int, path: str, copies: FileCopies) -> None:
        """What *worker* does to its mapping at *place* in ``Hello.mapped``."""
        operation = Operation(MAP, path)
        worker.policy.count(path, "reads")
        if edit := worker.policy.edit_for(operation, os.stat(path).st_size):
            self.remap.append((place, self.attach(copies.get_copy(path, edit, path))))
        elif worker.policy.fail_actions(operation, sys.maxsize):
            # Not a copy of the file: to map it is no read of the dataset's.
            self.remap.append((place, self.attach(copies.empty)))


def orders_for(
    worker: WorkerState, hello: Hello, sources: list[int], copies: FileCopies
) -> Iterator[DescriptorOrders]:
    """Decide about each descriptor and mapping that *worker* brought along, part by part.

    Files without such a name here are left alone: they were opened outside of this container.
    """
    result = DescriptorOrders()
    for place, (fd, path) in enumerate(hello.inherited):
        if not os.path.exists(path):
            continue
        result.add_fd(worker, fd, path, copies)
        source = sources[place] if place < len(sources) else None
        worker.inherited[fd] = InheritedFile(path, source)
        if result.is_full:
            yield result
            result = DescriptorOrders()
    for place, path in enumerate(hello.mapped):
        if not os.path.exists(path):
            continue
        result.add_mapping(worker, place, path, copies)
        if result.is_full:
            yield result
            result = DescriptorOrders()
    yield result


def close_at_sample(worker: WorkerState, sample: int) -> list[int]:
    """The descriptors that *worker* should close before it starts *sample*."""
    result = []
    closing = worker.faults.counters_of_kind(ClosedDescriptor)
    counters = [each for each in closing if each.fault.sample == sample]
    for fd in sorted(descriptors(worker.pid)) if counters else ():
        path = worker.path_at(worker.pid, fd) or link_of(worker.pid, fd)
        counter = next((each for each in counters if each.matches(path)), None)
        if counter is None or not os.path.isfile(path):
            continue
        if not is_write_only(fd, worker.pid):
            counter.matched += 1
            worker.policy.fire(counter, "close", path)
            result.append(fd)
    return result
