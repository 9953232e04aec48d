"""Faults that befall the worker itself, not one of its calls [runs in the supervisor].

What it holds when it is armed (descriptors and mappings made before its filter was there), its
limit of descriptors, and its life.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader_faults._engine._answers import READS_OF
from pytest_dataloader_faults._engine._substitute import Substitutes
from pytest_dataloader_faults._engine._target import descriptors, room_below
from pytest_dataloader_faults._engine._worker_state import WorkerState
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    ReadError,
    WorkerKilled,
)


@dataclass
class Orders:
    """What a worker has to do to its own descriptors and mappings before its first fetch."""

    close: list[int] = field(default_factory=list)
    replace: list[tuple[int, int]] = field(default_factory=list)
    remap: list[tuple[int, int]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """As plain data; the second of each pair is a place in *descriptors*."""
        return {"close": self.close, "replace": self.replace, "remap": self.remap}

    def attach(self, descriptor: int) -> int:
        """The place of *descriptor* among those that go along."""
        if descriptor not in self.descriptors:
            self.descriptors.append(descriptor)
        return self.descriptors.index(descriptor)


def orders(
    worker: WorkerState, hello: dict[str, Any], sources: list[int], substitutes: Substitutes
) -> Orders:
    """Decide about each descriptor and mapping that *worker* brought along."""
    result = Orders()
    for place, (fd, path) in enumerate(hello["held"]):
        _about_held(worker, fd, path, result, substitutes)
        source = sources[place] if place < len(sources) else None
        worker.follow(fd, path, source, inherited=True)
    for place, path in enumerate(hello["mapped"]):
        worker.opened[path][READS_OF] += 1
        _about_mapped(worker, place, path, result, substitutes)
    return result


def _about_held(
    worker: WorkerState, fd: int, path: str, result: Orders, substitutes: Substitutes
) -> None:
    for tally in worker.tallies.about(ClosedDescriptor, path):
        if tally.reach():
            worker.fire_here(tally, "close", path)
            result.close.append(fd)
            return
    if (cut := worker.cut(path)) is not None:
        worker.fire_here(cut.tally, "dup2", path)
        result.replace.append((fd, result.attach(substitutes.truncated(path, cut.kept))))


def _about_mapped(
    worker: WorkerState, place: int, path: str, result: Orders, substitutes: Substitutes
) -> None:
    if (cut := worker.cut(path)) is not None:
        worker.fire_here(cut.tally, "mmap", path)
        result.remap.append((place, result.attach(substitutes.truncated(path, cut.kept))))
        return
    for tally in worker.tallies.about(ReadError, path):
        if tally.reach():
            worker.fire_here(tally, "mmap", path)
            result.remap.append((place, result.attach(substitutes.empty)))
            return


def exhaust(worker: WorkerState) -> None:
    """Lower the worker's soft limit, once, to what it uses and the headroom."""
    for tally in worker.tallies.of(DescriptorExhaustion):
        if worker.limit is None:
            assert isinstance(tally.fault, DescriptorExhaustion)
            worker.limit = room_below(descriptors(worker.pid), tally.fault.headroom)
            _, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (worker.limit, hard))


def is_to_die(worker: WorkerState) -> bool:
    """Whether a WorkerKilled is due at the fetch that begins."""
    return any(_is_due(tally.fault, worker) for tally in worker.tallies.of(WorkerKilled))


def kill(worker: WorkerState) -> None:
    """Send the signals that are due."""
    for tally in worker.tallies.of(WorkerKilled):
        if _is_due(tally.fault, worker):
            assert isinstance(tally.fault, WorkerKilled)
            tally.reached += 1
            worker.fire_here(tally, f"signal {tally.fault.signal}")
            os.kill(worker.pid, tally.fault.signal)


def _is_due(fault: object, worker: WorkerState) -> bool:
    return isinstance(fault, WorkerKilled) and fault.at == worker.begun
