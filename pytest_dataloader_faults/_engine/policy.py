"""Which fault is due for a file operation, and what the operation should do. Pure.

There is one ``FaultPolicy`` per worker. It counts operations, answers with actions, and touches no
file. The supervisor carries the actions out, by answers to system calls.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.file_copies import FileEdit
from pytest_dataloader_faults._engine.plan import AnyFault, FaultCounter, WorkerFaults
from pytest_dataloader_faults.faults.base import Effect, FiringKind, Place
from pytest_dataloader_faults.faults.globs import is_below, is_excluded, may_be_data
from pytest_dataloader_faults.wire import FileCounts, Firing

OPEN_FAULTS = tuple(
    kind
    for kind in vocabulary.KINDS.values()
    if Place.OPEN in kind.happens_in and Effect.ERROR in kind.effects
)


class FaultPolicy:
    """Decides for one worker process, and counts what it decided about.

    *on_fired* gets each firing before it takes effect. *refuse* gets the reason why a fault that is
    due cannot happen. *describe* returns what a firing in a process records in addition to
    the fetch. A policy that is not *armed* lets every operation pass, uncounted.
    """

    def __init__(
        self,
        faults: WorkerFaults,
        worker: int | None,
        pid: int,
        on_fired: Callable[[Firing], object] = lambda _firing: None,
        refuse: Callable[[str], None] = lambda _reason: None,
        describe: Callable[[int], dict[str, Any]] = lambda _pid: {},
    ) -> None:
        self.faults = faults
        self.fetch = 0
        self.armed, self.fired = True, False
        self.refuse = refuse
        self.files: defaultdict[str, FileCounts] = defaultdict(FileCounts)
        self.unobserved: Counter[str] = Counter()
        self.tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How often it did what is not done to a file, by operation: see ``WorkerFacts``."""
        self._worker = worker
        self._pid = pid
        self.on_fired = on_fired
        self._describe = describe

    def is_exempt(self, path: str) -> bool:
        """Whether *path* is a system, package or code file, whose folder no glob names."""
        return not self.armed or (is_excluded(path) and not self.faults.targets(path))

    def may_exempt_data(self, path: str) -> bool:
        """Whether *path*, left alone, may be data that a glob means."""
        return self.armed and self.faults.would_target(path) and may_be_data(path)

    def read_actions(self, operation: Operation, offset: int, length: int) -> Actions:
        """For a read or a mapping of *length* bytes: Die, Hang or Delay, then Fail or Short.

        If a call's offset and length are unknown, both are 0.
        """
        if not self.armed:
            return []
        self._count_read(operation, offset, length)
        outcome = self.fail_actions(operation, offset + length) or self._short_actions(
            operation, length
        )
        return [
            *(self.death_actions(operation, "reading") or self.delay_actions(operation)),
            *outcome,
        ]

    def note_allocation(self, operation: Operation, *, is_full: bool) -> None:
        """Note a call that needs a descriptor. The real limit makes it fail if *is_full*."""
        counters = self.faults.counters_of_kind(vocabulary.DescriptorExhaustion)
        for counter in counters if self.armed else ():
            counter.matched += 1
            if is_full:
                self.fire(counter, *operation)

    def fire(
        self,
        counter: FaultCounter[Any],
        call: str,
        path: str | None = None,
        pid: int | None = None,
        kind: FiringKind = FiringKind.CALL,
    ) -> None:
        """Write down that the fault of *counter* happens now."""
        pid, now = pid or self._pid, time.monotonic()
        place = self._worker, pid, call, path, self.fetch
        firing = Firing(counter.index, *place, time=now, kind=kind, **self._describe(pid))
        counter.fire(firing)
        self.fired = True
        self.on_fired(firing)

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
        if counts.reads > 1 and length > counts.longest_bytes and operation.call != MAP:
            self.files[operation.path] = counts._replace(
                longest=counts.reads, longest_offset=offset, longest_bytes=length
            )

    def fire_first_due(
        self,
        kind: type[AnyFault] | tuple[type[AnyFault], ...],
        operation: Operation,
        concerns: Callable[[AnyFault], bool] = lambda _fault: True,
    ) -> AnyFault | None:
        """The first fault of that kind whose turn it is; it fires by that."""
        for counter in self.faults.counters_for_path(kind, operation.path):
            if concerns(counter.fault) and counter.reach():
                self.fire(counter, *operation)
                return counter.fault
        return None

    def closes(self, operation: Operation) -> bool:
        """Whether the descriptor that *operation* makes is not open: a fault fires by that."""
        fault = self.fire_first_due(
            vocabulary.ClosedDescriptor, operation, lambda fault: fault.sample is None
        )
        return fault is not None

    def edit_for(self, operation: Operation, size: int, *, sizes: bool = False) -> FileEdit | None:
        """How the copy that is due for a file of *size* bytes differs; None if no copy is.

        *sizes*: only a copy whose size differs.
        """
        cuts = [*self.faults.counters_for_path(vocabulary.TruncatedFile, operation.path)]
        flips = [*self.faults.counters_for_path(vocabulary.CorruptedFile, operation.path)]
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

    def fail_actions(self, operation: Operation, end: int) -> Actions:
        """For a read of what is before *end*: Fail."""
        for counter in self.faults.counters_for_path(vocabulary.ReadError, operation.path):
            offset = counter.fault.offset
            if (offset is None or end > offset) and counter.reach():
                self.fire(counter, *operation)
                return [Fail(counter.fault.errno, offset or 0)]
        return []

    def _short_actions(self, operation: Operation, length: int) -> Actions:
        if not CALLS[operation.call].reads_into_buffers:
            return []
        fault = self.fire_first_due(
            vocabulary.ShortRead, operation, lambda fault: fault.most(length) < length
        )
        return [Short(fault.most(length))] if fault else []

    def death_actions(self, operation: Operation, inside: str) -> Actions:
        """The death that is due *inside* it, by the name of the argument: Die."""
        for counter in self.faults.counters_for_path(vocabulary.WorkerKilled, operation.path):
            if getattr(counter.fault, inside) is not None and not counter.fired:
                counter.matched += 1
                if max(1, self.fetch) >= counter.fault.at:  # A stream may read before its first.
                    return [Die(counter, operation.path)]
        return []

    def delay_actions(self, operation: Operation) -> Actions:
        """For what may take longer than it should: Hang or Delay."""
        if self.fire_first_due(vocabulary.HungRead, operation):
            return [Hang()]
        counters = self.faults.counters_for_path(vocabulary.SlowRead, operation.path)
        due = [each for each in counters if each.reach()]
        for counter in due:
            self.fire(counter, *operation)
        return [Delay(each.fault.seconds) for each in due]


