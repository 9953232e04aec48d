"""What one scope injects, and the counters that say whether it happened. Pure.

The supervisor keeps one ``FaultCounter`` per fault and worker process. Each worker counts alone,
since a count over racing workers would differ from run to run.
"""

from __future__ import annotations

import functools
import operator
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault, has_files
from pytest_dataloader_faults.faults.base import FiringKind, InWorkers, Place
from pytest_dataloader_faults.faults.kinds import InOneWorker
from pytest_dataloader_faults.globs import GlobMatcher, is_below, is_excluded

MAX_FIRINGS = 200
"""Firings kept in full per fault and worker; beyond, they are only counted."""
AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True)
class FilterRequirements:
    """What a plan needs from the filter and from the worker. Picklable, for the worker."""

    descriptors: bool = False
    """Calls that make descriptors of any kind."""
    stats: bool = False
    """Calls that ask for the size of a path, since a fault changes it."""
    room: bool = False
    """fallocate(2), by which torch reserves shared memory."""
    writes: bool = False
    """Calls that write to a file."""
    keep_low_fds: bool = False
    """Followed files keep low numbers, since high ones lie above a lowered limit."""
    samples: bool = False
    """The worker reports each sample that it begins."""
    fetches: bool = False
    """Something may happen to a worker as a fetch or a sample begins: it waits there for what."""


