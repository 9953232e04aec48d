"""The samples of each rank of a dataset in the fault-free run, and trials of all ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_dataloader_faults._settings.jobs import Drawn, ReferenceJob, TrialOptions
from pytest_dataloader_faults._trial import repeat_if_killed, run_ranks, take_references
from pytest_dataloader_faults.battery.fault_free_run import EarlierRun, FaultFreeRun
from pytest_dataloader_faults.battery.shares import KnownRanks, count_drawn, shares_of
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Reference
from pytest_dataloader_faults.outcomes.comparison import Compared
from pytest_dataloader_faults.outcomes.contract import handling_for
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.judge.streams import digests
from pytest_dataloader_faults.outcomes.repeats import was_killed

_WATCHED = TrialOptions(watch_files=True)


def _divide_references(
    references: Sequence[Reference], run: Outcome, whole_reference: Reference
) -> Sequence[Reference]:
    """*references*, or the samples of each rank in *run* if all are in *whole_reference*.

    The samples of a rank may depend on the number of workers, or on ``drop_last``. And accelerate
    may divide a stream behind the dataset: rank 0 reads, and sends the others their part.
    """
    if (
        whole_reference.stream_count is None
        or whole_reference.comparison.level is not Compared.BYTES
    ):
        return references
    rows = [[row for each in rank.delivered for row in digests(each)] for rank in run.ranks]
    delivered_rows, known_rows = (
        Counter(itertools.chain(*rows)),
        Counter(row for _, row in whole_reference.samples),
    )
    if delivered_rows - known_rows or (known_rows - delivered_rows and not run.loader.drop_last):
        return references
    pairs = zip(references, rows, strict=True)
    return [
        replace(reference, samples=tuple(enumerate(rank_rows))) for reference, rank_rows in pairs
    ]


class Ranks:
    """The ranks of one dataset, compared in the same way as in its *fault_free_run*."""

    def __init__(self, fault_free_run: FaultFreeRun, earlier_run: EarlierRun | None) -> None:
        self._runs: list[Outcome] = []
        self._fault_free_run = fault_free_run
        self._recorded = earlier_run.ranks if earlier_run else None

    @property
    def reusable(self) -> EarlierRun | None:
        """What another fault-free run may start with: without ranks if one of them was killed."""
        earlier_run = self._fault_free_run.reusable
        is_of_use = self._recorded is not None and not was_killed(self._recorded.fault_free)
        if earlier_run is None or not is_of_use:
            return earlier_run
        return replace(earlier_run, ranks=self._recorded)

    @property
    def fault_free(self) -> Outcome:
        """An epoch of all ranks without a fault."""
        return self._known_ranks.fault_free

    @property
    def runs(self) -> list[Outcome]:
        """The epochs of all ranks without a fault: two if a process of the first was killed."""
        fault_free = self.fault_free
        return self._runs or [fault_free]

    @property
    def faulty_rank(self) -> int:
        """The rank that gets the faults: the last one whose own workers make its batches.

        accelerate may have rank 0 read for all of them.
        """
        ranks = self.fault_free.ranks
        reading_ranks = [
            number
            for number, rank in enumerate(ranks)
            if any(len(epoch.drawn) >= len(epoch.delivered) for epoch in rank.epochs[:1])
        ]
        return reading_ranks[-1] if reading_ranks else len(ranks) - 1

    @property
    def _known_ranks(self) -> KnownRanks:
        if self._recorded is None:
            self._recorded = self._record()
        return self._recorded

    def _record(self) -> KnownRanks:
        """The samples and an epoch of the ranks; a stream that fails has only the epoch."""
        try:
            references = self._take([None] * (self._fault_free_run.settings.ranks or 0))
        except UnusableDatasetError:
            run = self._run_fault_free([])
            if run.kind == "map" or run.exception is None:
                raise
            return KnownRanks((), run)
        run = self._run_fault_free(references)
        if was_killed(run):  # It does not show what a rank delivers.
            return KnownRanks(tuple(references), run)
        pairs = zip(
            _divide_references(references, run, self._fault_free_run.reference),
            run.ranks,
            strict=True,
        )
        with_runs = (
            replace(reference, shares=shares_of(rank), drawn=count_drawn(rank))
            for reference, rank in pairs
        )
        return KnownRanks(tuple(with_runs), run)

    def _run_fault_free(self, references: Sequence[Reference]) -> Outcome:
        """An epoch of all ranks without a fault; another one if a process of it was killed."""
        run = partial(self._run, references, (), options=_WATCHED)
        self._runs = repeat_if_killed(run, was_killed)
        return self._runs[-1]

    def run_trial(self, *faults: Fault, **arguments: Any) -> Outcome:
        """One trial with *faults* in one rank; *arguments* are those of ``FaultFreeRun.job``."""
        return self._run(
            self._known_ranks.references, faults, on_rank=self.faulty_rank, **arguments
        )

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Finding:
        """The verdict on *outcome*, by *contract* or else by the dataset's own."""
        return judge(
            outcome, self.reference_for(outcome), contract or self._fault_free_run.contract
        )

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference for *outcome*; missing samples of ranks are read now."""
        if not outcome.ranks or self._fault_free_run.settings.ranks != len(outcome.ranks):
            return self._fault_free_run.reference_for(outcome)
        whole_reference, known_ranks = self._fault_free_run.reference, self._known_ranks
        if not known_ranks.references:
            return whole_reference
        rank_pairs = list(zip(known_ranks.references, outcome.ranks, strict=True))
        unknown = [reference.unknown_batches(rank) for reference, rank in rank_pairs]
        if any(unknown):
            batch_lists = [
                [(each.indices or (), each.packed) for each in batches] for batches in unknown
            ]
            new_references = zip(known_ranks.references, self._take(batch_lists), strict=True)
            known_ranks = replace(
                known_ranks,
                references=tuple(reference.merge_with(new) for reference, new in new_references),
            )
            self._recorded = known_ranks
        return replace(
            whole_reference, ranks=known_ranks.references, is_whole=self._is_whole(whole_reference)
        )

    def _is_whole(self, whole_reference: Reference) -> bool:
        """Whether the sampler draws the same samples for each epoch, in any order.

        It has drawn them for the reference, and for the epoch without a fault by another seed. A
        dataset that is divided by its author, and has random samples, is not known.
        """
        if whole_reference.kind == "iterable":
            return True
        names = [name for name, _ in whole_reference.samples] or [
            index for indices, _ in whole_reference.batches for index in indices
        ]
        (epoch,) = self._fault_free_run.working.epochs
        drawn = Counter(each for indices in epoch.drawn for each in indices)
        if Counter(names[: whole_reference.request_count]) != drawn:
            return False
        known_digests = whole_reference.digests
        seeded = whole_reference.comparison.seeded is not None
        parts = (
            pair
            for rank_reference in self._known_ranks.references
            for pair in rank_reference.samples
        )
        return not seeded or all(known_digests.get(index, row) == row for index, row in parts)

    def _take(self, batches: Sequence[Sequence[Drawn] | None]) -> list[Reference]:
        fault_free_run = self._fault_free_run
        comparison = fault_free_run.comparison
        job = ReferenceJob(
            make_dataset=fault_free_run.make_dataset,
            settings=fault_free_run.limited_settings,
            comparison=comparison,
            handling=handling_for(fault_free_run.contract, comparison),
        )
        return take_references(job, batches)

    def _run(
        self,
        references: Sequence[Reference],
        faults: tuple[Fault, ...],
        on_rank: int | None = None,
        **arguments: Any,
    ) -> Outcome:
        job = self._fault_free_run.job(*faults, **arguments)
        return run_ranks(job, on_rank, [each.add_to(job.handling) for each in references])
