"""Whether workers of several ranks draw the same random numbers. Pure.

The step is here. What it does in a trial is in ``generator_states``, which is imported there only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.steps import Epoch, OwnStep, arm_workers
from pytest_dataloader_faults.wire import Note, register

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

SAME_NUMBERS = Cause(
    "draws the same random numbers in several workers",
    advice=(
        "torch seeds the generators of each worker differently in each epoch and on each rank. A"
        " seed in worker_init_fn replaces that: remove it, or derive it from torch.initial_seed()."
        " A generator that is passed to the DataLoader needs another seed on each rank"
    ),
    overrides=True,
    fix="remove the seed from worker_init_fn, or derive it from torch.initial_seed()",
)


@dataclass(frozen=True)
class UsedGenerator(Note):
    """A global generator from which a worker drew random numbers for its first batch.

    Attributes:
        worker: The number of the worker.
        library: Whose generator it is: ``"torch"``, ``"NumPy"`` or ``"Python"``.
        state: A digest of its state before the first batch.
    """

    worker: int
    library: str
    state: str


register(UsedGenerator)


@dataclass(frozen=True)
class RecordGenerators(OwnStep):
    """Have each worker record its generators, in workers that start within one second.

    A seed that is taken from the clock is the same in all of them then.
    """

    def run(self, process: TrialProcess) -> None:
        """Record them from now on, if samples are random."""
        from pytest_dataloader_faults.battery.checks.ranks.generator_states import record

        if process.loader is not None and process.job.comparison.allows_for_randomness:
            record(process, process.loader, UsedGenerator)


RECORDED_EPOCH = arm_workers(Epoch(), before=(RecordGenerators(),))


class _Place(NamedTuple):
    """Where random numbers were drawn."""

    rank: int
    worker: int


def find_same_numbers(outcome: TrialFacts, _: Reference) -> Finding | None:
    """Workers whose generators had the same state: first of two ranks, then of one."""
    pairs = sorted(_list_pairs(outcome), key=lambda pair: (pair[0].rank == pair[1].rank, *pair))
    for place, other, library in pairs:
        sentence = f"{_describe(place, other)} drew the same random numbers from {library}"
        return Finding(Verdict.CORRUPTED, sentence, SAME_NUMBERS)
    return None


def _list_pairs(outcome: TrialFacts) -> Iterator[tuple[_Place, _Place, str]]:
    places: dict[tuple[str, str], list[_Place]] = {}
    for number, rank in enumerate(outcome.ranks):
        for note in rank.of(UsedGenerator):
            same_state = places.setdefault((note.library, note.state), [])
            same_state.append(_Place(number, note.worker))
    for (library, _), same_state in places.items():
        for place, other in itertools.combinations(sorted(same_state), 2):
            yield place, other, library


def _describe(place: _Place, other: _Place) -> str:
    if place.rank == other.rank:
        return f"workers {place.worker} and {other.worker} of rank {place.rank}"
    return " and ".join(f"worker {each.worker} of rank {each.rank}" for each in (place, other))
