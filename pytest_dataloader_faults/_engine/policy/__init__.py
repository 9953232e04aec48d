"""Which fault is due for a file operation, and what the operation does then. Pure.

Each engine asks one ``FaultPolicy`` per worker. The policy counts operations and answers with
actions; it touches no file. The kernel engine carries the actions out in the supervisor, by answers
to system calls. The python engine carries them out in the worker, by functions that replace
Python's own. So one schedule of faults happens at the same place under either engine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.plan import AnyFault, FaultCounter, FileCounter, WorkerFaults
from pytest_dataloader_faults._engine.policy.actions import (
    MAP,
    Actions,
    Closed,
    CutOff,
    Delay,
    Die,
    Fail,
    Hang,
    Operation,
    Short,
    Substitute,
)
from pytest_dataloader_faults._engine.protocol import Counts, FaultFired
from pytest_dataloader_faults.globs import is_excluded, may_be_data

_SHARED_MEMORY = "/dev/shm/"


class FaultPolicy:
    """Decides for one worker process, and counts what it decided about.

    *on_fired* gets each firing before it takes effect. *refuse* gets the reason why a fault that is
    due cannot happen. *timestamp* gives what a firing says of its time besides the fetch.
    *on_opened* gets the path of each file that is opened.
    *fails_mappings*: the engine can make pages of a mapping unreadable. A policy that is not
    *armed* lets every operation pass, uncounted. Several threads may ask it.
    """

    def __init__(
        self,
        faults: WorkerFaults,
        worker: int,
        pid: int,
        on_fired: Callable[[FaultFired], None] = lambda _firing: None,
        refuse: Callable[[str], None] = lambda _reason: None,
        timestamp: Callable[[], dict[str, Any]] = dict,
        *,
        fails_mappings: bool = False,
    ) -> None:
        self.faults = faults
        self.fetch = 0
        self.armed = True
        self.refuse = refuse
        self.on_opened: Callable[[str], None] = lambda _path: None
        self.files: defaultdict[str, FileCounter] = defaultdict(FileCounter)
        self.unobserved: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()
        self.unlimited_waits: set[str] = set()
        """Connections whose answer hung, and for which the worker waited without a time limit."""
        self.lock = threading.RLock()
        self._worker = worker
        self._pid = pid
        self._on_fired = on_fired
        self._timestamp = timestamp
        self._fails_mappings = fails_mappings
        self._changed: set[str] = set()
        self._alters_sizes = any(
            isinstance(each.fault, vocabulary.TruncatedFile) for each in faults.all
        )

    def leaves_alone(self, path: str) -> bool:
        """Whether *path* is a system, package or code file, whose folder no glob names."""
        return not self.armed or (is_excluded(path) and not self.faults.targets(path))

    def spares_data(self, path: str) -> bool:
        """Whether *path*, left alone, may be data that a glob means."""
        return self.armed and self.faults.would_target(path) and may_be_data(path)

    def opened(self, operation: Operation, size: int | None, *, reads: bool) -> Actions:
        """For the opening of a file of *size* bytes, None if there is none; *reads*: for reading.

        Fail, or, where *reads*, Closed or Substitute.
        """
        with self.lock:
            if size is not None:
                self.count_open(operation.path)
            if fault := self._due(vocabulary.OpenError, operation):
                return [Fail(fault.errno)]
            if size is None or not reads:
                return []
            return self._closed(operation) or self._altered(operation, size)

    def count_open(self, path: str) -> FileCounter:
        """Count the opening of a file; returned is its counter."""
        with self.lock:
            counter = self.counter_of(path)
            counter.opens += 1
            self.on_opened(path)
            return counter

    def inherited(self, path: str, size: int) -> Actions:
        """For a descriptor that was open before: Closed or Substitute."""
        with self.lock:
            closed = self._closed(Operation("close", path))
            return closed or self._altered(Operation("dup2", path), size)

    def inherited_mapping(self, path: str, size: int) -> Actions:
        """For a mapping that was there before: Substitute or Fail."""
        operation = Operation(MAP, path)
        with self.lock:
            self.counter_of(path).reads += 1
            return self._altered(operation, size) or self._failing(operation, sys.maxsize)

    def size_of(self, operation: Operation, size: int) -> Actions:
        """For a stat(2) by path of a file of *size* bytes: Substitute, where the size differs."""
        with self.lock:
            return self._altered(operation, size, sizes=True) if self._alters_sizes else []

    def read(self, operation: Operation, offset: int, length: int) -> Actions:
        """For a read or a mapping of *length* bytes: Die, Hang or Delay, then Fail or Short.

        Where a call's offset and length are not known, both are 0.
        """
        with self.lock:
            if not self.armed:
                return []
            counts, is_mapping = self.counter_of(operation.path), operation.call == MAP
            counts.count_read(offset, length, is_mapping=is_mapping)
            outcome = self._failing(operation, offset + length) or self._short(operation, length)
            return [*(self.death(operation, "reading") or self._late(operation)), *outcome]

    def connected(self, operation: Operation) -> Actions:
        """For a TCP connection that is about to be made: Fail."""
        with self.lock:
            if not self.armed:
                return []
            self.connections[operation.path] += 1
            fault = self._due(vocabulary.ConnectError, operation)
            return [Fail(fault.errno)] if fault else []

    def answered(self, operation: Operation) -> Actions:
        """For the beginning of a peer's answer: Hang or Delay."""
        with self.lock:
            return self._late(operation) if self.armed else []

    def cut_off(self, operation: Operation, begin: int, end: int) -> CutOff | None:
        """For the bytes of an answer from *begin* to *end*: whether it ends among them."""

        def is_among(fault: vocabulary.ConnectionReset | vocabulary.ConnectionClosed) -> bool:
            return begin <= fault.after < end

        with self.lock:
            if not self.armed:
                return None
            if reset := self._due(vocabulary.ConnectionReset, operation, is_among):
                return CutOff(reset.after, is_reset=True)
            closed = self._due(vocabulary.ConnectionClosed, operation, is_among)
            return CutOff(closed.after, is_reset=False) if closed else None

    def allocated(self, operation: Operation, *, is_full: bool) -> None:
        """Note a call that needs a descriptor. The real limit makes it fail if *is_full*."""
        with self.lock:
            counters = self.faults.of_kind(vocabulary.DescriptorExhaustion)
            for counter in counters if self.armed else ():
                counter.reached += 1
                if is_full:
                    self.fire(counter, *operation)

    def reserved(self, operation: Operation) -> Actions:
        """For fallocate(2): Fail, where the file is of shared memory."""
        for counter in self.faults.of_kind(vocabulary.SharedMemoryExhaustion):
            if operation.path.startswith(_SHARED_MEMORY) and counter.reach():
                self.fire(counter, *operation)
                return [Fail(counter.fault.errno)]
        return []

    def fire(
        self, counter: FaultCounter[Any], call: str, path: str | None = None, pid: int | None = None
    ) -> None:
        """Write down that the fault of *counter* happens now."""
        now = time.monotonic()
        firing = FaultFired(counter.index, pid or self._pid, call, path, self.fetch, now)
        self.record(firing)
        self._on_fired(firing)

    def record(self, firing: FaultFired) -> None:
        """Write down *firing*, which is counted under its fault."""
        what = {name: value for name, value in firing._asdict().items() if name != "fault"}
        self.faults.all[firing.fault].fire(worker=self._worker, **what, **self._timestamp())

    def count_unobserved(self, what: str, count: int = 1) -> None:
        """Count *count* more ways in which a file may be read unseen; -1 takes one back."""
        with self.lock:
            self.unobserved[what] += count

    def changes(self) -> Counts:
        """The counters as they are now; of files, those that changed since the last call."""
        with self.lock:
            changed, self._changed = self._changed, set()
            files = {path: astuple(self.files[path]) for path in sorted(changed)}
            reached = [each.reached for each in self.faults.all]
            return Counts(files, dict(+self.unobserved), reached, dict(self.connections))

    def counter_of(self, path: str) -> FileCounter:
        """The counter of one file, which changes now."""
        self._changed.add(path)
        return self.files[path]

    def _due(
        self,
        kind: type[AnyFault],
        operation: Operation,
        concerns: Callable[[AnyFault], bool] = lambda _fault: True,
    ) -> AnyFault | None:
        """The first fault of that kind whose turn it is; it fires by that."""
        for counter in self.faults.for_path(kind, operation.path):
            if concerns(counter.fault) and counter.reach():
                self.fire(counter, *operation)
                return counter.fault
        return None

    def _closed(self, operation: Operation) -> Actions:
        fault = self._due(vocabulary.ClosedDescriptor, operation, lambda each: each.sample is None)
        return [Closed(fault.reuse)] if fault else []

    def _altered(self, operation: Operation, size: int, *, sizes: bool = False) -> Actions:
        """The copy that is due; with *sizes*, only where its size is another."""
        cuts = [*self.faults.for_path(vocabulary.TruncatedFile, operation.path)]
        flips = [*self.faults.for_path(vocabulary.CorruptedFile, operation.path)]
        due: list[FaultCounter[Any]] = [*cuts, *flips]
        for counter in due:
            counter.reached += 1
        cuts = [each for each in cuts if each.fault.kept(size) < size]
        due = [*cuts, *flips]
        if not size or not (cuts if sizes else due):
            return []
        for counter in due:
            self.fire(counter, *operation)
        kept = min((each.fault.kept(size) for each in cuts), default=None)
        spots = tuple((each.fault.flips, each.fault.seed) for each in flips)
        return [Substitute(FileEdit(kept, spots))]

    def _failing(self, operation: Operation, end: int) -> Actions:
        """A mapping that the engine cannot make fail does not fire."""
        for counter in self.faults.for_path(vocabulary.ReadError, operation.path):
            offset = counter.fault.offset
            if (offset is None or end > offset) and counter.reach():
                if operation.call != MAP or self._fails_mappings:
                    self.fire(counter, *operation)
                return [Fail(counter.fault.errno, offset or 0)]
        return []

    def _short(self, operation: Operation, length: int) -> Actions:
        if not CALLS[operation.call].reads_into_buffers:
            return []
        fault = self._due(vocabulary.ShortRead, operation, lambda each: each.most(length) < length)
        return [Short(fault.most(length))] if fault else []

    def death(self, operation: Operation, inside: str) -> Actions:
        """The death that is due *inside* it, by the name of the argument: Die."""
        for counter in self.faults.for_path(vocabulary.WorkerKilled, operation.path):
            if getattr(counter.fault, inside) is not None and not counter.fired:
                counter.reached += 1
                if max(1, self.fetch) >= counter.fault.at:  # A stream may read before its first.
                    return [Die(counter, operation.path)]
        return []

    def _late(self, operation: Operation) -> Actions:
        if self._due(vocabulary.HungRead, operation):
            return [Hang()]
        found = self.faults.for_path(vocabulary.SlowRead, operation.path)
        due = [each for each in found if each.reach()]
        for counter in due:
            self.fire(counter, *operation)
        return [Delay(each.fault.seconds) for each in due]
