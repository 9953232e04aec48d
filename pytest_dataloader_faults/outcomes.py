"""What a trial found: facts only, plain data, JSON both ways. Judging them is done elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._reproduce import code
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.verdicts import Contract

if TYPE_CHECKING:
    from pytest_dataloader_faults._oracle import Judgement

__all__ = (
    "Delivery",
    "FaultFacts",
    "Firing",
    "Outcome",
    "Pass",
    "Raised",
    "Reference",
    "Resources",
    "WorkerFacts",
)


@dataclass(frozen=True)
class Firing:
    """One occurrence of a fault. *fetch* counts the worker's batches, from 1; 0 is before them.

    *worker* is None for what befell the loader's own process.
    """

    fault: int
    worker: int | None
    pid: int
    call: str
    path: str | None
    fetch: int


@dataclass(frozen=True)
class FaultFacts:
    """A fault and what became of it: three counters that are never mixed up.

    Attributes:
        reached: Operations that the fault is about, whether or not it was their turn.
        fired: Those it happened to.
        surfaced: 1 if an exception of the loader tells of it.
        firings: The first ones in full, up to 200 per worker.

    """

    fault: Fault
    reached: int = 0
    fired: int = 0
    surfaced: int = 0
    firings: tuple[Firing, ...] = ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FaultFacts:
        """The inverse of ``Outcome.to_dict``'s part."""
        firings = tuple(Firing(**each) for each in data["firings"])
        rest = {name: data[name] for name in ("reached", "fired", "surfaced")}
        return cls(vocabulary.from_dict(data["fault"]), firings=firings, **rest)


@dataclass(frozen=True)
class WorkerFacts:
    """One worker process: its batches, opens, reads and bytes per file, and what hid reads."""

    worker: int
    pid: int
    fetches: int
    files: dict[str, tuple[int, int, int]]
    unreached: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_report(cls, data: dict[str, Any]) -> WorkerFacts:
        """From plain data; what else is in it is left out."""
        files = {path: tuple(counts) for path, counts in data["files"].items()}
        return cls(data["worker"], data["pid"], data["fetches"], files, data["unreached"])


@dataclass(frozen=True)
class Delivery:
    """One batch as the loop over the loader got it.

    Attributes:
        indices: What the sampler asked for; None where there is no telling (iterable datasets).
        rows: A digest per sample, or None where the batch cannot be split into samples.
        digest: Of the whole batch.

    """

    indices: tuple[Any, ...] | None
    rows: tuple[str, ...] | None
    digest: str

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Delivery:
        """The inverse of ``asdict``."""
        indices, rows = data["indices"], data["rows"]
        return cls(
            None if indices is None else tuple(indices),
            None if rows is None else tuple(rows),
            data["digest"],
        )


@dataclass(frozen=True)
class Raised:
    """An exception that reached the loop: its type, its message, and the whole printed chain."""

    type: str
    message: str
    text: str


@dataclass(frozen=True)
class Pass:
    """One pass over a loader: what was asked for, what came, and how it ended."""

    drawn: tuple[tuple[Any, ...], ...] = ()
    delivered: tuple[Delivery, ...] = ()
    exception: Raised | None = None
    complete: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Pass:
        """The inverse of ``asdict``."""
        return cls(
            tuple(tuple(each) for each in data["drawn"]),
            tuple(Delivery.from_dict(each) for each in data["delivered"]),
            None if data["exception"] is None else Raised(**data["exception"]),
            data["complete"],
        )


@dataclass(frozen=True)
class Resources:
    """What the loader's process had open, and its descendants, at one moment.

    Attributes:
        when: ``"before"`` the first epoch, ``"after"`` the last one, or ``"recovery"``.
        descriptors: What /proc/self/fd says, by number.
        processes: Descendants that are not the harness's or multiprocessing's own, by pid.

    """

    when: str
    descriptors: dict[str, str]
    processes: dict[str, str]


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where samples cannot be told apart in a batch.
        unstable: The index of a sample that was not the same twice, or None.

    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable: Any = None

    def lacks(self, outcome: Outcome) -> list[tuple[Any, ...]]:
        """The batches of *outcome* that this reference does not know; samplers may draw others."""
        if self.kind == "iterable":
            return []
        samples, batches = dict(self.samples), dict(self.batches)
        passes = [*outcome.passes, *([outcome.recovery] if outcome.recovery else [])]
        asked = {each.indices or () for one in passes for each in one.delivered}
        if samples:
            return [indices for indices in asked if not samples.keys() >= set(indices)]
        return [indices for indices in asked if indices not in batches]

    def with_more(self, other: Reference) -> Reference:
        """This and what *other* knows."""
        samples, batches = (*self.samples, *other.samples), (*self.batches, *other.batches)
        return Reference(self.kind, samples, batches, self.unstable)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Reference:
        """The inverse of ``asdict``."""
        samples = tuple((index, digest) for index, digest in data["samples"])
        batches = tuple((tuple(indices), digest) for indices, digest in data["batches"])
        return cls(data["kind"], samples, batches, data["unstable"])


