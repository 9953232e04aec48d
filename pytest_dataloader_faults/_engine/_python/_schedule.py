"""The faults of a plan, decided in the worker itself. Pure but for its own process id.

It reaches and fires where the kernel engine does (``_answers``), under the same names of calls, so
that one schedule happens at the same place under either engine.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine._paths import is_excluded
from pytest_dataloader_faults._engine._plan import Tallies, Tally
from pytest_dataloader_faults._engine._python._acts import Act, Closed, Fail, Reading, Substitute
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    Fault,
    OpenError,
    ReadError,
    TruncatedFile,
)

OPEN, STAT = "openat", "newfstatat"
EXCHANGED = "close", "dup2"
"""What the kernel engine calls these operations; the last two are done to inherited files."""
_OPENS, _READS, _BYTES = range(3)


def _ignore(_firing: dict[str, Any]) -> None:
    pass


class Schedule:
    """Decides for one worker. *on_fired* is told of each firing before it takes effect.

    Once it is not *armed* any more, everything passes and nothing is counted.
    """

    def __init__(
        self,
        tallies: Tallies,
        worker: int,
        on_fired: Callable[[dict[str, Any]], None] = _ignore,
    ) -> None:
        self.fetch = 0
        self.armed = True
        self._tallies = tallies
        self._worker = worker
        self._on_fired = on_fired
        self._files: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._unreached: Counter[str] = Counter()
        self._lock = threading.RLock()

    def leaves_alone(self, path: str) -> bool:
        """The system's, packages' and code files, unless a glob names their folder."""
        return not self.armed or (is_excluded(path) and not self._tallies.ask_for(path))

    def judges_reads(self, path: str) -> bool:
        """As the kernel engine decides what to follow."""
        return self._tallies.follows(path)

    def opened(self, path: str, size: int | None, *, reads: bool) -> list[Act]:
        """OpenError comes first; the content of a file that is not there has no faults."""
        with self._lock:
            if size is not None:
                self._files[path][_OPENS] += 1
            if (failing := self._due(OpenError, path, OPEN)) is not None:
                return [Fail(failing.fault.errno)]
            if size is None or not reads:
                return []
            return self._exchanged(path, size, OPEN, OPEN)

    def inherited(self, path: str, size: int) -> list[Act]:
        """Its content is as of a file that is opened."""
        with self._lock:
            return self._exchanged(path, size, *EXCHANGED)

    def looked_at(self, path: str, size: int) -> list[Act]:
        """A shorter file has a smaller size."""
        with self._lock:
            return self._cut(path, size, STAT)

    def read(self, reading: Reading) -> list[Act]:
        """Count it, and fail it if it is its turn."""
        with self._lock:
            if not self.armed:
                return []
            self._count_read(reading.path, reading.length)
            failing = self._due(ReadError, reading.path, reading.call)
            return [] if failing is None else [Fail(failing.fault.errno)]

    def mapped(self, path: str, length: int) -> bool:
        """Count it as one read. One that would fail is not fired: it cannot be made to happen."""
        with self._lock:
            if not self.armed:
                return False
            self._count_read(path, length)
            return any(tally.reach() for tally in self._tallies.about(ReadError, path))

    def unreached(self, what: str, count: int = 1) -> None:
        """Keep the count."""
        with self._lock:
            self._unreached[what] += count

    def _exchanged(self, path: str, size: int, close: str, cut: str) -> list[Act]:
        if self._due(ClosedDescriptor, path, close) is not None:
            return [Closed()]
        return self._cut(path, size, cut)

    def _count_read(self, path: str, length: int) -> None:
        counts = self._files[path]
        counts[_READS] += 1
        counts[_BYTES] += length

    def _due(self, kind: type[Fault], path: str, call: str) -> Tally[Any] | None:
        """The first fault of that kind whose turn it is; it has fired by that."""
        for tally in self._tallies.about(kind, path):
            if tally.reach():
                self._fire(tally, call, path)
                return tally
        return None

    def _cut(self, path: str, size: int, call: str) -> list[Act]:
        for tally in self._tallies.about(TruncatedFile, path):
            assert isinstance(tally.fault, TruncatedFile)
            tally.reached += 1
            if (kept := tally.fault.kept(size)) < size:
                self._fire(tally, call, path)
                return [Substitute(kept)]
        return []

    def _fire(self, tally: Tally[Any], call: str, path: str) -> None:
        what = {"worker": self._worker, "pid": os.getpid(), "call": call, "path": path}
        tally.fire(**what, fetch=self.fetch)
        self._on_fired({"fault": tally.index, **what, "fetch": self.fetch})

    def to_dict(self) -> dict[str, Any]:
        """The facts, in the shape of the kernel engine's report of a worker."""
        with self._lock:
            return {
                "files": {path: list(counts) for path, counts in self._files.items()},
                "unreached": dict(+self._unreached),
                "faults": [
                    {"reached": each.reached, "fired": each.fired, "firings": list(each.firings)}
                    for each in self._tallies.all
                ],
            }
