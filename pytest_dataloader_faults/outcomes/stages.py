"""The parts of a trial, how far it got, and what it did when its time was up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_dataloader_faults._arguments import StrEnum


class Stage(StrEnum):
    """How far a trial got."""

    START = "start"
    """No epoch has begun."""
    EPOCH = "epoch"
    """An epoch under the faults."""
    RECOVERY = "recovery"
    """The pass after them, without faults."""
    DONE = "done"
    """All of it is over."""


@dataclass(frozen=True)
class Phase:
    """A part of a trial.

    Attributes:
        stage: Which one.
        epoch: The number of the epoch, from 1; None where it is no epoch.
    """

    stage: Stage
    epoch: int | None = None

    def __str__(self) -> str:
        return str(self.stage) if self.epoch is None else f"{self.stage} {self.epoch}"


START, RECOVERY, DONE = Phase(Stage.START), Phase(Stage.RECOVERY), Phase(Stage.DONE)


class Activity(str, Enum):
    """What the loader and its workers did when their time was up."""

    DELIVERS = "delivers"
    """A batch had come shortly before."""
    SLEEPS = "sleeps"
    """A worker slept, or waited with a time limit."""
    READS = "reads"
    """New bytes had been read shortly before."""
    COMPUTES = "computes"
    """A worker used a processor, and read nothing new."""
    WAITS = "waits"
    """Nothing moved."""


@dataclass(frozen=True)
class AtDeadline:
    """What a trial did when its time was up.

    Attributes:
        activity: What its loader and workers did.
        more: Seconds that it had beyond its deadline, since it moved or slept.
        asleep: The ids of the processes that slept.
    """

    activity: Activity
    more: float = 0.0
    asleep: tuple[int, ...] = ()
