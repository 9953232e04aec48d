"""Workers that are killed or stopped, also inside a read [runs in the supervisor]."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from pytest_dataloader_faults._engine._delays import Delays
from pytest_dataloader_faults._engine._gates import Gates
from pytest_dataloader_faults._engine._plan import Tally
from pytest_dataloader_faults._engine._worker_state import WorkerState
from pytest_dataloader_faults.faults import WorkerKilled

Action = Callable[[], None]

_PATIENCE = 1.0
"""Seconds that a death in a read waits for the loader to wait for that batch. Code in C may keep
the interpreter lock over its reads; batches that the worker has made before then never come."""


def end(worker: WorkerState, number: int, gates: Gates) -> None:
    """Kill *worker* by signal *number*, or stop it until its loader is at its end."""
    _signal(worker, number)
    if number == signal.SIGSTOP:
        worker.stuck = True
        gates.stick(worker.loader, lambda: _signal(worker, signal.SIGCONT))


def due_in_read(worker: WorkerState, path: str) -> Tally[WorkerKilled] | None:
    """The death that is to come inside a read of *path*, if there is one."""
    for tally in worker.tallies.about(WorkerKilled, path):
        if tally.fault.reading is not None and not tally.fired:
            tally.reached += 1
            if worker.begun >= tally.fault.at:
                return tally
    return None


def die_in_read(
    worker: WorkerState,
    tally: Tally[WorkerKilled],
    path: str,
    gates: Gates,
    delays: Delays,
    answer: Action,
) -> None:
    """Let *worker* die once its batch is awaited; the read that it is in gets its *answer* then."""

    def strike() -> None:
        if worker.armed and worker.alive and not tally.fired:
            worker.fire_here(tally, f"signal {tally.fault.signal}", path)
            end(worker, tally.fault.signal, gates)
        answer()

    gates.hold(worker.loader, worker.id, worker.place, strike)
    delays.after(_PATIENCE, strike)


def _signal(worker: WorkerState, number: int) -> None:
    """Send it, unless *worker* has died: its pid may be another's by now."""
    if worker.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)
