"""What the answers need in addition to the worker and its call [runs in the supervisor]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_dataloader_faults._engine.file_copies import FileCopies
from pytest_dataloader_faults._engine.supervisor.answers.network import ErrorHandler, Relay
from pytest_dataloader_faults._engine.supervisor.events import DeathScheduler, Events, Timers
from pytest_dataloader_faults._engine.supervisor.new_files import NewFileBarrier
from pytest_dataloader_faults._engine.supervisor.shared_offsets import SharedOffsetBarrier
from pytest_dataloader_faults._engine.system.temporary import SharedCount

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class SupervisorServices:
    """What answers need.

    *provokes_races*: bring reads at a shared offset together, and creations of files with reads.

    *bytes_read*: how many bytes were read for workers.
    """

    copies: FileCopies
    timers: Timers
    deaths: DeathScheduler
    barrier: SharedOffsetBarrier
    new_files: NewFileBarrier
    relay: Relay
    provokes_races: bool
    bytes_read: SharedCount = field(default_factory=SharedCount)

    @classmethod
    def create(cls, events: Events, on_error: ErrorHandler, provokes_races: bool) -> Self:
        """The services of one supervisor; *on_error* gets errors raised later than the call."""
        timers, deaths = Timers(), DeathScheduler()
        relay = Relay(events, timers, deaths, on_error)
        barriers = SharedOffsetBarrier(timers), NewFileBarrier(timers)
        return cls(FileCopies(), timers, deaths, *barriers, relay, provokes_races)
