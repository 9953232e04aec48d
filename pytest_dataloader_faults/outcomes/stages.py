"""The parts of a trial, what it did at its deadline, and notes that only some trials have. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pytest_dataloader_faults._arguments import StrEnum
from pytest_dataloader_faults.outcomes.text import printable
from pytest_dataloader_faults.wire import Note


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
        more_workers: Whether the loader has more workers than the one that saved it.
    """

    number: int
    more_workers: bool = False


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


@dataclass(frozen=True)
class JobKilled(Note):
    """All processes of the job were killed.

    Attributes:
        segments: The names of the shared memory that its main process used.
    """

    segments: tuple[str, ...]


# Some facts about refusals. A fault that fired may make a dataset delete or overwrite its data, so
# the supervisor refuses what would change a file from before.


class Change(StrEnum):
    """What a call does to a file that was there before."""

    UNLINK = "unlink"
    RMDIR = "rmdir"
    RENAME = "rename"
    REPLACE = "replace"
    """Another file gets its name."""
    TRUNCATE = "truncate"
    WRITE = "write"
    MAP = "map"
    """The file is mapped so that stores change it."""

    @property
    def deletes(self) -> bool:
        """Whether a name is lost, instead of bytes."""
        return self in (Change.UNLINK, Change.RMDIR)


@dataclass(frozen=True)
class Refusal(Note):
    """A call that failed with EROFS because it would have changed a file for good.

    Attributes:
        path: The file, symbolic link or folder.
        change: What the call would have done to it.
        call: The system call.
        worker: The worker that made it; None for the main process.
        is_read: Whether a fault is about the file, or the dataset reads it.
        place: The place in the user's code: ``file:line in function``; "" if it is unknown.
    """

    path: str
    change: Change
    call: str
    worker: int | None
    is_read: bool
    place: str = ""


class FileCreated(NamedTuple):
    """A process of the trial has created this file.

    *born*: its birth time, in seconds; None if unknown. A later file may get its *inode*.
    """

    device: int
    inode: int
    born: float | None


class FileChanged(NamedTuple):
    """A process of the trial changes a file that was there before, without a fault.

    *new_path*: the name that it gets by ``Change.RENAME``.
    """

    path: str
    change: Change
    new_path: str = ""


@dataclass
class FileHistory:
    """What is known of files when a trial starts. Trials add to it, mostly those without faults.

    Attributes:
        unseen: When processes ran that may have created files unseen: begins and ends, in seconds
            of the clock of file systems.
        created: The files that processes of trials have created.
        changed: The changes of older files that happen without a fault, too.
        read: The paths of the files that the dataset reads.
    """

    unseen: list[tuple[float, float]] = field(default_factory=list)
    created: set[FileCreated] = field(default_factory=set)
    changed: set[FileChanged] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


def describe_change(refusal: Refusal) -> str:
    """What was refused, as a predicate: what would happen to which file, and where in the code."""
    verb = "delete" if refusal.change.deletes else "overwrite"
    place = f" ({refusal.place})" if refusal.place else ""
    return f"{verb} {printable(refusal.path)}{place}"
