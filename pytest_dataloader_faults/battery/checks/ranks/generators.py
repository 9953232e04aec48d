"""Whether workers of several ranks draw the same random numbers. Pure.

The step is here. What it does in a trial is in ``generator_states``, which is imported there only.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.steps import Epoch, OwnStep, arm_workers
from pytest_dataloader_faults.wire import Note, register

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True

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


TWO_EPOCHS = arm_workers(Epoch(), Epoch(), before=(RecordGenerators(),))


def find_same_numbers(outcome: TrialFacts) -> Finding | None:
    """Workers whose generators had the same state in the first epoch: of two ranks, or of one."""
    places = defaultdict(list)
    for number, facts in enumerate(outcome.ranks):
        # The workers of later epochs have the same numbers as those of the first one.
        states = {(each.library, each.worker): each.state for each in facts.of(UsedGenerator)[::-1]}
        for (library, worker), state in sorted(states.items()):
            places[library, state].append((number, worker))
    pairs = [
        (rank == other, (rank, worker), (other, other_worker), library)
        for (library, _), same_state in places.items()
        for (rank, worker), (other, other_worker) in itertools.combinations(same_state, 2)
    ]
    if not pairs:
        return None
    is_one_rank, (rank, worker), (other, other_worker), library = min(pairs)
    both = f"worker {worker} of rank {rank} and worker {other_worker} of rank {other}"
    if is_one_rank:
        both = f"workers {worker} and {other_worker} of rank {rank}"
    sentence = f"{both} drew the same random numbers from {library}"
    return Finding(Verdict.CORRUPTED, sentence, SAME_NUMBERS)
