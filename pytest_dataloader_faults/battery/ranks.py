"""What the ranks of a dataset give when nothing is wrong, and trials of all of them together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._settings.jobs import Drawn, ReferenceJob, TrialOptions
from pytest_dataloader_faults._trial import repeat_if_killed, run_ranks, take_references
from pytest_dataloader_faults.battery.shares import drawn_in, shares_of
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Compared, SampleHandling
from pytest_dataloader_faults.outcomes.judge.repeats import was_killed
from pytest_dataloader_faults.outcomes.judge.streams import digests

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.baseline import Baseline

_WATCHED = TrialOptions(watch_files=True)


@dataclass(frozen=True)
class KnownRanks:
    """What each rank gives, and an epoch of all ranks without a fault. Plain data."""

    references: tuple[Reference, ...]
    fault_free: Outcome


def _as_divided(taken: Sequence[Reference], run: Outcome, whole: Reference) -> Sequence[Reference]:
    """*taken*, or what each rank had in *run*, where that is no more than the *whole* stream.

    What a rank has may depend on the number of workers, or on ``drop_last``. And accelerate may
    divide a stream behind the dataset: rank 0 reads, and gives the others their part.
    """
    if whole.stream_count is None or whole.comparison.what is not Compared.BYTES:
        return taken
    rows = [[row for each in own.delivered for row in digests(each)] for own in run.ranks]
    came, known = Counter(itertools.chain(*rows)), Counter(row for _, row in whole.samples)
    if came - known or (known - came and not run.drop_last):
        return taken
    pairs = zip(taken, rows, strict=True)
    return [replace(one, samples=tuple(enumerate(own))) for one, own in pairs]


class Ranks:
    """The ranks of one dataset, compared as its *baseline* compares."""

    def __init__(self, baseline: Baseline, known: KnownRanks | None) -> None:
        self._runs: list[Outcome] = []
        self._baseline = baseline
        self._known = known

    @property
    def known(self) -> KnownRanks | None:
        """What another baseline may begin with; None if there is nothing yet, or a rank died."""
        is_of_use = self._known is not None and not was_killed(self._known.fault_free)
        return self._known if is_of_use else None

    @property
    def fault_free(self) -> Outcome:
        """An epoch of all ranks without a fault."""
        return self._found.fault_free

    @property
    def runs(self) -> list[Outcome]:
        """Such an epoch, after one in which a process was killed, if that was made here."""
        fault_free = self.fault_free
        return self._runs or [fault_free]

    @property
    def faulty(self) -> int:
        """The rank that gets the faults: the last one of those whose own workers make its batches.

        accelerate may have rank 0 read for all of them.
        """
        ranks = self.fault_free.ranks
        own = [
            number
            for number, each in enumerate(ranks)
            if any(len(one.drawn) >= len(one.delivered) for one in each.passes[:1])
        ]
        return own[-1] if own else len(ranks) - 1

    @property
    def _found(self) -> KnownRanks:
        if self._known is None:
            self._known = self._look()
        return self._known

    def _look(self) -> KnownRanks:
        """What the ranks give, and an epoch of them; a stream that fails has the latter only."""
        try:
            taken = self._take([None] * (self._baseline.settings.ranks or 0))
        except UnusableDatasetError:
            run = self._run_fault_free([])
            if run.kind == "map" or run.exception is None:
                raise
            return KnownRanks((), run)
        run = self._run_fault_free(taken)
        if was_killed(run):  # It does not show what a rank gives.
            return KnownRanks(tuple(taken), run)
        both = zip(_as_divided(taken, run, self._baseline.reference), run.ranks, strict=True)
        with_runs = (replace(one, shares=shares_of(own), drawn=drawn_in(own)) for one, own in both)
        return KnownRanks(tuple(with_runs), run)

    def _run_fault_free(self, references: Sequence[Reference]) -> Outcome:
        """An epoch of all ranks without a fault; another one if a process of it was killed."""
        run = partial(self._run, references, (), options=_WATCHED)
        self._runs = repeat_if_killed(run, was_killed)
        return self._runs[-1]

    def run_trial(self, *faults: Fault, **how: Any) -> Outcome:
        """One trial, with *faults* in one rank; *how*: as for ``Baseline.job``."""
        return self._run(self._found.references, faults, on_rank=self.faulty, **how)

    def reference_for(self, outcome: Outcome, whole: Reference) -> Reference:
        """*whole*, with what each rank gives; samples that are not known yet are taken now."""
        found = self._found
        if not found.references:
            return whole
        both = list(zip(found.references, outcome.ranks, strict=True))
        unknown = [reference.unknown_batches(own) for reference, own in both]
        if any(unknown):
            packed = (dict(own.packed_draws) for own in outcome.ranks)
            pairs = zip(unknown, packed, strict=True)
            asked = [[(each, draws.get(each)) for each in batches] for batches, draws in pairs]
            more = zip(found.references, self._take(asked), strict=True)
            found = replace(found, references=tuple(one.merged_with(new) for one, new in more))
            self._known = found
        return replace(whole, ranks=found.references, is_whole=self._is_whole(whole))

    def _is_whole(self, whole: Reference) -> bool:
        """Whether the sampler draws the same samples for each epoch, in whatever order.

        It has drawn them for the reference, and for the epoch without a fault by another seed. A
        dataset that is divided by its author, and has random samples, cannot be told.
        """
        if whole.kind == "iterable":
            return True
        names = [name for name, _ in whole.samples] or [
            each for indices, _ in whole.batches for each in indices
        ]
        (one,) = self._baseline.working.passes
        drawn = Counter(each for indices in one.drawn for each in indices)
        if Counter(names[: whole.asked]) != drawn:
            return False
        known = whole.digests
        seeded = whole.comparison.seeded is not None
        parts = (pair for own in self._found.references for pair in own.samples)
        return not seeded or all(known.get(index, row) == row for index, row in parts)

    def _take(self, batches: Sequence[Sequence[Drawn] | None]) -> list[Reference]:
        baseline = self._baseline
        comparison = baseline.comparison
        job = ReferenceJob(
            make_dataset=baseline.make_dataset,
            settings=baseline.limited_settings,
            comparison=comparison,
            handling=SampleHandling.of(baseline.contract, comparison),
        )
        return take_references(job, batches)

    def _run(
        self,
        references: Sequence[Reference],
        faults: tuple[Fault, ...],
        on_rank: int | None = None,
        **how: Any,
    ) -> Outcome:
        job = self._baseline.job(*faults, **how)
        return run_ranks(job, on_rank, list(map(job.handling.knowing, references)))
