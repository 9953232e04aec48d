"""Faults of a worker process itself, and of what it has open already [runs in the supervisor].

When a fetch or a sample starts, they lower its limit of descriptors, end it, or keep it waiting. A
death inside a read or a write is also here.

A worker has descriptors and mappings from before its filter was there, or keeps them from one
sample to the next; so the supervisor cannot answer a call, and the worker itself gets orders what
to do with them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.plan import MAP, FaultCounter, FaultPlan, Operation
from pytest_dataloader_faults._engine.supervisor.events import (
    Action,
    DeathScheduler,
    Events,
    Timers,
)
from pytest_dataloader_faults._engine.supervisor.races import Rendezvous
from pytest_dataloader_faults._engine.supervisor.worker_state import InheritedFile, WorkerState
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults.faults import ClosedDescriptor
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.faults.workers import InOneWorker


class SupervisorServices:
    """What the answers of one supervisor share. *on_error* gets errors raised later than a call."""

    def __init__(
        self,
        events: Events,
        on_error: Callable[[WorkerState, Syscall | None, Exception], None],
        plan: FaultPlan,
    ) -> None:
        self.events, self.on_error = events, on_error
        self.copies, self.deaths, self.timers = FileCopies(), DeathScheduler(), Timers()
        self.races = Rendezvous(self.timers, plan.unprovoked) if plan.watch else None
        self.bytes_read = SharedCount()
        """How many bytes were read for workers."""


CallAnswer: TypeAlias = Callable[[WorkerState, Syscall, SupervisorServices], bool]
"""Answers a call as the faults of its worker demand; False if the kernel should execute it."""


class FetchStart:
    """The start of one fetch or sample. The worker waits until it may proceed."""

    def __init__(self, worker: WorkerState, sample: int | None, deaths: DeathScheduler) -> None:
        self._worker = worker
        self._sample = sample
        self._deaths = deaths
        self._orders: list[protocol.Order] = []

    def process(self) -> None:
        """Make happen what is due now, and let the worker proceed after that."""
        if not self._worker.armed:
            self.proceed()
            return
        _lower_limit(self._worker)
        if self._sample is not None:
            self._orders = close_at_sample(self._worker, self._sample)
        if self._due_deaths():
            worker = self._worker
            self._deaths.schedule(worker.loader, worker.id, worker.position, self._kill)
        else:
            self.proceed()

    def proceed(self) -> None:
        """Send the worker its orders, and let it proceed."""
        if self._worker.alive:
            with contextlib.suppress(ConnectionError):  # It has died since.
                message = self._worker.proceed()._replace(orders=self._orders)
                self._worker.channel.send(message)

    def _due_deaths(self) -> list[FaultCounter[InOneWorker]]:
        counters_of_worker = self._worker.counters_of_kind(InOneWorker)
        counters = [each for each in counters_of_worker if not faults.has_files(each.fault)]
        if self._sample is not None:
            return [each for each in counters if each.fault.sample == self._sample]
        now = (None, self._worker.fetch)
        return [each for each in counters if (each.fault.sample, each.fault.at) == now]

    def _kill(self) -> None:
        """Make the deaths happen, now that the loader waits for this batch."""
        worker = self._worker
        due = self._due_deaths() if worker.armed and worker.alive else []
        for counter in due:
            self._happen(counter)
        if any(isinstance(each.fault, faults.WorkerHung) for each in due):
            self._deaths.add_hung(worker.loader, self.proceed)
        else:
            self.proceed()

    def _happen(self, counter: FaultCounter[InOneWorker]) -> None:
        worker, fault = self._worker, counter.fault
        counter.matched += 1
        if isinstance(fault, faults.WorkerExited):
            worker.fire(counter, f"exit {fault.code}", kind=FiringKind.DEATH)
            self._orders.append((protocol.EXIT, fault.code))
        elif isinstance(fault, faults.WorkerHung):
            worker.fire(counter, "hang", kind=FiringKind.HANG)
            worker.hung = True
        elif isinstance(fault, faults.WorkerKilled):
            worker.fire(counter, f"signal {fault.signal}", kind=FiringKind.DEATH)
            if fault.sending:
                self._orders.append((protocol.DIE, fault.signal))
            else:
                end(worker, fault.signal)


def _lower_limit(worker: WorkerState) -> None:
    """Lower the worker's soft limit, once, to what it uses and the headroom."""
    for counter in worker.counters_of_kind(faults.DescriptorExhaustion):
        if worker.limit is None:
            try:
                limit = proc.limit_for_headroom(
                    proc.descriptors(worker.pid), counter.fault.headroom
                )
                soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
                limit = min(limit, soft)
                resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, hard))
            except PermissionError:  # It takes CAP_SYS_RESOURCE if the users differ.
                worker.unobserved["fetch by a worker that has changed its user"] += 1
            else:
                worker.limit, worker.earlier_limits = limit, (soft, hard)


