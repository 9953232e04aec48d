"""The facts of a trial, without finding: plain data, to and from JSON, and how they are shown."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

from pytest_dataloader_faults._arguments import ArgumentRule, one_of
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison, Sample
from pytest_dataloader_faults.outcomes.chains import Raised
from pytest_dataloader_faults.outcomes.stages import (
    DONE,
    START,
    AtDeadline,
    Phase,
    Refusal,
    Stage,
    StateOf,
)
from pytest_dataloader_faults.outcomes.text import Shown, call, describe_end, describe_exit
from pytest_dataloader_faults.wire import (
    Count,
    FaultFacts,
    Firing,
    Note,
    Number,
    Seconds,
    WorkerFacts,
    to_json,
)

EventKind: TypeAlias = Annotated[str, one_of(("epoch", "fault", "error", "exit"))]
_PROCESS = re.compile(r"loader|worker [0-9]{1,9}")
ProcessName: TypeAlias = Annotated[
    str,
    ArgumentRule(
        lambda value: isinstance(value, str) and _PROCESS.fullmatch(value) is not None,
        "'loader', or a worker such as 'worker 0'",
    ),
]


@dataclass(frozen=True)
class Batch:
    """A batch as the loop over the loader received it.

    Attributes:
        keys: The indices that the sampler drew; None if unknown (iterable datasets).
        samples: The samples. They are fewer than *keys* if samples are missing.
        digest: The exact digest of all samples, whatever is compared of them.
        worker: The worker that made the batch; None if unknown.
        rows: A digest per row, if a stream makes its own batches and the loader makes none.
        is_whole: Whether the batch cannot be split into samples, and counts as one.
    """

    keys: tuple[Any, ...] | None
    samples: tuple[Sample, ...]
    digest: str = ""
    worker: int | None = None
    rows: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def digests(self) -> tuple[str, ...]:
        """The digest of each sample."""
        return tuple(sample.digest for sample in self.samples)

    @property
    def is_complete(self) -> bool:
        """Whether there is a sample for each key, and no other one."""
        return self.keys is not None and len(self.keys) == len(self.samples) and not self.is_whole

    @property
    def pairs(self) -> tuple[tuple[Any, Sample], ...]:
        """The samples, each with its key, or with None if that is not known.

        The key of a whole batch is the tuple of its keys.
        """
        keys = (self.keys,) if self.is_whole else self.is_complete and self.keys
        return tuple(zip(keys or itertools.repeat(None), self.samples, strict=False))


@dataclass(frozen=True)
class WorkerDeath:
    """A worker that exited before the loader shut it down.

    Attributes:
        worker: The worker's id.
        pid: The id of the process.
        exitcode: As in ``multiprocessing.Process``: an exit status, or minus a signal's number.
    """

    worker: int
    pid: int
    exitcode: int

    def __str__(self) -> str:
        return f"worker {self.worker} {describe_end(self.exitcode)}"


@dataclass(frozen=True)
class Crash(Note):
    """A signal ended a process of the trial, which printed its stack.

    Attributes:
        file: The module of the innermost frame of the stack, as in ``Raised``.
        library: The library that it is of, as in ``Raised``.
    """

    file: str
    library: str


@dataclass(frozen=True)
class Pass:
    """One pass over a loader: the batches requested and delivered, and how it ended.

    Attributes:
        phase: The part of the trial to which the pass belongs.
        drawn: The indices of each requested batch.
        delivered: The batches that the loop received.
        exception: The exception that ended the pass, if any.
        deaths: The workers that had died when the pass ended.
        complete: Whether the pass reached its end.
        batches: The number of batches according to the sampler's length, when the pass started;
            None if it has no length, and for a stream.
        length: How many samples there are to draw; None for a stream, and for a custom sampler.
    """

    phase: Phase
    drawn: tuple[tuple[Any, ...], ...] = ()
    delivered: tuple[Batch, ...] = ()
    exception: Raised | None = None
    complete: bool = False
    deaths: tuple[WorkerDeath, ...] = ()
    batches: int | None = None
    length: int | None = None

    @property
    def sample_count(self) -> int:
        """How many samples were delivered."""
        return sum(len(each.samples) for each in self.delivered)


@dataclass(frozen=True)
class Footprint:
    """The resources of one process of a loader after an epoch.

    Attributes:
        epoch: The epoch, from 1.
        process: ``"loader"`` for the main process, or ``"worker 0"``, ...
        memory: Bytes of anonymous memory.
        descriptors: The number of open file descriptors.
        threads: The number of threads.
        newly_open: A file that is open more often than after the first epoch; "" if none is.
        pinned: Bytes of pinned memory in use in the main process, as torch counts them.
        device: Bytes in use on the accelerator, as torch counts them.
    """

    epoch: Number
    process: ProcessName
    memory: Count
    descriptors: Count
    threads: Count
    newly_open: str = ""
    pinned: Count = 0
    device: Count = 0


@dataclass(frozen=True)
class Event:
    """Something that happened at a known time in a trial.

    Attributes:
        time: Seconds since the trial started.
        process: ``"loader"`` for the main process, or ``"worker 0"``, ...
        kind: ``"epoch"`` (it starts or ends), ``"fault"``, ``"error"`` (the loop receives it) or
            ``"exit"`` (a process died).
        text: What happened, on one line.
    """

    time: Seconds
    process: ProcessName
    kind: EventKind
    text: str


@dataclass(frozen=True)
class Resources:
    """The open files and the descendants of the main process at one moment.

    Attributes:
        stage: ``START`` before the first epoch, ``EPOCH`` after the last one, or ``RECOVERY``.
        descriptors: The target of each link in /proc/self/fd, by descriptor number (a string).
        processes: The command line of each descendant that belongs neither to the plugin nor to
            multiprocessing, by pid (a string).
    """

    stage: Stage
    descriptors: dict[str, str]
    processes: dict[str, str]


@dataclass(frozen=True)
class TrialRequest:
    """What a trial was started with.

    Attributes:
        schedule: The injected faults, in order.
        loader: The options of the DataLoader; ``{"code": ...}`` for values that are not plain data.
        epochs: The number of passes under the faults.
        seed: The seed that was passed.
        deadline: The deadline that was passed, in seconds.
        comparison: How samples are compared.
        before_init: Whether the faults were armed before the dataset was created.
        rank: The rank, if there were several; None without ranks.
        copy: The folder that was copied for ``make_dataset``; None if there was none.
    """

    schedule: tuple[Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int
    deadline: float
    comparison: Comparison = EXACT
    before_init: bool = False
    rank: int | None = None
    copy: str | None = None

    @property
    def run_options(self) -> dict[str, Any]:
        """How a call that repeats the trial differs from an ordinary one; None stands for no."""
        return {
            "epochs": self.epochs if self.epochs != 1 else None,
            "before_init": self.before_init or None,
            "copy": self.copy,
        }


@dataclass(frozen=True)
class LoaderFacts:
    """What a trial learned about its loader.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        start_method: How workers were started; ``""`` if the loader has none.
        drop_last: Whether the loader drops a last batch that is not full.
        state_of: Whose state a checkpoint can contain.
        batches: How many batches an epoch of a map-style dataset has, if that is known.
    """

    kind: str = "map"
    start_method: str = ""
    drop_last: bool = False
    state_of: StateOf = StateOf.NONE
    batches: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether workers inherit the dataset, and neither import its modules nor unpickle it."""
        return self.start_method in ("", "fork")


