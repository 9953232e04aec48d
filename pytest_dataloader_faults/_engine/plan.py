"""What one scope injects, and which faults are due for an operation of a worker. Pure.

``WorkerFaults`` counts operations, says which faults are due, and touches no file. The supervisor
carries out what it says, by answers to system calls. It keeps one ``FaultCounter`` per fault and
worker process. Each worker counts alone, since a count over racing workers would differ from run to
run.
"""

from __future__ import annotations

import functools
import operator
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, cast

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.kernel.calls import CALLS, FilterRequirements
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import FiringKind, InWorkers, Place
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_below, is_excluded, may_be_data
from pytest_dataloader_faults.faults.workers import InOneWorker
from pytest_dataloader_faults.wire import FaultFacts, FileCounts, Firing

MAX_FIRINGS = 200
"""Firings kept in full per fault and worker; beyond, they are only counted."""
AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True)
class FaultPlan:
    """The schedule of one scope.

    *watch*: every data file is followed, as a fault-free run needs it. *seed* is of faults drawn at
    random. *samples*: each firing has its sample. *seeded*: what random numbers restart from at
    each sample, together with its index; None to leave them. *own_folders*: the folders,
    as realpath(3) gives them, in which faults may change files for good; None for anywhere.
    *unprovoked*: globs of what workers use without waiting for each other if *watch* is set.
    *protects*: once a fault has fired, no process may change files that were there before, except
    in the folders *spared*.
    """

    faults: tuple[Fault, ...]
    watch: bool = False
    seed: int = 0
    samples: bool = False
    seeded: int | None = None
    own_folders: Sequence[str] | None = None
    unprovoked: tuple[str, ...] = ()
    protects: bool = False
    spared: Sequence[str] = ()

    @property
    def globs(self) -> tuple[str, ...]:
        """Every glob whose files matter, to find those that are open already."""
        if self.watch:
            return ("*",)
        return tuple(glob for each in self.faults for glob in each.globs)

    @functools.cached_property
    def needs(self) -> FilterRequirements:
        """What the filter must notify of, in addition to opens."""
        at_sample = any(getattr(each, "sample", None) is not None for each in self.faults)
        counted = Place.CHANGE if self.protects else Place(0)
        counted |= Place.COUNTED if self.watch else Place(0)
        places = functools.reduce(operator.or_, (each.places for each in self.faults), counted)
        exhaustion = vocabulary.MemoryExhaustion
        exhaustions = (each for each in self.faults if isinstance(each, exhaustion))
        return FilterRequirements(
            places=places,
            memory=min((each.min_bytes for each in exhaustions), default=0),
            samples=self.samples or at_sample,
            fetches=at_sample or Place.FETCH in places,
        )


