"""What one trial found: facts only, plain data, to and from JSON. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import _records as records
from pytest_dataloader_faults.outcomes._at_deadline import AtDeadline
from pytest_dataloader_faults.outcomes._text import call, run_settings

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class TrialRequest:
    """What was asked of one trial; ``TrialFacts`` says what each attribute is."""

    schedule: tuple[Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int
    deadline: float
    engine: str
    comparison: str = "bytes"


@dataclass(frozen=True)
class TrialFacts(TrialRequest):
    """What one trial found.

    Attributes:
        schedule: The faults that were asked for, in order.
        loader: The options of the DataLoader; ``{"code": ...}`` for what is no plain data.
        epochs: How many passes under the faults were asked for.
        seed: As asked for.
        deadline: As asked for, in seconds.
        engine: The engine that made the faults happen, ``"kernel"`` or ``"python"``.
        comparison: What of samples is compared: "bytes", "shapes", "types" or "compare", and how
            seeded.
        kind: ``"map"`` or ``"iterable"``.
        start_method: How workers were started; ``""`` if there were to be none.
        passes: One per epoch, under the faults; the last one is where an exception ended it.
        recovery: A fresh pass over the same dataset object without faults; None if the trial did
            not get so far.
        faults: How often each fault happened.
        workers: The worker processes.
        lasting_files: Of the files that workers used, those that were there after the last epoch.
            Taken where every file is watched, as in the run without a fault.
        resources: Before the first epoch, after the last, and after the recovery.
        footprints: What each process of the loader had after each epoch, if that was measured.
        timeline: What happened when, in the order of time. Two runs have different times, so it
            takes no part when facts are compared.
        omitted_events: How many events a long timeline leaves out, from the middle.
        packed_draws: What the sampler drew for a batch, by the batch's indices, pickled and in
            base64; of batches for which that is not the list of these.
        duration: Seconds from the start of the process to its end.
        timed_out: Whether the deadline ended it.
        at_deadline: What it did then; None if the deadline did not end it.
        batches: How many batches an epoch of a map-style dataset has, if that is known.
        phase: How far it got: ``"start"``, ``"epoch 1"``, ..., ``"recovery"``, ``"done"``.
        died: How the loader's process ended, if not by itself (``"signal 7 (SIGBUS)"``).
        stacks: The stacks of the processes that were running at the deadline.
        stderr: The end of what the loader's process and its workers printed.
    """

    kind: str = "map"
    start_method: str = ""
    passes: tuple[records.Pass, ...] = ()
    recovery: records.Pass | None = None
    faults: tuple[records.FaultFacts, ...] = ()
    workers: tuple[records.WorkerFacts, ...] = ()
    lasting_files: tuple[str, ...] = ()
    resources: tuple[records.Resources, ...] = ()
    footprints: tuple[records.Footprint, ...] = ()
    timeline: tuple[records.Event, ...] = field(default=(), compare=False)
    omitted_events: int = field(default=0, compare=False)
    packed_draws: tuple[tuple[tuple[Any, ...], str], ...] = field(
        default=(), repr=False, compare=False
    )
    duration: float = 0.0
    timed_out: bool = False
    at_deadline: AtDeadline | None = None
    batches: int | None = None
    phase: str = "start"
    died: str | None = None
    stacks: str = ""
    stderr: str = ""

    @property
    def delivered(self) -> tuple[records.Delivery, ...]:
        """Every batch that was delivered under the faults, over all epochs."""
        return tuple(each for one in self.passes for each in one.delivered)

    @property
    def exception(self) -> records.Raised | None:
        """The exception that ended the last epoch, if one did."""
        return self.passes[-1].exception if self.passes else None

    @property
    def deaths(self) -> tuple[records.WorkerDeath, ...]:
        """The workers that had died when the last epoch ended."""
        return self.passes[-1].deaths if self.passes else ()

    @property
    def fired(self) -> int:
        """How often faults happened, of all kinds and in all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def unobserved(self) -> dict[str, int]:
        """How often workers did something whose reads the engine cannot see, by name."""
        total: Counter[str] = Counter()
        for each in self.workers:
            total.update(each.unobserved)
        return dict(total)

    def reproduce(self) -> str:
        """One line of Python that runs this trial again, given the same ``make_dataset``."""
        return call(
            "run_trial",
            "make_dataset",
            *map(repr, self.schedule),
            loader=self.loader,
            epochs=self.epochs if self.epochs != 1 else None,
            **run_settings(self.deadline, self.seed, self.engine),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        data = asdict(self)
        data["schedule"] = [vocabulary.to_dict(each) for each in self.schedule]
        for facts, each in zip(data["faults"], self.faults, strict=True):
            facts["fault"] = vocabulary.to_dict(each.fault)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The outcome that ``to_dict`` made *data* from."""
        made: Self = records.from_json(cls, data)
        return made


def is_started_anew(outcome: TrialFacts) -> bool:
    """Whether workers are not forked, and so import modules again and get the dataset by pickle."""
    return outcome.start_method not in ("", "fork")
