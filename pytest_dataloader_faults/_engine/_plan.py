"""What one scope injects, and the counters that say whether it happened. Pure.

The supervisor keeps one ``Tally`` per fault and worker process: occurrences are counted in each
worker on its own, since a count over racing workers would not be the same twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine._paths import Matcher, is_excluded
from pytest_dataloader_faults.faults import DescriptorExhaustion, Fault, TruncatedFile, WorkerKilled

MAX_FIRINGS = 200
"""Firings kept in full per fault and worker; beyond, they are only counted."""

AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True)
class Plan:
    """The schedule of one scope; *watch* asks for every data file to be followed (recon)."""

    faults: tuple[Fault, ...]
    watch: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"faults": [vocabulary.to_dict(each) for each in self.faults], "watch": self.watch}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """The plan that ``to_dict`` made *data* from."""
        return cls(tuple(vocabulary.from_dict(each) for each in data["faults"]), data["watch"])

    @property
    def globs(self) -> tuple[str, ...]:
        """Every glob whose files matter, for finding those that are open already."""
        if self.watch:
            return ("*",)
        return tuple(glob for each in self.faults if has_files(each) for glob in each.globs)

    @property
    def every_descriptor(self) -> bool:
        """Whether calls that make descriptors of any kind have to be seen."""
        return any(isinstance(each, DescriptorExhaustion) for each in self.faults)

    @property
    def every_stat(self) -> bool:
        """Whether the size that a path has is to be another."""
        return any(isinstance(each, TruncatedFile) for each in self.faults)


def has_files(fault: Fault) -> bool:
    """Whether *fault* is about files."""
    return not isinstance(fault, (DescriptorExhaustion, WorkerKilled))


@dataclass
class Tally:
    """One fault in one worker process: how often its place was reached, and what it did there."""

    fault: Fault
    index: int
    reached: int = 0
    fired: int = 0
    firings: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compile the globs once."""
        self.matches = Matcher(self.fault.globs)

    def reach(self) -> bool:
        """Count one occurrence and say whether it is one that fires."""
        self.reached += 1
        first, times = self.fault.nth, self.fault.times
        return self.reached >= first and (times is None or self.reached < first + times)

    def fire(self, **what: Any) -> None:
        """Write down that the fault happened."""
        self.fired += 1
        if len(self.firings) < MAX_FIRINGS:
            self.firings.append({"fault": self.index, **what})


class Tallies:
    """The faults of a plan that concern one worker."""

    def __init__(self, plan: Plan, worker: int) -> None:
        self.all = [Tally(fault, index) for index, fault in enumerate(plan.faults)]
        self._concerned = [tally for tally in self.all if _concerns(tally.fault, worker)]
        self._watch = plan.watch

    def of(self, kind: type[Fault]) -> Iterator[Tally]:
        """The tallies of one kind of fault."""
        return (tally for tally in self._concerned if isinstance(tally.fault, kind))

    def about(self, kind: type[Fault], path: str) -> Iterator[Tally]:
        """The tallies of one kind of fault that mean *path*."""
        return (tally for tally in self.of(kind) if tally.matches(path))

    def ask_for(self, path: str) -> bool:
        """Whether a glob names the folder of *path*, which is left alone otherwise."""
        return any(tally.matches(path) for tally in self._concerned)

    def follows(self, kind: type[Fault], path: str) -> bool:
        """Whether reads of *path* have to be seen."""
        if self._watch and not is_excluded(path):
            return True
        return any(True for _ in self.about(kind, path))


def _concerns(fault: Fault, worker: int) -> bool:
    if isinstance(fault, WorkerKilled):
        return fault.worker in (None, worker)
    return fault.workers is None or worker in fault.workers
