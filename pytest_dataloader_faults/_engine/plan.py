"""What one scope injects, and the counters that show whether it happened. Pure.

The supervisor keeps one ``FaultCounter`` per fault and worker process. Each worker counts alone,
since a count over racing workers would differ from run to run.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import DEFAULT_COLLISIONS, Collisions, Place
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.wire import FaultFacts, Firing

MAX_FIRINGS = 200
"""Firings kept in full per fault and worker; beyond, they are only counted."""
AnyFault = TypeVar("AnyFault", bound=Fault)
_NOWHERE = Place(0)


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
