"""The parts of a trial, what it did at its deadline, and notes that only some trials have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_dataloader_faults._arguments import StrEnum
from pytest_dataloader_faults.wire import Note, register


class Stage(StrEnum):
    """How far a trial got."""

    START = "start"
    """No epoch has started."""
    EPOCH = "epoch"
    """An epoch under the faults."""
    RECOVERY = "recovery"
    """The pass after the faults are removed."""
    RESUMED = "resumed"
    """The epoch of a new process that resumes from a saved state."""
    UNINTERRUPTED = "uninterrupted"
    """The same epoch in a process that is not killed."""
    DONE = "done"
    """The trial is complete."""


@dataclass(frozen=True)
class Phase:
    """A part of a trial.

    Attributes:
        stage: The stage.
        epoch: The number of the epoch, or of the saved state, from 1; None in other stages.
    """

    stage: Stage
    epoch: int | None = None

    def __str__(self) -> str:
        return str(self.stage) if self.epoch is None else f"{self.stage} {self.epoch}"


def describe_phase(phase: Phase) -> str:
    """When an event of *phase* happened, as the end of a sentence."""
    if phase.epoch is not None and phase.stage is Stage.EPOCH:
        return f"in epoch {phase.epoch}"
    return _TIMES[phase.stage]


_TIMES = {
    Stage.START: "before the first epoch",
    Stage.EPOCH: "in an epoch",
    Stage.RECOVERY: "in the recovery pass",
    Stage.RESUMED: "in the epoch that resumed from a saved state",
    Stage.UNINTERRUPTED: "in the uninterrupted epoch",
    Stage.DONE: "after the last epoch",
}

START, RECOVERY, DONE = Phase(Stage.START), Phase(Stage.RECOVERY), Phase(Stage.DONE)


class Activity(str, Enum):
    """What the loader and its workers did at the deadline."""

    DELIVERS = "delivers"
    """A batch had been delivered shortly before."""
    SLEEPS = "sleeps"
    """A worker slept, or waited with a timeout."""
    READS = "reads"
    """New bytes had been read shortly before."""
    COMPUTES = "computes"
    """A worker used a processor, but read nothing new."""
    WAITS = "waits"
    """There was no activity."""


@dataclass(frozen=True)
class AtDeadline:
    """What a trial did at its deadline.

    Attributes:
        activity: What its loader and workers did.
        extension: Seconds by which the deadline was extended, as the trial was active or slept.
        asleep: The ids of the processes that slept, or waited with a timeout.
    """

    activity: Activity
    extension: float = 0.0
    asleep: tuple[int, ...] = ()


# Some facts about saved states. A checkpoint contains the result of the loader's state_dict()
# between two batches, and a restarted job passes it to load_state_dict(). torch's own loader has
# neither method, and never requests a state from its dataset; StatefulDataLoader of torchdata has
# both, and requests the states of dataset and sampler.


class StateOf(StrEnum):
    """Whether the loader or its dataset provides the state of a checkpoint."""

    NONE = ""
    LOADER = "loader"
    DATASET = "dataset"
    """The loader has no state, but torchdata's StatefulDataLoader can save the dataset's."""
    UNAVAILABLE = "unavailable"
    """The same as ``DATASET``, but torchdata is not installed."""


@dataclass(frozen=True)
class SavedState(Note):
    """The state of a loader, as a checkpoint would contain it.

    Attributes:
        batches: After how many batches of the epoch it was taken.
        size: Its pickled size in bytes.
        at_end: Whether it was taken after the epoch.
        error: What state_dict() or pickle raised, on one line; "" if nothing.
    """

    batches: int
    size: int = 0
    at_end: bool = False
    error: str = ""


@dataclass(frozen=True)
class ChangedState(Note):
    """The state that was saved last, which changed while the next batch was made."""


@dataclass(frozen=True)
class LoadedState(Note):
    """A state that a new process passed to the loader.

    Attributes:
        number: Its number, from 0, among all that were saved.
    """

    number: int


@dataclass(frozen=True)
class SharedConnection(Note):
    """A connection or pipe from before the workers started, on which data arrived while they ran.

    Attributes:
        name: What it leads to, such as ``"a connection to 127.0.0.1:9000"``.
        is_shared: Whether workers sent something on it without a lock, and one wanted an answer.
    """

    name: str
    is_shared: bool = False


# Some facts about ranks. In a training job of several processes, each has a rank and its own
# loader. After each batch, the ranks average their gradients in a collective, which waits until all
# of them have joined. A collective does not know batches or epochs: the n-th calls of all ranks
# meet. So a rank that has one batch fewer than the others meets them one batch later in its next
# epoch, and in the last epoch they wait for it forever: NCCL for half an hour, and gloo until the
# process of that rank exits.


class Reason(StrEnum):
    """Why a rank is missing in a collective in which others wait."""

    FINISHED = "finished"
    """It has received all batches of its last epoch."""
    FAILED = "failed"
    """An error ended its epoch."""
    GONE = "gone"
    """Its process has exited."""


@dataclass(frozen=True)
class Position:
    """The position of a rank when it met the others.

    Attributes:
        epoch: The epoch of the trial, from 1.
        batch: The batch of that epoch, from 1.
    """

    epoch: int
    batch: int


@dataclass(frozen=True)
class Absence(Note):
    """A rank that was missing in a collective, which ended the epochs of another one.

    Attributes:
        rank: The missing rank; None if it is unknown.
        reason: Why it was missing.
        position: Where the rank was that waited.
    """

    rank: int | None
    reason: Reason
    position: Position


@dataclass(frozen=True)
class EpochsApart(Note):
    """Ranks that met each other in different epochs.

    Attributes:
        positions: Where each rank was when that first happened.
    """

    positions: tuple[Position, ...]


@dataclass(frozen=True)
class FolderShared(Note):
    """The rank shared the folder that make_dataset receives with the others."""


register(
    *(ChangedState, LoadedState, SavedState, SharedConnection),
    *(Absence, EpochsApart, FolderShared),
)