@dataclass(frozen=True)
class Outcome:
    """All that one trial found.

    Attributes:
        schedule: The faults that were asked for, in order.
        loader: The options of the DataLoader; ``{"code": ...}`` for what is no plain data.
        epochs, seed, deadline, engine: As asked for; *deadline* in seconds.
        kind: ``"map"`` or ``"iterable"``.
        passes: One per epoch, under the faults; the last one is where an exception ended it.
        recovery: A fresh pass over the same dataset object without faults; None if not come to.
        faults: What became of each fault.
        workers: The worker processes.
        resources: Before the first epoch, after the last, and after the recovery.
        duration: Seconds from the start of the process to its end.
        timed_out: Whether the deadline ended it.
        phase: How far it got: ``"start"``, ``"epoch 1"``, ..., ``"recovery"``, ``"done"``.
        died: How the loader's process ended, if not by itself (``"signal 7 (SIGBUS)"``).
        stacks: The stacks of what was stuck at the deadline.
        stderr: The end of what the loader's process and its workers printed.

    """

    schedule: tuple[Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int
    deadline: float
    engine: str
    kind: str = "map"
    passes: tuple[Pass, ...] = ()
    recovery: Pass | None = None
    faults: tuple[FaultFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    resources: tuple[Resources, ...] = ()
    duration: float = 0.0
    timed_out: bool = False
    phase: str = "start"
    died: str | None = None
    stacks: str = ""
    stderr: str = ""

    @property
    def delivered(self) -> tuple[Delivery, ...]:
        """Every batch that came under the faults, over all epochs."""
        return tuple(each for one in self.passes for each in one.delivered)

    @property
    def exception(self) -> Raised | None:
        """The exception that ended the last epoch, if one did."""
        return self.passes[-1].exception if self.passes else None

    @property
    def fired(self) -> int:
        """How often faults happened, of all kinds and in all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def unreached(self) -> dict[str, int]:
        """What workers did that hid reads of files from the engine, and how often."""
        total: Counter[str] = Counter()
        for each in self.workers:
            total.update(each.unreached)
        return dict(total)

    def judge(self, reference: Reference, contract: Contract | None = None) -> Judgement:
        """The verdict on these facts, with its evidence."""
        from pytest_dataloader_faults._oracle import judge

        return judge(self, reference, contract or Contract())

    def reproduce(self) -> str:
        """One line of Python that runs this trial again, given the same ``make_dataset``."""
        parts = ["make_dataset", *map(repr, self.schedule), f"loader={code(self.loader)}"]
        if self.epochs != 1:
            parts.append(f"epochs={self.epochs}")
        parts += [f"deadline={self.deadline}", f"seed={self.seed}"]
        parts += ["engine='python'"] if self.engine == "python" else []
        return f"run_trial({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        data = asdict(self)
        data["schedule"] = [vocabulary.to_dict(each) for each in self.schedule]
        for facts, each in zip(data["faults"], self.faults, strict=True):
            facts["fault"] = vocabulary.to_dict(each.fault)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """The outcome that ``to_dict`` made *data* from."""
        built: dict[str, Any] = {
            "schedule": tuple(vocabulary.from_dict(each) for each in data["schedule"]),
            "passes": tuple(Pass.from_dict(each) for each in data["passes"]),
            "recovery": data["recovery"] and Pass.from_dict(data["recovery"]),
            "faults": tuple(FaultFacts.from_dict(each) for each in data["faults"]),
            "workers": tuple(WorkerFacts.from_report(each) for each in data["workers"]),
            "resources": tuple(Resources(**each) for each in data["resources"]),
        }
        return cls(**{**data, **built})
