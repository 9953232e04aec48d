"""What a trial found: facts only, plain data, to and from JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._arguments import StrEnum
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes.contract import EXACT, Comparison
from pytest_dataloader_faults.outcomes.plain import (
    Count,
    EventKind,
    ProcessName,
    Seconds,
    from_json,
    to_json,
)
from pytest_dataloader_faults.outcomes.stages import (
    START,
    Absence,
    AtDeadline,
    Phase,
    SavedState,
    Stage,
    StateOf,
    Step,
    tells_of_lost_rank,
)
from pytest_dataloader_faults.outcomes.text import call, exit_in_words, run_settings, signal_name

if TYPE_CHECKING:
    from typing_extensions import Self

Leaves: TypeAlias = tuple[tuple[str, str, str], ...]
"""The parts of a sample: for each its path in it, its type and shape, and a digest."""
MANY = 16
"""Values in a part of a sample. Fewer come out the same by accident."""
ZEROS = "all zeros"
"""The digest of this many values that are all zero: a report can say what came."""


class FiringPlace(StrEnum):
    """Which part of the program met a fault."""

    CONSTRUCTOR = "constructor"
    """What ``make_dataset`` calls."""
    MAIN_PROCESS = "main process"
    """The process that iterates the loader, once the dataset was made."""
    WORKER = "worker"


@dataclass(frozen=True)
class Firing:
    """One occurrence of a fault.

    Attributes:
        fault: The place of the fault in the schedule, from 0.
        worker: The worker's id; None where it happened in the loader's own process.
        pid: The id of the process.
        call: The system call or function (``"read"``, ``"openat"``, ``"mmap"``, ``"write"``, ...).
            For people also ``"signal 9"``, ``"exit 3"``, ``"hang"``, and ``"take"`` or ``"pin"``
            in the pin-memory thread.
        path: The file; None if there is none.
        fetch: The batch of that worker, from 1; 0 is before its first one.
        epoch: The epoch of the trial, from 1; 0 while the dataset is made; None if not known.
        sample: The index of the sample that was being made; for a stream, the place of the sample
            among those of that worker, from 0. None if it is not known, as under ``inject`` and
            before the first sample, or if ``__getitems__`` made several.
        time: When it happened, by ``time.monotonic()``; None if that is not known. It takes no
            part when facts are compared.
        kind: What it happened to.
    """

    fault: int
    worker: int | None
    pid: int
    call: str
    path: str | None
    fetch: int
    epoch: int | None = None
    sample: int | None = None
    time: float | None = field(default=None, compare=False)
    kind: FiringKind = FiringKind.CALL

    @property
    def place(self) -> FiringPlace:
        """Which part of the program met the fault."""
        if self.worker is not None:
            return FiringPlace.WORKER
        return FiringPlace.MAIN_PROCESS if self.epoch != 0 else FiringPlace.CONSTRUCTOR


@dataclass(frozen=True)
class FaultFacts:
    """A fault and how often it happened.

    Attributes:
        fault: The fault.
        reached: How many operations matched the fault, whether or not its triggers chose them.
        fired: To how many of them it happened.
        surfaced: 1 if an exception of the loader names it.
        firings: The first 200 occurrences of each worker.
    """

    fault: Fault
    reached: int = 0
    fired: int = 0
    surfaced: int = 0
    firings: tuple[Firing, ...] = ()


class FileCounts(NamedTuple):
    """What a worker did with a file.

    Attributes:
        opens: How often it opened the file.
        reads: How often it read from it; a mapping counts as one read.
        bytes: How many bytes it read by system calls.
        writes: How often it wrote to it.
        longest: Which of its reads was the longest, from 2: a file's first read is of its header.
            0 if there is none; a mapping is none.
        longest_offset: Where in the file that read began, in bytes.
        longest_bytes: How many bytes it read.
    """

    opens: int
    reads: int
    bytes: int
    writes: int = 0
    longest: int = 0
    longest_offset: int = 0
    longest_bytes: int = 0


@dataclass(frozen=True)
class WorkerFacts:
    """What one worker process did, or the loader's own process, whose *worker* is None.

    Attributes:
        worker: Its id.
        pid: The id of the process.
        fetches: How many batches it began.
        files: How often it opened, read and wrote each data file, and how many bytes it read. The
            run without a fault counts all of this. Under faults, reads and bytes are counted of
            files that a fault of reads or of content is about, and writes where a fault is of
            writing.
        unobserved: How often it did something whose reads or writes the engine cannot see, by name.
        connections: How often it made a TCP connection, by path (``"tcp://192.0.2.1:443"``).
        unlimited_waits: Connections for whose hung answer its main thread waited without limit.
        shared_offset_files: Files that it and another worker read through the same file offset.
        leftover_files: Temporary files and shared memory that it made and did not remove.
        settings: What was on in it of the settings by which libraries accept bad files, such as
            ``"PIL.ImageFile.LOAD_TRUNCATED_IMAGES"``.
    """

    worker: int | None
    pid: int
    fetches: int
    files: dict[str, FileCounts]
    unobserved: dict[str, int] = field(default_factory=dict)
    connections: dict[str, int] = field(default_factory=dict)
    unlimited_waits: tuple[str, ...] = ()
    shared_offset_files: tuple[str, ...] = ()
    leftover_files: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delivery:
    """One batch as the loop over the loader got it.

    Digests are 24 hexadecimal digits of BLAKE2b. Equal digests mean equal content.

    Attributes:
        indices: What the sampler asked for; None where that is not known (iterable datasets).
        rows: A digest per sample, or None where the batch cannot be split into samples. Fewer than
            *indices* where samples are missing.
        digest: Of the whole batch. Where the batch has rows, it is made of their exact digests.
        leaves: The parts of each row, of the first samples of a pass: path, type and shape, and a
            digest, or the value itself where that is shorter, or ``"all zeros"``.
        worker: The worker that made it; None if that is not known.
        parts: A digest per row, where a stream makes its own batches and the loader makes none.
    """

    indices: tuple[Any, ...] | None
    rows: tuple[str, ...] | None
    digest: str
    leaves: tuple[Leaves, ...] = ()
    worker: int | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raised:
    """An exception that reached the loop.

    Attributes:
        type: The name of its class.
        message: ``str`` of it.
        text: The traceback with its chain of causes, as Python prints it.
        unprintable: The type of the error that ``str`` of it raised; "" if it raised none.

    Of a very long text frames are left out, and the middle of long messages.
    """

    type: str
    message: str
    text: str
    unprintable: str = ""


@dataclass(frozen=True)
class WorkerDeath:
    """A worker that ended before the loader asked for it.

    Attributes:
        worker: Its id.
        pid: The id of the process.
        exitcode: As of ``multiprocessing.Process``: an exit status, or minus a signal's number.
    """

    worker: int
    pid: int
    exitcode: int

    def __str__(self) -> str:
        if self.exitcode < 0:
            return f"worker {self.worker} was killed by {signal_name(-self.exitcode)}"
        return f"worker {self.worker} exited with status {self.exitcode}"


@dataclass(frozen=True)
class Pass:
    """One pass over a loader: the batches asked for and delivered, and how it ended.

    Attributes:
        drawn: The indices of each batch that was asked for.
        delivered: The batches that the loop got.
        exception: The exception that ended the pass, if one did.
        deaths: The workers that had died when the pass ended.
        complete: Whether the pass came to its end.
        batches: How many batches the sampler said, when the pass began, that there are; None if it
            did not say, and of a stream.
        length: How many samples there are to draw; None of a stream, and of a user's own sampler.
    """

    drawn: tuple[tuple[Any, ...], ...] = ()
    delivered: tuple[Delivery, ...] = ()
    exception: Raised | None = None
    complete: bool = False
    deaths: tuple[WorkerDeath, ...] = ()
    batches: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Footprint:
    """What one process of a loader had after an epoch.

    Attributes:
        epoch: The epoch, from 1.
        process: ``"loader"``, or ``"worker 0"``, ...
        memory: Bytes of anonymous memory.
        descriptors: How many are open.
        threads: How many run.
        newly_open: What it has open more often than after the first epoch; "" if nothing.
        pinned: Bytes of pinned memory in use, in the loader's process, as torch counts them.
        device: Bytes in use on the accelerator, likewise.
    """

    epoch: int
    process: str
    memory: int
    descriptors: int
    threads: int
    newly_open: str = ""
    pinned: int = 0
    device: int = 0


@dataclass(frozen=True)
class Event:
    """Something that happened at a known time in a trial.

    Attributes:
        time: Seconds since the trial began.
        process: ``"loader"``, or ``"worker 0"``, ...
        kind: ``"epoch"`` (it begins or ends), ``"fetch"`` (a worker begins a batch), ``"open"``
            (of a data file), ``"fault"``, ``"batch"`` (the loop gets it), ``"error"`` (the loop
            gets it) or ``"exit"`` (a process died).
        text: What happened, on one line; of ``"open"``, the path.
        omitted: 0, or how many events of this kind are left out here, up to the next of this
            process and kind, or to the end. All else is then about these.
    """

    time: Seconds
    process: ProcessName
    kind: EventKind
    text: str
    omitted: Count = 0


@dataclass(frozen=True)
class Resources:
    """What the loader's process had open, and its descendants, at one moment.

    Attributes:
        stage: ``START`` before the first epoch, ``EPOCH`` after the last one, or ``RECOVERY``.
        descriptors: The target of each link in /proc/self/fd, by the descriptor's number as text.
        processes: The command line of each descendant that belongs neither to the harness nor to
            multiprocessing, by its pid as text.
    """

    stage: Stage
    descriptors: dict[str, str]
    processes: dict[str, str]


@dataclass(frozen=True)
class TrialRequest:
    """What was asked of one trial; ``TrialFacts`` says what each attribute is."""

    schedule: tuple[Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int
    deadline: float
    engine: str
    comparison: Comparison = EXACT
    from_start: bool = False
    rank: int | None = None


@dataclass(frozen=True)
class TrialFacts(TrialRequest):
    """What one trial found.

    Attributes:
        schedule: The faults that were asked for, in order.
        loader: The options of the DataLoader; ``{"code": ...}`` for what is no plain data.
        epochs: How many passes under the faults were asked for.
        seed: As asked for.
        deadline: As asked for, in seconds.
        engine: The engine that made the faults happen, ``"kernel"`` or ``"python"``.
        comparison: What of samples is compared.
        from_start: Whether the faults were armed before the dataset was made.
        rank: Which of several ranks it was; None without ranks.
        kind: ``"map"`` or ``"iterable"``.
        start_method: How workers were started; ``""`` if there were to be none.
        passes: One per epoch, under the faults; the last one is where an exception ended it.
        recovery: A fresh pass without faults over the same dataset object, or with *from_start*
            over one that a new process made; None if the trial did not get so far.
        state_of: Whose state a checkpoint can hold.
        states: The states of the loader, where they were asked for, in order.
        resumed: The epochs of new processes that went on from some of these.
        uninterrupted: Where the process of the epoch was killed: that of one that was not.
        faults: How often each fault happened.
        workers: The worker processes.
        main: The loader's own process, if it was armed before the dataset was made.
        lasting_files: Of the files that workers used, those that were there after the last epoch.
            Taken where every file is watched, as in the run without a fault.
        resources: Before the first epoch, after the last, and after the recovery.
        footprints: What each process of the loader had after each epoch, if that was measured.
        timeline: What happened when, in the order of time. It takes no part in comparisons.
        omitted_events: How many events a long timeline leaves out, from the middle.
        packed_draws: What the sampler drew for a batch, by the batch's indices, pickled and in
            base64; of batches for which that is not the list of these.
        duration: Seconds from the start of the process to its end.
        timed_out: Whether the deadline ended it.
        at_deadline: What it did then; None if the deadline did not end it.
        batches: How many batches an epoch of a map-style dataset has, if that is known.
        phase: How far it got.
        absence: Where another rank did not come to a collective, so that this one stopped; or None.
        apart: Where each rank was when they first met in different epochs; empty if they did not.
        drop_last: Whether its loader leaves out a last batch that is not full.
        reduced_from: The batch size of its loader, if the batches of the trial are smaller, since
            not all samples are looked at; None if they are as large.
        ranks: The outcome of each rank, if there were several. All else is then about the rank that
            failed first, or else about the one with the faults.
        exitcode: Of the loader's process, as of a ``WorkerDeath``; 0 if the deadline ended it.
        stacks: The stacks of the processes that were running at the deadline.
        stderr: The end of what the loader's process and its workers printed.
    """

    kind: str = "map"
    start_method: str = ""
    passes: tuple[Pass, ...] = ()
    recovery: Pass | None = None
    state_of: StateOf = StateOf.NOBODY
    states: tuple[SavedState, ...] = ()
    resumed: tuple[Pass, ...] = ()
    uninterrupted: Pass | None = None
    faults: tuple[FaultFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    main: WorkerFacts | None = None
    lasting_files: tuple[str, ...] = ()
    resources: tuple[Resources, ...] = ()
    footprints: tuple[Footprint, ...] = ()
    timeline: tuple[Event, ...] = field(default=(), compare=False)
    omitted_events: int = field(default=0, compare=False)
    packed_draws: tuple[tuple[tuple[Any, ...], str], ...] = field(
        default=(), repr=False, compare=False
    )
    duration: float = 0.0
    timed_out: bool = False
    at_deadline: AtDeadline | None = None
    batches: int | None = None
    phase: Phase = START
    absence: Absence | None = None
    apart: tuple[Step, ...] = ()
    drop_last: bool = False
    reduced_from: int | None = None
    ranks: tuple[TrialFacts, ...] = ()
    exitcode: int = 0
    stacks: str = ""
    stderr: str = ""

    @property
    def processes(self) -> tuple[WorkerFacts, ...]:
        """The workers, and before them the loader's own process, if that was armed as well."""
        return (*([self.main] if self.main else []), *self.workers)

    @property
    def delivered(self) -> tuple[Delivery, ...]:
        """Every batch that was delivered under the faults, over all epochs."""
        return tuple(each for one in self.passes for each in one.delivered)

    @property
    def exception(self) -> Raised | None:
        """The exception that ended the last epoch, if one did."""
        return self.passes[-1].exception if self.passes else None

    @property
    def deaths(self) -> tuple[WorkerDeath, ...]:
        """The workers that had died when the last epoch ended."""
        return self.passes[-1].deaths if self.passes else ()

    @property
    def died(self) -> str | None:
        """How the loader's process ended, if not by itself (``"signal 7 (SIGBUS)"``)."""
        return exit_in_words(self.exitcode) if self.exitcode else None

    @property
    def fired(self) -> int:
        """How often faults happened, of all kinds and in all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def has_lost_rank(self) -> bool:
        """Whether its error came of the end of another rank."""
        return self.exception is not None and tells_of_lost_rank(self.exception.message)

    @property
    def unobserved(self) -> dict[str, int]:
        """How often workers did something whose reads the engine cannot see, by name."""
        return dict(sum((Counter(each.unobserved) for each in self.workers), Counter[str]()))

    def reproduce(self) -> str:
        """One line of Python that runs this trial again, given the same ``make_dataset``."""
        armed = [number for number, each in enumerate(self.ranks) if each.schedule]
        return call(
            "run_trial",
            "make_dataset",
            *map(repr, self.schedule),
            loader=self.loader,
            epochs=self.epochs if self.epochs != 1 else None,
            from_start=self.from_start or None,
            ranks=len(self.ranks) or None,
            on_rank=_shown_rank(armed, len(self.ranks)),
            **run_settings(self.deadline, self.seed, self.engine),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return dict(to_json(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The outcome that ``to_dict`` made *data* from."""
        made: Self = from_json(cls, data)
        return made


def _shown_rank(armed: Sequence[int], ranks: int) -> int | str | None:
    """The argument *on_rank* for faults in the ranks that are *armed*; None for the default."""
    if len(armed) > 1:
        return "all"
    return armed[0] if armed and armed[0] != ranks - 1 else None


def makes_dataset(outcome: TrialFacts) -> bool:
    """Whether, under faults that were there before, it has come no further than its factory."""
    return outcome.from_start and outcome.phase == START
