"""What a trial did when its deadline ended it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
