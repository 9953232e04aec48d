"""The parts of a trial, how far it got, and what ended it: its time, or another rank. Pure."""

from __future__ import annotations

import re
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
    RESUMED = "resumed"
    """What a new process makes of a loader's saved state."""
    UNINTERRUPTED = "uninterrupted"
    """The epoch of a process that is like the one that was killed, and lives."""
    DONE = "done"
    """All of it is over."""


@dataclass(frozen=True)
class Phase:
    """A part of a trial.

    Attributes:
        stage: Which one.
        epoch: The number of the epoch, or of the saved state, from 1; None where it is neither.
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


# Some facts about ranks. In a training job of several processes each has a rank and a loader of its
# own. Each averages its gradients with those of the others after each batch, in a collective, which
# waits until every rank is in it. A collective does not know of batches or epochs: what meets is
# the n-th call of each rank. So a rank that has one batch fewer than the others meets them one
# batch later in its next epoch, and in the last epoch they wait for it forever: NCCL for half an
# hour, and gloo until the process of that rank ends.


_LOST = re.compile(r"gloo/transport/")


def tells_of_lost_rank(message: str) -> bool:
    """Whether it is the *message* of an error by which gloo says that another rank is gone."""
    return bool(_LOST.search(message))


class Reason(StrEnum):
    """Why a rank does not come to a collective in which others wait."""

    FINISHED = "finished"
    """It has had all the batches of its last epoch."""
    FAILED = "failed"
    """An error has ended its epoch."""
    GONE = "gone"
    """Its process has ended."""


@dataclass(frozen=True)
class Step:
    """Where a rank was when it met the others.

    Attributes:
        epoch: The epoch of the trial, from 1.
        batch: The batch of that epoch, from 1.
    """

    epoch: int
    batch: int


@dataclass(frozen=True)
class Absence:
    """What ended the epochs of a rank before its loop did: another rank did not come.

    Attributes:
        rank: The rank that did not come; None if it is not known which one.
        reason: Why it did not.
        step: Where the rank was that waited.
    """

    rank: int | None
    reason: Reason
    step: Step


# Some facts about saved states. A checkpoint holds what state_dict() of the loader gives, between
# two batches, and a job that begins again hands that to load_state_dict(). torch's own loader has
# neither method, and never asks its dataset for a state; StatefulDataLoader of torchdata has both,
# and asks dataset and sampler for theirs.


class StateOf(StrEnum):
    """Whose state a checkpoint can hold, of a loader and its dataset."""

    NOBODY = ""
    LOADER = "loader"
    DATASET = "dataset"
    """The loader has none, and torchdata's StatefulDataLoader can ask the dataset for one."""
    UNASKED = "unasked"
    """Likewise, but torchdata is not installed."""


@dataclass(frozen=True)
class SavedState:
    """The state of a loader, as a checkpoint would hold it.

    Attributes:
        batches: After how many batches of the epoch it was taken.
        size: Its size in bytes, pickled.
        at_end: Whether it was taken after the epoch.
        resumed: Whether a new process went on from it.
        changed: Whether it changed while the next batch was made.
        error: What state_dict() or pickle raised, in one line; "" if nothing.
    """

    batches: int
    size: int = 0
    at_end: bool = False
    resumed: bool = False
    changed: bool = False
    error: str = ""
