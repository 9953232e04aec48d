"""Faults of a worker process itself, when a fetch or a sample starts [runs in the supervisor].

They lower its limit of descriptors, end it, or keep it waiting. A death inside a read or
a write is also here.
"""

from __future__ import annotations

import contextlib
import os
import resource

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import FaultCounter
from pytest_dataloader_faults._engine.policy import Die
from pytest_dataloader_faults._engine.supervisor.events import Action, DeathScheduler, Timers
from pytest_dataloader_faults._engine.supervisor.inherited_files import close_at_sample
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system.proc import descriptors, limit_for_headroom
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.faults.workers import InOneWorker


class FetchStart:
    """The start of one fetch or sample. The worker waits until it may proceed."""

    def __init__(self, worker: WorkerState, sample: int | None, deaths: DeathScheduler) -> None:
        self._worker = worker
        self._sample = sample
        self._deaths = deaths
        self._lost: list[int] = []

    def process(self) -> None:
        """Make happen what is due now, and let the worker proceed after that."""
        if not self._worker.armed:
            self.proceed()
            return
        _lower_limit(self._worker)
        if self._sample is not None:
            self._lost = close_at_sample(self._worker, self._sample)
        if self._due_deaths():
            worker = self._worker
            self._deaths.schedule(worker.loader, worker.id, worker.position, self._kill)
        else:
            self.proceed()

    def proceed(self) -> None:
        """Let the worker close what it loses, and proceed."""
        self._send(self._worker.proceed()._replace(close=self._lost))

    def _due_deaths(self) -> list[FaultCounter[InOneWorker]]:
        counters_of_worker = self._worker.faults.counters_of_kind(InOneWorker)
        counters = [each for each in counters_of_worker if not faults.has_files(each.fault)]
        if self._sample is not None:
            return [each for each in counters if each.fault.sample == self._sample]
        now = (None, self._worker.policy.fetch)
        return [each for each in counters if (each.fault.sample, each.fault.at) == now]

    def _kill(self) -> None:
        """Make the deaths happen, now that the loader waits for this batch."""
        blocks = False
        for counter in self._due_deaths() if self._worker.armed and self._worker.alive else ():
            task = _kill_now(self._worker, counter)
            if task is not None:
                self._send(task)
            blocks = blocks or isinstance(task, protocol.Block)
        if blocks:
            self._deaths.add_hung(self._worker.loader, self.proceed)
        else:
            self.proceed()

    def _send(self, message: protocol.Message) -> None:
        if self._worker.alive:
            with contextlib.suppress(ConnectionError):  # It has died since.
                self._worker.channel.send(message)


def _lower_limit(worker: WorkerState) -> None:
    """Lower the worker's soft limit, once, to what it uses and the headroom."""
    for counter in worker.faults.counters_of_kind(faults.DescriptorExhaustion):
        if worker.limit is None:
            try:
                limit = limit_for_headroom(descriptors(worker.pid), counter.fault.headroom)
                soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
                limit = min(limit, soft)
                resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, hard))
            except PermissionError:  # It takes CAP_SYS_RESOURCE if the users differ.
                worker.policy.unobserved["fetch by a worker that has changed its user"] += 1
            else:
                worker.limit, worker.earlier_limits = limit, (soft, hard)


def _kill_now(worker: WorkerState, counter: FaultCounter[InOneWorker]) -> protocol.Task | None:
    fault = counter.fault
    counter.matched += 1
    if isinstance(fault, faults.WorkerExited):
        worker.policy.fire(counter, f"exit {fault.code}", kind=FiringKind.DEATH)
        return protocol.ExitNow(fault.code)
    if isinstance(fault, faults.WorkerHung):
        worker.policy.fire(counter, "hang", kind=FiringKind.HANG)
        worker.hung = True
        return protocol.Block()
    assert isinstance(fault, faults.WorkerKilled)
    worker.policy.fire(counter, f"signal {fault.signal}", kind=FiringKind.DEATH)
    if fault.sending:
        return protocol.DieWhileSending(fault.signal)
    end(worker, fault.signal)
    return None


_PATIENCE = 1.0
"""Seconds that a death in a call waits for the loader to wait for that batch. Code in C may keep
the GIL over its calls; then batches that the worker has made before are never sent."""


def die_in_call(
    worker: WorkerState,
    death: Die,
    deaths: DeathScheduler,
    timers: Timers,
    answer: Action,
    before_death: Action = lambda: None,
) -> None:
    """Let *worker* die once its batch is awaited, which gives the call that it is in its *answer*.

    *before_death*: what becomes of the call before the death.
    """
    counter = death.counter

    def kill_worker() -> None:
        if worker.armed and worker.alive and not counter.fired:
            number = counter.fault.signal
            worker.policy.fire(counter, f"signal {number}", death.path, kind=FiringKind.DEATH)
            before_death()
            end(worker, number)
        answer()

    deaths.schedule(worker.loader, worker.id, worker.position, kill_worker)
    timers.after(_PATIENCE, kill_worker)


def end(worker: WorkerState, number: int) -> None:
    """Kill *worker* by signal *number*, unless it has died: its pid may be another's by now."""
    if worker.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)