@dataclass(frozen=True)
class Plan:
    """The schedule of one scope.

    *watch*: every data file is followed, as a baseline needs it. *seed* is of faults drawn at
    random. *samples*: each firing has its sample. *seeded*: what random numbers begin again from at
    each sample, together with its index; None to leave them. *writable*: the folders, as
    realpath(3) gives them, in which faults of writing may happen; None for anywhere.
    """

    faults: tuple[Fault, ...]
    watch: bool = False
    seed: int = 0
    samples: bool = False
    seeded: int | None = None
    writable: Sequence[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**vars(self), "faults": [vocabulary.to_dict(each) for each in self.faults]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` made *data* from."""
        faults = tuple(vocabulary.from_dict(each) for each in data["faults"])
        return cls(**{**data, "faults": faults})

    @property
    def globs(self) -> tuple[str, ...]:
        """Every glob whose files matter, for finding those that are open already."""
        if self.watch:
            return ("*",)
        return tuple(glob for each in self.faults for glob in each.globs)

    @property
    def needs(self) -> FilterRequirements:
        """What the filter has to hand over besides opens and reads of followed files."""
        at_sample = any(getattr(each, "sample", None) is not None for each in self.faults)
        places = functools.reduce(operator.or_, (each.places for each in self.faults), Place(0))
        exhausted = Place.ALLOCATION in places
        return FilterRequirements(
            descriptors=exhausted,
            stats=Place.STAT in places,
            room=Place.RESERVATION in places,
            writes=self.watch or Place.WRITE in places,
            keep_low_fds=exhausted and any(has_files(each) for each in self.faults),
            samples=self.samples or at_sample,
            fetches=at_sample or Place.FETCH in places,
        )


@dataclass
class FaultCounter(Generic[AnyFault]):
    """One fault in one worker process: how often its place was reached, and what it did there."""

    fault: AnyFault
    index: int
    stream: random.Random = field(default_factory=random.Random)
    reached: int = 0
    chosen: int = 0
    fired: int = 0
    firings: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compile the globs once."""
        self.matches = GlobMatcher(self.fault.globs)
        self.places = self.fault.places
        self.trigger = self.fault.trigger

    def reach(self) -> bool:
        """Count one occurrence and say whether it is one that fires."""
        trigger = self.trigger
        self.reached += 1
        since = self.reached - trigger.nth
        is_over = trigger.times is not None and self.chosen >= trigger.times
        if since < 0 or since % trigger.every or is_over:
            return False
        if trigger.probability < 1 and self.stream.random() >= trigger.probability:
            return False
        self.chosen += 1
        return True

    def to_dict(self) -> dict[str, Any]:
        """The counters and firings, as plain data."""
        return {"reached": self.reached, "fired": self.fired, "firings": self.firings}

    def fire(self, **what: Any) -> None:
        """Record that the fault happened."""
        self.fired += 1
        if len(self.firings) < MAX_FIRINGS:
            self.firings.append({"fault": self.index, **what})

    def fire_here(self, call: str, kind: FiringKind = FiringKind.CALL) -> None:
        """Record that the fault happened in this process, which runs the loop."""
        here = {"worker": None, "pid": os.getpid(), "path": None, "fetch": 0}
        self.fire(call=call, kind=kind, time=time.monotonic(), **here)


@dataclass
class FileCounter:
    """How often a worker opened, read and wrote one file, and how many bytes it asked for."""

    opens: int = 0
    reads: int = 0
    bytes: int = 0
    writes: int = 0
    longest: int = 0
    longest_offset: int = 0
    longest_bytes: int = 0

    def count_read(self, offset: int, length: int, *, is_mapping: bool) -> None:
        """Count a read of *length* bytes at *offset*."""
        self.reads += 1
        self.bytes += length
        if self.reads > 1 and length > self.longest_bytes and not is_mapping:
            self.longest, self.longest_offset, self.longest_bytes = self.reads, offset, length

    def numbers(self) -> tuple[int, ...]:
        """All of them, in order. dataclasses.astuple() takes 40 times as long, for its copies."""
        return tuple(vars(self).values())


def fresh_counters(plan: Plan, worker: int | None) -> list[FaultCounter[Any]]:
    """Fresh counters for *worker*, or for the loader's own process (None)."""
    return [
        FaultCounter(fault, index, random.Random(f"{plan.seed}/{index}/{worker}"))
        for index, fault in enumerate(plan.faults)
    ]


class WorkerFaults:
    """The faults of a plan that concern one worker. Where they are *over*, none can happen.

    *worker* is None for the loader's own process, where that is armed before it has any worker.
    """

    def __init__(self, plan: Plan, worker: int | None) -> None:
        self.all = fresh_counters(plan, worker)
        self._concerned = [counter for counter in self.all if _concerns(counter.fault, worker)]
        self._watch = plan.watch
        self._writable = plan.writable
        self.sees_writes = plan.needs.writes
        self.over = False

    def of_kind(self, kind: type[AnyFault]) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault; none where faults are over."""
        for counter in () if self.over else self._concerned:
            if isinstance(counter.fault, kind):
                yield cast("FaultCounter[AnyFault]", counter)

    def for_path(self, kind: type[AnyFault], path: str) -> Iterator[FaultCounter[AnyFault]]:
        """The counters of one kind of fault that mean *path*."""
        return (counter for counter in self.of_kind(kind) if counter.matches(path))

    def targets(self, path: str) -> bool:
        """Whether a fault is about *path*; an excluded file is meant if a glob names its folder."""
        return any(counter.matches(path) for counter in self._concerned)

    def concerns(self, path: str) -> bool:
        """Whether any answer about *path* can be other than that the kernel may go on."""
        return (self._watch and not is_excluded(path)) or self.targets(path)

    def needs_content_of(self, path: str) -> bool:
        """Whether the answer to an open of *path* may be a descriptor."""
        return self._has_fault_in(path, Place.DESCRIPTOR) or self.needs_reads_of(path)

    def needs_answers_of(self, path: str) -> bool:
        """Whether what the peer of the connection *path* sends has to be seen."""
        return self._has_fault_in(path, Place.ANSWER)

    def would_target(self, path: str) -> bool:
        """Whether a fault would be about *path* if the file were not excluded."""
        return any(counter.matches.means(path) for counter in self._concerned)

    def has_file_faults(self, path: str) -> bool:
        """Whether a fault of files is about *path*."""
        return any(has_files(each.fault) for each in self.for_path(Fault, path))

    def needs_reads_of(self, path: str) -> bool:
        """Whether reads of *path* have to be seen."""
        if self._watch and not is_excluded(path):
            return True
        return self._has_fault_in(path, Place.READ)

    def needs_writes_of(self, path: str) -> bool:
        """Whether a fault of writing is about *path*."""
        return self._has_fault_in(path, Place.WRITE)

    def may_fail_writes_of(self, path: str) -> bool:
        """Whether the file of *path* is in a folder in which faults of writing may happen."""
        return self._writable is None or is_below(path, self._writable)

    def _has_fault_in(self, path: str, place: Place) -> bool:
        """Whether a fault that happens in *place* is about *path*."""
        return any(each.places & place and each.matches(path) for each in self._concerned)


def _concerns(fault: Fault, worker: int | None) -> bool:
    if worker is None:
        return not fault.needs_worker and getattr(fault, "workers", None) is None
    if isinstance(fault, InOneWorker):
        return fault.sample is not None or fault.worker in (None, worker)
    if isinstance(fault, vocabulary.DescriptorExhaustion) and fault.where == "loader":
        return False
    return not isinstance(fault, InWorkers) or fault.workers is None or worker in fault.workers
