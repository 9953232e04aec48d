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
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.plan import AnyFault, FaultCounter, FileCounter, WorkerFaults
from pytest_dataloader_faults._engine.protocol import Counts, FaultFired
from pytest_dataloader_faults.faults.base import FiringKind
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
        worker: int | None,
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
            return closed or self._altered(Operation("dup2", path, None, FiringKind.REPLACED), size)

    def inherited_mapping(self, path: str, size: int) -> Actions:
        """For a mapping that was there before: Substitute or Fail."""
        operation = Operation(MAP, path)
        with self.lock:
            self.counter_of(path).reads += 1
            return self._altered(operation, size) or self._failing(operation, sys.maxsize)

    def named(self, operation: Operation) -> Actions:
        """For a stat(2) or access(2) of a file that is there: Fail, where it is missing."""
        with self.lock:
            fault = self._due(vocabulary.OpenError, operation, lambda each: each.hides_file)
            return [Fail(fault.errno)] if fault else []

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
        self,
        counter: FaultCounter[Any],
        call: str,
        path: str | None = None,
        pid: int | None = None,
        kind: FiringKind = FiringKind.CALL,
    ) -> None:
        """Write down that the fault of *counter* happens now."""
        now = time.monotonic()
        firing = FaultFired(counter.index, pid or self._pid, call, path, self.fetch, now, kind)
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
            files = {path: self.files[path].numbers() for path in sorted(changed)}
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


OPEN, STAT, MAP = "openat", "newfstatat", "mmap"
"""System calls by which the python engine names the operations that it sees."""
CONNECT, ANSWER = "connect", "recv"
"""How firings name the making of a connection, and what comes from its peer."""
OF_EXCLUDED = "open of an excluded file"
"""How ``unobserved`` names what only its folder spared."""
OF_INHERITED, BY_MAPPING = (
    "write of a file that was open before the worker began",
    "write through a mapping",
)
"""How ``unobserved`` names writes that cannot fail."""


class Fail(NamedTuple):
    """The operation raises OSError. Of a mapping, pages from *offset* on cannot be read."""

    errno: int
    offset: int = 0


class Closed(NamedTuple):
    """The descriptor is not open; with *reuse*, it belongs to another file of the same length."""

    reuse: bool


class Substitute(NamedTuple):
    """The file is a copy that differs by *edit*."""

    edit: FileEdit


class Short(NamedTuple):
    """A read gives, or a write takes, *max_bytes* at most."""

    max_bytes: int


class Delay(NamedTuple):
    """The operation takes *seconds* longer."""

    seconds: float


class Hang(NamedTuple):
    """The operation does not return while faults are armed."""


class Die(NamedTuple):
    """The worker dies within a read or write of *path*. The fault of *counter* fires by that."""

    counter: FaultCounter[vocabulary.WorkerKilled]
    path: str


class CutOff(NamedTuple):
    """The connection ends *after* bytes of an answer: it is reset, or closed as at its end."""

    after: int
    is_reset: bool


Action: TypeAlias = Fail | Closed | Substitute | Short | Delay | Hang | Die
Actions: TypeAlias = Sequence[Action]
"""To be carried out in order: first what takes time, then at most one of the others."""


class Operation(NamedTuple):
    """An operation on *path*, absolute. *pid* is None for the worker process itself."""

    call: str
    path: str
    pid: int | None = None
    kind: FiringKind = FiringKind.CALL


def written(policy: FaultPolicy, operation: Operation, length: int) -> Actions:
    """For a write of *length* bytes, or a call that makes earlier writes last: Die, Fail or Short.

    Where a call's length is not known, it is 0.
    """
    with policy.lock:
        if not policy.armed:
            return []
        policy.counter_of(operation.path).writes += 1
        call = CALLS[operation.call]
        for each in policy.death(operation, "writing") if call.has_data else ():
            if isinstance(each, Die) and _is_allowed(policy, each.counter, operation):
                return [each]
        for failing in policy.faults.for_path(vocabulary.WriteError, operation.path):
            if _happens(policy, failing, operation):
                return [Fail(failing.fault.errno)]
        for short in policy.faults.for_path(vocabulary.ShortWrite, operation.path):
            most = short.fault.most(length)
            is_cut = call.writes_buffers and most < length
            if is_cut and _happens(policy, short, operation):
                return [Short(most)]
        return []


def _happens(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether it is the turn of *counter*'s fault; it fires by that."""
    is_due = counter.reach() and _is_allowed(policy, counter, operation)
    if is_due:
        policy.fire(counter, *operation)
    return is_due


def _is_allowed(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether the file may be harmed. A fault that is due elsewhere is refused."""
    if policy.faults.may_fail_writes_of(operation.path):
        return True
    policy.refuse(
        f"{counter.fault!r} was due in a {operation.call} of {operation.path}. What a failed write"
        " leaves there would stay, so it may only happen in a folder that is made for the trial:"
        " have make_dataset take a folder (it gets an empty one for each trial), and put what is"
        " written there"
    )
    return False


_Moment: TypeAlias = tuple[float, str, str]
"""The time, which is CLOCK_MONOTONIC's, what kind of event it is, and what it is about."""
_Omitted: TypeAlias = Mapping[str, tuple[int, float]]
"""By kind: how many are not kept, and the time of the last one before them that is."""
MOST = 400
"""Events in the timeline of one trial."""


class _OfOneKind:
    """The moments of one kind, in order."""

    def __init__(self) -> None:
        self.first: list[_Moment] = []
        self.last: deque[_Moment] = deque(maxlen=MOST // 2)
        self.count = 0

    @property
    def omitted(self) -> int:
        return self.count - len(self.first) - len(self.last)


class Moments:
    """What happened in one process, in order. Any number may come; little memory is taken.

    One kind does not crowd out another: a worker may open a thousand files for a batch.
    """

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _OfOneKind] = defaultdict(_OfOneKind)

    def add(self, time: float, kind: str, text: str) -> None:
        """Note one more."""
        of_kind = self._kinds[kind]
        of_kind.count += 1
        kept = of_kind.first if len(of_kind.first) < MOST // 2 else of_kind.last
        kept.append((time, kind, text))

    def extend(self, moments: Iterable[_Moment], omitted: _Omitted) -> None:
        """Note those that another process has kept, and how many it has *omitted*."""
        for moment in moments:
            self.add(*moment)
        for kind, (count, _) in omitted.items():
            self._kinds[kind].count += count

    def kept(self) -> tuple[list[_Moment], _Omitted]:
        """Those that are kept, and those that are not."""
        every = self._kinds.values()
        moments = (moment for each in every for moment in (*each.first, *each.last))
        kept = sorted(moments, key=lambda moment: moment[0])
        omitted = {
            kind: (each.omitted, each.first[-1][0] if each.first else 0.0)
            for kind, each in self._kinds.items()
            if each.omitted
        }
        return kept, omitted
