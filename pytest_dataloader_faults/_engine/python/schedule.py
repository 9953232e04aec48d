"""The faults of a plan, decided in the worker itself. Pure but for its own process id.

It reaches and fires where the kernel engine does (``_answers``, ``_answers_to_reads``), under the
same names of calls, so that one schedule happens at the same place under either engine.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.plan import FaultCounter, WorkerFaults, altered
from pytest_dataloader_faults._engine.policy import (
    Action,
    Closed,
    Delay,
    Fail,
    Hang,
    Reading,
    Short,
    Stranger,
    Substitute,
)
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    HungRead,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
    TruncatedFile,
    has_files,
)
from pytest_dataloader_faults.faults._globs import is_excluded

OPEN, STAT, MAP = "openat", "newfstatat", "mmap"
EXCHANGED = "close", "dup2"
"""What the kernel engine calls these operations; the last two are done to inherited files."""
_INTO_BUFFERS = ("read", "pread64", "readv", "preadv", "preadv2")
"""Reads that can be short, and whose place and length count; of others nothing is known."""
_OPENS, _READS, _BYTES = range(3)


def _ignore(_what: Any) -> None:
    pass


class PlanPolicy:
    """Decides for one worker. *on_fired* is told of each firing before it takes effect.

    *on_refused* is told why a fault that is due cannot happen. Once it is not *armed* any more,
    everything passes and nothing is counted.
    """

    def __init__(
        self,
        tallies: WorkerFaults,
        worker: int,
        on_fired: Callable[[dict[str, Any]], None] = _ignore,
        on_refused: Callable[[str], None] = _ignore,
    ) -> None:
        self.fetch = 0
        self.armed = True
        self._tallies = tallies
        self._worker = worker
        self._on_fired = on_fired
        self.refused = on_refused
        self._files: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._changed: set[str] = set()
        self._unobserved: Counter[str] = Counter()
        self._sizes = any(isinstance(each.fault, TruncatedFile) for each in tallies.all)
        self.lock = threading.RLock()

    def switch(self, orders: dict[str, Any]) -> None:
        """Have those faults happen, from now on, that the supervisor says."""
        self.armed = orders["armed"]
        self._tallies.active = orders["active"]

    def leaves_alone(self, path: str) -> bool:
        """The system's, packages' and code files, unless a glob names their folder."""
        return not self.armed or (is_excluded(path) and not self._tallies.ask_for(path))

    def judges_reads(self, path: str) -> bool:
        """As the kernel engine decides what to follow."""
        return self._tallies.follows(path)

    def means(self, path: str) -> bool:
        """Whether a fault of files is about *path*."""
        return any(has_files(each.fault) for each in self._tallies.about(Fault, path))

    def opened(self, path: str, size: int | None, *, reads: bool) -> list[Action]:
        """OpenError comes first; the content of a file that is not there has no faults."""
        with self.lock:
            if size is not None:
                self._count(path, _OPENS)
            if (failing := self._due(OpenError, path, OPEN)) is not None:
                return [Fail(failing.fault.errno)]
            if size is None or not reads:
                return []
            return self._exchanged(path, size, OPEN, OPEN)

    def inherited(self, path: str, size: int) -> list[Action]:
        """Its content is as of a file that is opened."""
        with self.lock:
            return self._exchanged(path, size, *EXCHANGED)

    def looked_at(self, path: str, size: int) -> list[Action]:
        """A shorter file has a smaller size. The kernel engine looks where a fault makes one so."""
        with self.lock:
            return self._altered(path, size, STAT, sizes=True) if self._sizes else []

    def exhausted(self, path: str) -> None:
        """The limit is a real one, and what it does is only written down."""
        with self.lock:
            for tally in self._tallies.of(DescriptorExhaustion) if self.armed else ():
                tally.reached += 1
                self._fire(tally, OPEN, path)

    def read(self, reading: Reading) -> list[Action]:
        """Count it; fail it, or make it short, if it is its turn, and late besides."""
        with self.lock:
            if not (self.armed and self.judges_reads(reading.path)):
                return []
            is_known = reading.call in (*_INTO_BUFFERS, MAP)
            length = reading.length if is_known else 0
            self._count(reading.path, _READS)
            self._count(reading.path, _BYTES, length)
            end = reading.offset + length if is_known else 0
            acts = self._failing(reading, end) or self._short(reading)
            return [*self._late(reading), *acts]

    def _failing(self, reading: Reading, end: int) -> list[Action]:
        """A mapping that would fail is not fired: it cannot be made to happen."""
        for tally in self._tallies.about(ReadError, reading.path):
            fault = tally.fault
            if fault.offset is not None and end <= fault.offset:
                continue
            if tally.reach():
                if reading.call != MAP:
                    self._fire(tally, reading.call, reading.path)
                return [Fail(fault.errno)]
        return []

    def _short(self, reading: Reading) -> list[Action]:
        for tally in self._tallies.about(ShortRead, reading.path):
            if reading.call not in _INTO_BUFFERS or reading.length <= tally.fault.max_bytes:
                continue
            if tally.reach():
                self._fire(tally, reading.call, reading.path)
                return [Short(tally.fault.max_bytes)]
        return []

    def _late(self, reading: Reading) -> list[Action]:
        if self._due(HungRead, reading.path, reading.call) is not None:
            return [Hang()]
        acts: list[Action] = []
        for tally in self._tallies.about(SlowRead, reading.path):
            if tally.reach():
                self._fire(tally, reading.call, reading.path)
                acts.append(Delay(tally.fault.seconds))
        return acts

    def unobserved(self, what: str, count: int = 1) -> None:
        """Keep the count."""
        with self.lock:
            self._unobserved[what] += count

    def _exchanged(self, path: str, size: int, close: str, cut: str) -> list[Action]:
        for tally in self._tallies.about(ClosedDescriptor, path):
            if tally.fault.sample is None and tally.reach():
                self._fire(tally, close, path)
                return [Stranger() if tally.fault.reuse else Closed()]
        return self._altered(path, size, cut)

    def _altered(self, path: str, size: int, call: str, *, sizes: bool = False) -> list[Action]:
        """The copy that is due; with *sizes*, only where its size is another."""
        found = altered(self._tallies, path, size)
        if found is None or (sizes and found.alteration.kept is None):
            return []
        for tally in found.tallies:
            self._fire(tally, call, path)
        return [Substitute(found.alteration)]

    def _count(self, path: str, which: int, count: int = 1) -> None:
        self._files[path][which] += count
        self._changed.add(path)

    def _due(self, kind: type[Fault], path: str, call: str) -> FaultCounter[Any] | None:
        """The first fault of that kind whose turn it is; it has fired by that."""
        for tally in self._tallies.about(kind, path):
            if tally.reach():
                self._fire(tally, call, path)
                return tally
        return None

    def _fire(self, tally: FaultCounter[Any], call: str, path: str) -> None:
        what = {"worker": self._worker, "pid": os.getpid(), "call": call, "path": path}
        tally.fire(**what, fetch=self.fetch)
        self._on_fired({"fault": tally.index, **what, "fetch": self.fetch})

    def news(self) -> dict[str, Any]:
        """The counters as they are now; of files, those that have changed since it was asked."""
        with self.lock:
            changed, self._changed = self._changed, set()
            return {
                "files": {path: list(self._files[path]) for path in sorted(changed)},
                "unobserved": dict(+self._unobserved),
                "reached": [each.reached for each in self._tallies.all],
            }
