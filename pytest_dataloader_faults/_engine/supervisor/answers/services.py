"""What the answers need in addition to the worker and its call [runs in the supervisor]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.supervisor.events import DeathScheduler, Events, Timers
from pytest_dataloader_faults._engine.supervisor.races import (
    EmptiedFileBarrier,
    FileBarrier,
    NewFileBarrier,
    SharedOffsetBarrier,
    VainWaits,
)
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system.temporary import SharedCount

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_dataloader_faults._engine.kernel.caller import Syscall
    from pytest_dataloader_faults._engine.plan import FaultPlan

ErrorHandler = Callable[[WorkerState, "Syscall | None", Exception], None]


@dataclass(frozen=True)
class SupervisorServices:
    """What answers need.

    *on_error* gets errors raised later than the call.

    *provokes_races*: bring reads at a shared offset together, and creations of files with reads.

    *bytes_read*: how many bytes were read for workers.
    """

    events: Events
    on_error: ErrorHandler
    copies: FileCopies
    timers: Timers
    deaths: DeathScheduler
    barrier: SharedOffsetBarrier
    new_files: FileBarrier
    provokes_races: bool
    bytes_read: SharedCount = field(default_factory=SharedCount)

    @classmethod
    def create(cls, events: Events, on_error: ErrorHandler, plan: FaultPlan) -> Self:
        """The services of one supervisor."""
        timers = Timers()
        vain_waits = VainWaits(plan.collisions.unprovoked)
        at_new_files = EmptiedFileBarrier if plan.collisions.empties_late else NewFileBarrier
        barriers = SharedOffsetBarrier(timers, vain_waits), at_new_files(timers, vain_waits)
        copies, deaths = FileCopies(), DeathScheduler()
        return cls(events, on_error, copies, timers, deaths, *barriers, plan.watch)


CallAnswer: TypeAlias = "Callable[[WorkerState, Syscall, SupervisorServices], bool]"
"""Answers a call as the faults of its worker demand; False if the kernel should execute it."""