@dataclass
class FaultCounter(Generic[AnyFault]):
    """One fault in one worker process: how often its place was reached, and what it did there."""

    fault: AnyFault
    index: int
    stream: random.Random = field(default_factory=random.Random)
    matched: int = 0
    chosen: int = 0
    fired: int = 0
    firings: list[Firing] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compile the globs once."""
        self.matches = GlobMatcher(self.fault.globs)
        self.has_path = bool(self.fault.globs)
        self.places = self.fault.places
        self.trigger = self.fault.trigger

    def reach(self) -> bool:
        """Count one occurrence, and return whether it fires."""
        trigger = self.trigger
        self.matched += 1
        since = self.matched - trigger.nth
        is_over = trigger.times is not None and self.chosen >= trigger.times
        if since < 0 or since % trigger.every or is_over:
            return False
        if trigger.probability < 1 and self.stream.random() >= trigger.probability:
            return False
        self.chosen += 1
        return True

    def fire(self, firing: Firing) -> None:
        """Record that the fault happened."""
        self.fired += 1
        if len(self.firings) < MAX_FIRINGS:
            self.firings.append(firing)


def sum_facts(fault: Fault, parts: Sequence[FaultCounter[Any]]) -> FaultFacts:
    """What *parts*, the counters of *fault* in several processes, say together."""
    matched, fired = sum(each.matched for each in parts), sum(each.fired for each in parts)
    firings = tuple(firing for each in parts for firing in each.firings)
    return FaultFacts(fault, matched, fired, firings=firings)


MAP = "mmap"
_KNOWN_PATHS = 1 << 12
_ANYWHERE = ~Place(0)


class Operation(NamedTuple):
    """An operation on *path*, absolute, or "" for none.

    *pid* is None for the worker process itself.
    """

    call: str
    path: str
    pid: int | None = None
    kind: FiringKind = FiringKind.CALL


class Due(NamedTuple):
    """What becomes of a read or a write: first what takes time, then at most one of the others."""

    death: FaultCounter[vocabulary.WorkerKilled] | None = None
    """The worker dies inside the call. The fault fires by that."""
    hangs: bool = False
    """The call does not return while faults are armed."""
    seconds: float = 0.0
    """The call takes so much longer."""
    errno: int = 0
    """The call fails; of a mapping, pages from *offset* on cannot be read."""
    offset: int = 0
    max_bytes: int | None = None
    """The most bytes that a read returns, or that a write takes."""


NOTHING_DUE = Due()


class WorkerFaults:
    """The faults that concern one worker process, and what it did. If they are *over*, none fires.

    *worker* is None for the main process, if that is armed before it has a worker. A *bystander* is
    a process in which none fires, but whose files its workers inherit. *on_fired* gets each firing
    before it takes effect.
    """

    def __init__(
        self, plan: FaultPlan, worker: int | None, pid: int, *, bystander: bool = False
    ) -> None:
        self.id, self.pid = worker, pid
        self.counters: list[FaultCounter[Any]] = [
            FaultCounter(fault, index, random.Random(f"{plan.seed}/{index}/{worker}"))
            for index, fault in enumerate(plan.faults)
        ]
        self._concerned = [
            counter for counter in self.counters if bystander or _applies_to(counter.fault, worker)
        ]
        self._watch, self._own_folders = plan.watch, plan.own_folders
        self.sees = plan.needs.places
        self.is_bystander = self.over = bystander
        self.armed, self.fired = True, False
        self.fetch = 0
        self.refused: list[str] = []
        """Why faults that were due there could not happen."""
        self.on_fired: Callable[[Firing], object] = lambda _firing: None
        self.files: defaultdict[str, FileCounts] = defaultdict(FileCounts)
        self.unobserved: Counter[str] = Counter()
        self.tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How often it did what is not done to a file, by operation: see ``WorkerFacts``."""
        self.needs_reads_of = functools.lru_cache(_KNOWN_PATHS)(
            functools.partial(self.needs_answer, place=Place.READ)
        )
        """Whether reads of a path must be seen. A dataset reads the same files again and again."""

    def counters_of_kind(
        self, kind: type[AnyFault] | tuple[type[AnyFault], ...]
    ) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault; none if no fault can fire any longer."""
        for counter in self._concerned if self.armed and not self.over else ():
            if isinstance(counter.fault, kind):
                yield cast("FaultCounter[AnyFault]", counter)

    def counters_for_path(
        self, kind: type[AnyFault] | tuple[type[AnyFault], ...], path: str
    ) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault that mean *path*."""
        return (counter for counter in self.counters_of_kind(kind) if counter.matches(path))

    # What must be seen.

    def targets(self, path: str, place: Place = _ANYWHERE) -> bool:
        """Whether a fault that happens in *place* is about *path*.

        An excluded file is meant if a glob names its folder.
        """
        return any(each.places & place and each.matches(path) for each in self._concerned)

    def needs_answer(self, path: str, place: Place = _ANYWHERE) -> bool:
        """Whether the kernel may not always execute calls about *path* in *place*."""
        return (self._watch and not is_excluded(path)) or self.targets(path, place)

    def is_exempt(self, path: str) -> bool:
        """Whether faults leave *path* alone: a system, package or code file that no glob names."""
        return not self.armed or (is_excluded(path) and not self.targets(path))

    def may_exempt_data(self, path: str) -> bool:
        """Whether *path*, left alone, may be data that a glob means."""
        is_meant = any(counter.matches.means(path) for counter in self._concerned)
        return self.armed and is_meant and may_be_data(path)

    # What is counted.

    def count(self, path: str, operation: str, length: int = 0) -> None:
        """Add one *operation* to the counts of a file, by its name there.

        *length*: how many bytes were read.
        """
        counts = self.files[path]
        number = getattr(counts, operation) + 1
        self.files[path] = counts._replace(bytes=counts.bytes + length, **{operation: number})

    def _count_read(self, operation: Operation, offset: int, length: int) -> None:
        self.count(operation.path, "reads", length)
        counts = self.files[operation.path]
        if operation.call == MAP:
            self.count(operation.path, "maps")
        elif counts.reads > 1 and length > counts.longest_bytes:
            self.files[operation.path] = counts._replace(
                longest=counts.reads, longest_offset=offset, longest_bytes=length
            )

    # What is due.

    def fire(
        self,
        counter: FaultCounter[Any],
        call: str,
        path: str | None = None,
        pid: int | None = None,
        kind: FiringKind = FiringKind.CALL,
    ) -> None:
        """Write down that the fault of *counter* happens now."""
        pid, now = pid or self.pid, time.monotonic()
        place = self.id, pid, call, path or None, self.fetch
        firing = Firing(counter.index, *place, time=now, kind=kind, **self.describe_firing(pid))
        counter.fire(firing)
        self.fired = True
        self.on_fired(firing)

    def describe_firing(self, _pid: int) -> dict[str, Any]:
        """What else a firing in the process *_pid* records."""
        return {}

    def fire_first_due(
        self,
        kind: type[AnyFault] | tuple[type[AnyFault], ...],
        operation: Operation,
        concerns: Callable[[FaultCounter[AnyFault]], bool] = lambda _counter: True,
    ) -> FaultCounter[AnyFault] | None:
        """Fire the first fault of *kind* that is due for *operation*, and return its counter."""
        for counter in self.counters_of_kind(kind):
            is_meant = not counter.has_path or counter.matches(operation.path)
            is_due = is_meant and concerns(counter) and counter.reach()
            if is_due and self._may_harm(counter, operation):
                self.fire(counter, *operation)
                return counter
        return None

    def closes(self, operation: Operation) -> bool:
        """Whether the descriptor that *operation* makes is not open: a fault fires by that."""
        kind = vocabulary.ClosedDescriptor
        return bool(self.fire_first_due(kind, operation, lambda each: each.fault.sample is None))

    def edit_for(self, operation: Operation, size: int, *, sizes: bool = False) -> FileEdit | None:
        """How the copy that is due for a file of *size* bytes differs; None if no copy is.

        *sizes*: only a copy whose size differs.
        """
        cuts = [*self.counters_for_path(vocabulary.TruncatedFile, operation.path)]
        flips = [*self.counters_for_path(vocabulary.CorruptedFile, operation.path)]
        due: list[FaultCounter[Any]] = [*cuts, *flips]
        for counter in due:
            counter.matched += 1
        cuts = [each for each in cuts if each.fault.kept(size) < size]
        due = [*cuts, *flips]
        if not size or not (cuts if sizes else due):
            return None
        for counter in due:
            self.fire(counter, *operation)
        kept_size = min((each.fault.kept(size) for each in cuts), default=None)
        return FileEdit(kept_size, tuple((each.fault.flips, each.fault.seed) for each in flips))

    def read_due(self, operation: Operation, offset: int, length: int) -> Due:
        """What becomes of a read or a mapping of *length* bytes.

        If a call's offset and length are unknown, both are 0.
        """
        self._count_read(operation, offset, length)
        failing = self.failing_read(operation, offset + length)
        short = None
        if not failing and CALLS[operation.call].reads_into_buffers:
            short = self.fire_first_due(
                vocabulary.ShortRead, operation, lambda each: each.fault.most(length) < length
            )
        due = Due(self._death_in(operation, "reading"))
        due = due if due.death else self.delay_due(operation)
        if failing:
            return due._replace(errno=failing.fault.errno, offset=failing.fault.offset or 0)
        return due._replace(max_bytes=short.fault.most(length)) if short else due

    def failing_read(
        self, operation: Operation, end: int
    ) -> FaultCounter[vocabulary.ReadError] | None:
        """The fault by which a read of what is before *end* fails."""
        return self.fire_first_due(
            vocabulary.ReadError,
            operation,
            lambda each: each.fault.offset is None or end > each.fault.offset,
        )

    def _death_in(
        self, operation: Operation, inside: str
    ) -> FaultCounter[vocabulary.WorkerKilled] | None:
        """The death that is due *inside* it, by the name of the argument."""
        for counter in self.counters_for_path(vocabulary.WorkerKilled, operation.path):
            if getattr(counter.fault, inside) is not None and not counter.fired:
                counter.matched += 1
                if max(1, self.fetch) >= counter.fault.at:  # A stream may read before its first.
                    return counter
        return None

    def delay_due(self, operation: Operation) -> Due:
        """How much longer the operation takes than it should."""
        if self.fire_first_due(vocabulary.HungRead, operation):
            return Due(hangs=True)
        counters = self.counters_for_path(vocabulary.SlowRead, operation.path)
        due = [each for each in counters if each.reach()]
        for counter in due:
            self.fire(counter, *operation)
        return Due(seconds=sum(each.fault.seconds for each in due))

    def write_due(self, operation: Operation, length: int) -> Due:
        """What becomes of a write of *length* bytes, or a call that makes earlier writes last.

        If a call's length is unknown, it is 0.
        """
        self.count(operation.path, "writes")
        call = CALLS[operation.call]
        death = self._death_in(operation, "writing") if call.has_data else None
        if death and self._may_harm(death, operation):
            return Due(death)
        if failing := self.fire_first_due(vocabulary.WriteError, operation):
            return Due(errno=failing.fault.errno)
        short = self.fire_first_due(
            vocabulary.ShortWrite,
            operation,
            lambda each: call.writes_buffers and each.fault.most(length) < length,
        )
        return Due(max_bytes=short.fault.most(length)) if short else NOTHING_DUE

    def _may_harm(self, counter: FaultCounter[Any], operation: Operation) -> bool:
        """Whether the fault of *counter* may happen there: a failed write harms the file.

        If it is due elsewhere, it is refused.
        """
        folders = self._own_folders
        is_write = counter.places & Place.WRITE
        if not is_write or folders is None or is_below(operation.path, folders):
            return True
        self.refuse(
            f"{counter.fault!r} was due in a {operation.call} of {operation.path}. A failed write"
            " would damage that file for good, so write faults are only allowed in a folder created"
            " for the trial: let make_dataset take a folder (each trial passes an empty one), and"
            " write there"
        )
        return False

    def refuse(self, reason: str) -> None:
        """Note why a fault that is due there cannot happen."""
        if reason not in self.refused:
            self.refused.append(reason)


def _applies_to(fault: Fault, worker: int | None) -> bool:
    if worker is None:
        return not fault.needs_worker and getattr(fault, "workers", None) is None
    if isinstance(fault, InOneWorker):
        return fault.sample is not None or fault.worker in (None, worker)
    return not isinstance(fault, InWorkers) or fault.workers is None or worker in fault.workers
