"""What a worker of the python engine reports [runs in the supervisor].

It decides about its files itself, so the supervisor only keeps the counters. Each fault is counted
on one side: deaths, hangs of the worker and descriptors closed at a sample are counted here.
"""

from __future__ import annotations

import os

from pytest_dataloader_faults._engine.plan import FileCounter
from pytest_dataloader_faults._engine.protocol import Counts, FaultFired, FaultRefused
from pytest_dataloader_faults._engine.supervisor.timers import DeathScheduler
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults.faults import HungRead


def apply_report(
    worker: WorkerState, message: Counts | FaultFired | FaultRefused, gates: DeathScheduler
) -> None:
    """Take over *message*. Once *worker* is disarmed, nothing is counted."""
    if isinstance(message, FaultRefused):
        worker.refused.append(message.reason)
    elif not worker.armed:
        pass
    elif isinstance(message, Counts):
        _apply_counts(worker, message)
    else:
        _apply_firing(worker, message, gates)


def _apply_counts(worker: WorkerState, counts: Counts) -> None:
    for path, numbers in counts.files.items():
        worker.policy.files[path] = FileCounter(*numbers)
    worker.unobserved.clear()
    worker.unobserved.update(counts.unobserved)
    for tally, reached in zip(worker.tallies.all, counts.reached, strict=True):
        tally.reached = reached or tally.reached


def _apply_firing(worker: WorkerState, firing: FaultFired, gates: DeathScheduler) -> None:
    worker.policy.record(firing)
    if isinstance(worker.tallies.all[firing.fault].fault, HungRead):
        worker.hung = True
        gates.add_hung(worker.loader, lambda: release(worker))


def release(worker: WorkerState) -> None:
    """Let its reads that hang go on, and no other one hang."""
    if worker.hang_socket is not None:
        os.close(worker.hang_socket)
        worker.hang_socket = None
