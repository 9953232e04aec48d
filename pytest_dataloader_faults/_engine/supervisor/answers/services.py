"""What the answers need in addition to the worker and its call [runs in the supervisor]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.kernel.caller import Syscall
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.supervisor.events import DeathScheduler, Events, Timers
from pytest_dataloader_faults._engine.supervisor.races import (
    NewFileBarrier,
    SharedOffsetBarrier,
    VainWaits,
)
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system.temporary import SharedCount


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
        self.provokes_races = plan.watch
        """Whether reads at a shared offset are brought together, and creations with reads."""
        vain_waits = VainWaits(plan.unprovoked)
        self.barrier = SharedOffsetBarrier(self.timers, vain_waits)
        self.new_files = NewFileBarrier(self.timers, vain_waits)
        self.bytes_read = SharedCount()
        """How many bytes were read for workers."""


CallAnswer: TypeAlias = Callable[[WorkerState, Syscall, SupervisorServices], bool]
"""Answers a call as the faults of its worker demand; False if the kernel should execute it."""