@dataclass(frozen=True)
class TrialEnd:
    """What ended a trial.

    Attributes:
        exitcode: The main process's, as in a ``WorkerDeath``; 0 if the deadline ended it.
        at_deadline: What the trial did at the deadline; None if the deadline did not end it.
        stacks: The stacks of the processes that were running at the deadline.
    """

    exitcode: int = 0
    at_deadline: AtDeadline | None = None
    stacks: str = ""


NoteT = TypeVar("NoteT", bound=Note)


@dataclass(frozen=True, repr=False)
class Outcome(Shown):
    """The facts of one trial.

    Attributes:
        request: What the trial was started with.
        loader: The kind of dataset, and how the loader is set up.
        passes: All passes over the loader in order, each labeled with its phase; also a pass that
            was not finished.
        faults: How often each fault fired.
        processes: The main process, if it was armed as well, and the worker processes.
        lasting_files: In a fault-free run, the files that workers used and that exist afterwards.
        resources: Before the first epoch, after the last one, and after the recovery pass.
        footprints: The resources of each process after each epoch, if they were measured.
        timeline: When passes started and ended, and the first 100 firings of each fault, ordered
            by time. Comparisons ignore it.
        phase: How far the trial got.
        duration: Seconds from the start of the process to its end.
        end: What ended the trial.
        stderr: The end of what the main process and its workers printed.
        notes: Facts that only some trials record: saved states of the loader, a missing rank.
        ranks: The outcome of each rank, if there were several. The other attributes then describe
            the rank that failed first or, if none did, the one with the faults.
    """

    request: TrialRequest
    loader: LoaderFacts = LoaderFacts()
    passes: tuple[Pass, ...] = ()
    faults: tuple[FaultFacts, ...] = ()
    processes: tuple[WorkerFacts, ...] = ()
    lasting_files: tuple[str, ...] = ()
    resources: tuple[Resources, ...] = ()
    footprints: tuple[Footprint, ...] = ()
    timeline: tuple[Event, ...] = field(default=(), compare=False)
    phase: Phase = START
    duration: float = 0.0
    end: TrialEnd = TrialEnd()
    stderr: str = ""
    notes: tuple[Note, ...] = ()
    ranks: tuple[Outcome, ...] = ()

    @property
    def jobs(self) -> tuple[Outcome, ...]:
        """This outcome and those of all ranks, whose jobs ran at once."""
        return (self, *self.ranks)

    @property
    def schedule(self) -> tuple[Fault, ...]:
        """The injected faults, in order."""
        return self.request.schedule

    @property
    def comparison(self) -> Comparison:
        """How samples are compared."""
        return self.request.comparison

    @property
    def before_init(self) -> bool:
        """Whether the faults were armed before the dataset was created."""
        return self.request.before_init

    @property
    def kind(self) -> str:
        """``"map"`` or ``"iterable"``."""
        return self.loader.kind

    def passes_in(self, stage: Stage) -> tuple[Pass, ...]:
        """The passes of one *stage*, in order."""
        return tuple(each for each in self.passes if each.phase.stage is stage)

    @property
    def epochs(self) -> tuple[Pass, ...]:
        """The passes under the faults. An exception ends the last one."""
        return self.passes_in(Stage.EPOCH)

    @property
    def recovery(self) -> Pass | None:
        """The recovery pass; None if the trial did not get there.

        It has no faults, and uses the same dataset object or, with *before_init*, one that a new
        process created.
        """
        return next(iter(self.passes_in(Stage.RECOVERY)), None)

    @property
    def workers(self) -> tuple[WorkerFacts, ...]:
        """The worker processes."""
        return tuple(each for each in self.processes if each.worker is not None)

    @property
    def main(self) -> WorkerFacts | None:
        """The main process, if it was armed before the dataset was created."""
        return next((each for each in self.processes if each.worker is None), None)

    @property
    def delivered(self) -> tuple[Batch, ...]:
        """Every batch that was delivered under the faults, over all epochs."""
        return tuple(each for epoch in self.epochs for each in epoch.delivered)

    @property
    def exception(self) -> Raised | None:
        """The exception that ended the last epoch, if any."""
        return self.epochs[-1].exception if self.epochs else None

    @property
    def deaths(self) -> tuple[WorkerDeath, ...]:
        """The workers that had died when the last epoch ended."""
        return self.epochs[-1].deaths if self.epochs else ()

    @property
    def died(self) -> str | None:
        """How the main process ended, if it failed (``"signal 7 (SIGBUS)"``)."""
        return describe_exit(self.end.exitcode) if self.end.exitcode else None

    @property
    def timed_out(self) -> bool:
        """Whether the deadline ended the trial."""
        return self.end.at_deadline is not None

    @property
    def fired(self) -> int:
        """How often faults fired, of all kinds and in all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def fired_faults(self) -> tuple[Fault, ...]:
        """The faults that fired, in the order of the schedule."""
        return tuple(each.fault for each in self.faults if each.fired)

    @property
    def firings(self) -> tuple[Firing, ...]:
        """The firings of all faults that are listed one by one."""
        return tuple(firing for each in self.faults for firing in each.firings)

    def has_fired(self, *kinds: type[Fault]) -> bool:
        """Whether a fault of one of these *kinds* fired."""
        return any(isinstance(each, kinds) for each in self.fired_faults)

    @property
    def unobserved(self) -> dict[str, int]:
        """How often workers did something whose reads the engine cannot see, by name."""
        return dict(sum((Counter(each.unobserved) for each in self.workers), Counter[str]()))

    @property
    def has_lost_rank(self) -> bool:
        """Whether its error is gloo's about a rank that has exited."""
        return self.exception is not None and "gloo/transport/" in self.exception.message

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The changes of files that were refused because a fault had fired."""
        return tuple(each for job in self.jobs for each in job.of(Refusal))

    @property
    def vain_waits(self) -> frozenset[str]:
        """Where a call waited for one of another worker, to provoke a race, and none followed."""
        paths = (each.vain_waits for job in self.jobs for each in job.workers)
        return frozenset(itertools.chain(*paths))

    def of(self, kind: type[NoteT]) -> tuple[NoteT, ...]:
        """The notes of one *kind*, in order."""
        return tuple(each for each in self.notes if isinstance(each, kind))

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "schedule", self.schedule
        if self.ranks:
            yield "rank", f"{self.request.rank} of {len(self.ranks)}"
        yield "fired", self.fired
        yield "batches", len(self.delivered)
        if self.exception:
            yield "exception", self.exception.type
        if self.phase != DONE:
            yield "phase", self.phase
        if self.timed_out or self.died:
            yield "ended", self.died or "by the deadline"
        yield "duration", f"{self.duration:g} s"

    def _text(self) -> str:
        return self.reproduce()

    def reproduce(self) -> str:
        """One line of Python that runs this trial again with the same ``make_dataset``."""
        request = self.request
        armed = [number for number, each in enumerate(self.ranks) if each.schedule]
        on_rank = "all" if len(armed) > 1 else next(iter(armed), None)
        return call(
            "run_trial",
            "make_dataset",
            *map(repr, request.schedule),
            loader=request.loader,
            **request.run_options,
            ranks=len(self.ranks) or None,
            on_rank=None if on_rank == len(self.ranks) - 1 else on_rank,  # The default.
            deadline=request.deadline,
            seed=request.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dict(to_json(self))
