"""What a worker of the python engine tells of itself [runs in the supervisor].

It decides about its files itself, so the supervisor only keeps the counters. Each fault is counted
on one side: deaths, hangs of the worker and descriptors closed at a sample are counted here.
"""

from __future__ import annotations

import os
from typing import Any

from pytest_dataloader_faults._engine.plan import FileCounter
from pytest_dataloader_faults._engine.supervisor.timers import DeathScheduler
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults import HungRead


def note(worker: WorkerState, message: dict[str, Any], gates: DeathScheduler) -> None:
    """Take over what *worker* says in *message*. Once it is disarmed, nothing has happened."""
    if "counts" in message and worker.armed:
        _note_counts(worker, message["counts"])
    if "refused" in message:
        worker.refused.append(message["refused"])
    if "fired" in message and worker.armed:
        _note_firing(worker, message["fired"], gates)


def _note_counts(worker: WorkerState, counts: dict[str, Any]) -> None:
    for path, numbers in counts["files"].items():
        worker.policy.files[path] = FileCounter(*numbers)
    worker.unobserved.clear()
    worker.unobserved.update(counts["unobserved"])
    for tally, reached in zip(worker.tallies.all, counts["reached"], strict=True):
        tally.reached = reached or tally.reached


def _note_firing(worker: WorkerState, firing: dict[str, Any], gates: DeathScheduler) -> None:
    tally = worker.tallies.all[firing.pop("fault")]
    tally.fire(**firing, **worker.moment)
    if isinstance(tally.fault, HungRead):
        worker.stuck = True
        gates.stick(worker.loader, lambda: release(worker))


def release(worker: WorkerState) -> None:
    """Let its reads that hang go on, and no other one hang."""
    if worker.brake is not None:
        os.close(worker.brake)
        worker.brake = None
