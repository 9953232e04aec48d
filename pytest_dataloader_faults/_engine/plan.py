"""What one scope injects, and the counters that show whether it happened. Pure.

The supervisor keeps one ``FaultCounter`` per fault and worker process. Each worker counts alone,
since a count over racing workers would differ from run to run.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import DEFAULT_COLLISIONS, Collisions, InWorkers, Place
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_excluded
from pytest_dataloader_faults.faults.workers import InOneWorker
from pytest_dataloader_faults.wire import FaultFacts, Firing

MAX_FIRINGS = 200
"""Firings kept in full per fault and worker; beyond, they are only counted."""
AnyFault = TypeVar("AnyFault", bound=Fault)
_NOWHERE = Place(0)
_KNOWN_PATHS = 1 << 12


@dataclass(frozen=True)
class FilterRequirements:
    """What a plan needs from the filter and from the worker. Picklable, for the worker."""

    places: Place = _NOWHERE
    """Where a call must be seen: where a fault can happen, and what is counted."""
    memory: int = 0
    """Calls that get this many bytes of memory or more; 0: none of them."""
    samples: bool = False
    """The worker reports each sample that it starts."""
    fetches: bool = False
    """A fault may affect a worker when a fetch or a sample starts: it waits there for orders."""

    def with_places(self, places: Place) -> FilterRequirements:
        """The same, and calls in these *places* are seen as well."""
        return replace(self, places=self.places | places)


@dataclass(frozen=True)
class FaultPlan:
    """The schedule of one scope.

    *watch*: every data file is followed, as a fault-free run needs it. *seed* is of faults drawn at
    random. *samples*: each firing has its sample. *seeded*: what random numbers restart from at
    each sample, together with its index; None to leave them. *own_folders*: the folders,
    as realpath(3) gives them, in which faults may change files for good; None for anywhere.
    *collisions*: how calls of workers collide if *watch* is set. *protects*: once a fault has
    fired, no process may change files that were there before, except in the folders *spared*.
    """

    faults: tuple[Fault, ...]
    watch: bool = False
    seed: int = 0
    samples: bool = False
    seeded: int | None = None
    own_folders: Sequence[str] | None = None
    collisions: Collisions = DEFAULT_COLLISIONS
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
        counted = Place.CHANGE if self.protects else _NOWHERE
        counted |= Place.COUNTED if self.watch else _NOWHERE
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


def fresh_counters(plan: FaultPlan, worker: int | None) -> list[FaultCounter[Any]]:
    """Fresh counters for *worker*, or for the loader's own process (None)."""
    return [
        FaultCounter(fault, index, random.Random(f"{plan.seed}/{index}/{worker}"))
        for index, fault in enumerate(plan.faults)
    ]


class WorkerFaults:
    """The faults of a plan that concern one worker. If they are *over*, none can fire.

    *worker* is None for the main process, if that is armed before it has a worker. A *bystander* is
    a process in which none fires, but whose files its workers inherit.
    """

    def __init__(self, plan: FaultPlan, worker: int | None, *, bystander: bool = False) -> None:
        self.all = fresh_counters(plan, worker)
        self._concerned = [
            counter for counter in self.all if bystander or _applies_to(counter.fault, worker)
        ]
        self._watch = plan.watch
        self.own_folders = plan.own_folders
        self.sees = plan.needs.places
        self.over = bystander
        self.needs_reads_of = functools.lru_cache(_KNOWN_PATHS)(self._needs_reads_of)
        """Whether reads of a path must be seen. A dataset reads the same files again and again."""

    def counters_of_kind(
        self, kind: type[AnyFault] | tuple[type[AnyFault], ...]
    ) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault; none if faults are over."""
        for counter in () if self.over else self._concerned:
            if isinstance(counter.fault, kind):
                yield cast("FaultCounter[AnyFault]", counter)

    def counters_for_path(
        self, kind: type[AnyFault] | tuple[type[AnyFault], ...], path: str
    ) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault that mean *path*."""
        return (counter for counter in self.counters_of_kind(kind) if counter.matches(path))

    def targets(self, path: str) -> bool:
        """Whether a fault is about *path*; an excluded file is meant if a glob names its folder."""
        return any(counter.matches(path) for counter in self._concerned)

    def needs_answer(self, path: str) -> bool:
        """Whether the kernel may not always execute calls about *path*."""
        return (self._watch and not is_excluded(path)) or self.targets(path)

    def would_target(self, path: str) -> bool:
        """Whether a fault would be about *path* if the file were not excluded."""
        return any(counter.matches.means(path) for counter in self._concerned)

    def _needs_reads_of(self, path: str) -> bool:
        if self._watch and not is_excluded(path):
            return True
        return self.has_fault_in(path, Place.READ)

    def has_fault_in(self, path: str, place: Place) -> bool:
        """Whether a fault that happens in *place* is about *path*."""
        return any(each.places & place and each.matches(path) for each in self._concerned)


def _applies_to(fault: Fault, worker: int | None) -> bool:
    if worker is None:
        return not fault.needs_worker and getattr(fault, "workers", None) is None
    if isinstance(fault, InOneWorker):
        return fault.sample is not None or fault.worker in (None, worker)
    return not isinstance(fault, InWorkers) or fault.workers is None or worker in fault.workers