MAP = "mmap"
OF_EXCLUDED = "open of an excluded file"
"""How ``unobserved`` names what only its folder spared."""
BY_MAPPING = "write through a mapping"
"""And what no call shows."""


class Fail(NamedTuple):
    """The operation raises OSError. Of a mapping, pages from *offset* on cannot be read."""

    errno: int
    offset: int = 0


class Short(NamedTuple):
    """A read returns, or a write takes, *max_bytes* at most."""

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


Action: TypeAlias = Fail | Short | Delay | Hang | Die
Actions: TypeAlias = Sequence[Action]
"""To be carried out in order: first what takes time, then at most one of the others."""


class Operation(NamedTuple):
    """An operation on *path*, absolute. *pid* is None for the worker process itself."""

    call: str
    path: str
    pid: int | None = None
    kind: FiringKind = FiringKind.CALL


OF_INHERITED = "write to a file that was open before the worker started"
"""How ``unobserved`` names writes that cannot fail."""


def write_actions(policy: FaultPolicy, operation: Operation, length: int) -> Actions:
    """For a write of *length* bytes, or a call that makes earlier writes last: Die, Fail or Short.

    If a call's length is unknown, it is 0.
    """
    if not policy.armed:
        return []
    policy.count(operation.path, "writes")
    call = CALLS[operation.call]
    for death in policy.death_actions(operation, "writing") if call.has_data else ():
        if isinstance(death, Die) and _is_allowed(policy, death.counter, operation):
            return [death]
    for failing in policy.faults.counters_for_path(vocabulary.WriteError, operation.path):
        if _fires(policy, failing, operation):
            return [Fail(failing.fault.errno)]
    for short in policy.faults.counters_for_path(vocabulary.ShortWrite, operation.path):
        max_bytes = short.fault.most(length)
        is_cut = call.writes_buffers and max_bytes < length
        if is_cut and _fires(policy, short, operation):
            return [Short(max_bytes)]
    return []


def _fires(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether it is the turn of *counter*'s fault; it fires by that."""
    is_due = counter.reach() and _is_allowed(policy, counter, operation)
    if is_due:
        policy.fire(counter, *operation)
    return is_due


def _is_allowed(policy: FaultPolicy, counter: FaultCounter[Any], operation: Operation) -> bool:
    """Whether the file may be harmed. A fault that is due elsewhere is refused."""
    folders = policy.faults.own_folders
    if folders is None or is_below(operation.path, folders):
        return True
    policy.refuse(
        f"{counter.fault!r} was due in a {operation.call} of {operation.path}. A failed write would"
        " damage that file for good, so write faults are only allowed in a folder created for the"
        " trial: let make_dataset take a folder (each trial passes an empty one), and write there"
    )
    return False