_PATIENCE = 1.0
"""Seconds that a death in a call waits for the loader to wait for that batch. Code in C may keep
the GIL over its calls; then batches that the worker has made before are never sent."""


def die_in_call(
    worker: WorkerState,
    death: FaultCounter[faults.WorkerKilled],
    path: str,
    services: SupervisorServices,
    answer: Action,
    before_death: Action = lambda: None,
) -> None:
    """Let *worker* die once its batch is awaited, which gives the call that it is in its *answer*.

    *path*: the file that the call reads or writes. *before_death*: what becomes of the call before.
    """

    def kill_worker() -> None:
        if worker.armed and worker.alive and not death.fired:
            number = death.fault.signal
            worker.fire(death, f"signal {number}", path, kind=FiringKind.DEATH)
            before_death()
            end(worker, number)
        answer()

    services.deaths.schedule(worker.loader, worker.id, worker.position, kill_worker)
    services.timers.after(_PATIENCE, kill_worker)


def end(worker: WorkerState, number: int) -> None:
    """Kill *worker* by signal *number*, unless it has died: its pid may be another's by now."""
    if worker.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)


_IN_ONE_MESSAGE = 60
"""One takes up to 253 descriptors (SCM_MAX_FD, unix(7)), for which the worker needs numbers."""


def give_orders(
    worker: WorkerState, hello: protocol.Hello, sources: list[int], copies: FileCopies
) -> None:
    """Tell *worker* what to do with each descriptor and mapping that it brought along.

    Files without such a name here are left alone: they were opened outside of this container.
    """
    orders = itertools.chain(
        _orders_for_files(worker, hello, sources, copies),
        _orders_for_mappings(worker, hello, copies),
    )
    while part := list(itertools.islice(orders, _IN_ONE_MESSAGE)):
        message = worker.proceed()._replace(orders=[order for order, _ in part], has_more=True)
        worker.channel.send(message, [copy for _, copy in part if copy is not None])


def _orders_for_files(
    worker: WorkerState, hello: protocol.Hello, sources: list[int], copies: FileCopies
) -> Iterator[tuple[protocol.Order, int | None]]:
    """Each order about a descriptor, with our descriptor of what replaces it."""
    for place, (fd, path) in enumerate(hello.inherited):
        if not os.path.exists(path):
            continue
        worker.inherited[fd] = InheritedFile(path, sources[place] if sources[place:] else None)
        if proc.is_write_only(fd, worker.pid):
            continue
        source = f"/proc/{worker.pid}/fd/{fd}"
        operation = Operation("dup2", path, None, FiringKind.REPLACED)
        if worker.closes(Operation("close", path)):
            yield (protocol.CLOSE, fd), None
        elif edit := worker.edit_for(operation, os.stat(source).st_size):
            yield (protocol.REPLACE, fd), copies.get_copy(path, edit, source)


def _orders_for_mappings(
    worker: WorkerState, hello: protocol.Hello, copies: FileCopies
) -> Iterator[tuple[protocol.Order, int]]:
    for place, path in enumerate(hello.mapped):
        if not os.path.exists(path):
            continue
        operation = Operation(MAP, path)
        worker.count(path, "reads")
        if edit := worker.edit_for(operation, os.stat(path).st_size):
            yield (protocol.REMAP, place), copies.get_copy(path, edit, path)
        elif worker.failing_read(operation, sys.maxsize):
            # Not a copy of the file: to map it is no read of the dataset's.
            yield (protocol.REMAP, place), copies.empty


def close_at_sample(worker: WorkerState, sample: int) -> list[protocol.Order]:
    """The descriptors that *worker* should close before it starts *sample*."""
    orders: list[protocol.Order] = []
    closing = worker.counters_of_kind(ClosedDescriptor)
    counters = [each for each in closing if each.fault.sample == sample]
    for fd in sorted(proc.descriptors(worker.pid)) if counters else ():
        path = worker.path_at(worker.pid, fd) or proc.link_of(worker.pid, fd)
        counter = next((each for each in counters if each.matches(path)), None)
        if counter is None or not os.path.isfile(path):
            continue
        if not proc.is_write_only(fd, worker.pid):
            counter.matched += 1
            worker.fire(counter, "close", path)
            orders.append((protocol.CLOSE, fd))
    return orders
