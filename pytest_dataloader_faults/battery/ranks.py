"""The samples of each rank of a dataset, and its ranks without a fault."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_dataloader_faults._settings.jobs import ReferenceJob, TrialOptions
from pytest_dataloader_faults._trial import repeat_if_killed
from pytest_dataloader_faults._trial.ranks import run_ranks, take_references
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun, replay_of
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.collisions import Collisions
from pytest_dataloader_faults.outcomes import Contract, Outcome, Reference
from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.judge.ranks import is_of_content
from pytest_dataloader_faults.outcomes.repeats import (
    JudgedTrial,
    run_without_vain_waits,
    was_killed,
)


@dataclass(frozen=True)
class FaultFreeRanks:
    """The samples of each rank, and trials of all ranks, with faults in one of them.

    Attributes:
        run: The dataset in a single process.
        references: The samples of each rank; none of a stream that fails.
        runs: One trial of two epochs without a fault, or two if a process of the first was killed.
        shares_folder: Whether ranks fail unless they share the folder that make_dataset receives,
            because one of them prepares the files for all.
    """

    run: FaultFreeRun
    references: tuple[Reference, ...]
    runs: tuple[Outcome, ...]
    shares_folder: bool = False

    @property
    def outcome(self) -> Outcome:
        """The trial that counts."""
        return self.runs[-1]

    @property
    def faulty_rank(self) -> int:
        """The rank that gets the faults: the last one whose own workers make its batches.

        accelerate may have rank 0 read for all of them.
        """
        ranks = self.outcome.ranks
        reading_ranks = [
            number
            for number, rank in enumerate(ranks)
            if any(len(epoch.drawn) >= len(epoch.delivered) for epoch in rank.epochs[:1])
        ]
        return reading_ranks[-1] if reading_ranks else len(ranks) - 1

    @property
    def workload(self) -> Workload:
        """What the first workers of the rank with the faults do without them."""
        self._require_agreement()
        rank = self.outcome.ranks[self.faulty_rank]
        first = {each.worker: each for each in reversed(rank.processes)}
        passes = rank.passes if len(first) == len(rank.processes) else rank.passes[:1]
        rank = replace(rank, passes=passes, processes=tuple(reversed(first.values())))
        settings = self.run.settings
        return Workload.of(rank, settings.files, ranks=settings.ranks)

    def run_trial(self, *faults: Fault, shares_folder: bool, **arguments: Any) -> Outcome:
        """One trial of all ranks; *arguments* are those of ``FaultFreeRun.job``."""
        if faults or shares_folder:
            self._require_agreement()
        return _run_in_ranks(
            self.run,
            faults,
            self.references,
            on_rank=self.faulty_rank,
            shares_folder=shares_folder or self.shares_folder,
            **arguments,
        )

    def reference_for(self, _: Outcome) -> Reference:
        """The reference of the dataset, with those of its ranks."""
        whole_reference, members = self.run.reference, self.references
        if not members:
            return whole_reference
        is_whole = _is_whole(whole_reference, members)
        fault_free = self.run.working
        return replace(whole_reference, fault_free=fault_free, members=members, is_whole=is_whole)

    def _require_agreement(self) -> None:
        """Raise NotApplicable if the ranks fail without a fault."""
        outcome = self.outcome
        finding = judge(outcome, self.reference_for(outcome), Contract())
        self.run.require_pass(JudgedTrial(outcome, finding), _FAIL, "its ranks do not agree")


_FAIL = "its ranks fail even without a fault ({}); see ranks-agree"


def find_ranks(run: FaultFreeRun, options: TrialOptions) -> FaultFreeRanks:
    """The ranks of the dataset of *run*, compared in the same way.

    Each rank has its own folder, if make_dataset takes one, unless they fail with that. *options*:
    those of a trial without a fault.
    """

    def record() -> FaultFreeRanks:
        if run.own_folders.paths:
            with contextlib.suppress(UnusableDatasetError):
                ranks = _record(run, options, shares_folder=False)
                if ranks.references:
                    return ranks
        return _record(run, options, shares_folder=bool(run.own_folders.paths))

    def find() -> FaultFreeRanks:
        return run.find_once(f"ranks, in batches: {run.comparison.in_batches}", record)

    ranks = find()
    is_whole = any(each.comparison.in_batches for each in ranks.references)
    if is_whole and not run.comparison.in_batches:
        run.compare_batches()  # Some of a rank's cannot be split into samples.
        return find()
    return ranks


def _run_in_ranks(
    run: FaultFreeRun,
    faults: tuple[Fault, ...],
    references: Sequence[Reference],
    on_rank: int | None = None,
    *,
    shares_folder: bool,
    **arguments: Any,
) -> Outcome:
    """One trial with *faults* in one rank; *arguments* are those of ``FaultFreeRun.job``."""
    job, replays = run.job(*faults, **arguments), list(map(replay_of, references))

    def run_once(collisions: Collisions) -> Outcome:
        trial_job = replace(job, collisions=collisions)
        return run_ranks(trial_job, on_rank, replays, shares_folder=shares_folder)

    return run_without_vain_waits(
        run_once, lambda outcome: not faults and bool(outcome.exception or outcome.timed_out)
    )


def _is_whole(whole_reference: Reference, references: Sequence[Reference]) -> bool:
    """Whether the sampler draws the same samples for each epoch, in any order.

    A dataset that is divided by its author, and has random samples, is not known.
    """
    if whole_reference.kind == "iterable":
        return True
    if not whole_reference.is_whole or is_of_content(whole_reference):
        return whole_reference.is_whole
    return all(_has_same_samples(each, whole_reference) for each in references)


def _has_same_samples(reference: Reference, whole_reference: Reference) -> bool:
    """Whether a rank has the same samples as a single process, under the same indices."""
    known = whole_reference.digests
    return reference.readable == whole_reference.readable and all(
        known.get(index, digest) == digest for index, digest in reference.digests.items()
    )


def _extend(reference: Reference, whole_reference: Reference) -> Reference:
    """The *reference* of a rank, which may draw any sample of a map-style dataset.

    Its sampler may draw others than for the reference: accelerate's ranks agree on a seed only when
    they start an epoch.
    """
    is_map = whole_reference.kind == "map"
    if not (is_map and _has_same_samples(reference, whole_reference)):
        return reference
    samples = {**dict(whole_reference.samples), **dict(reference.samples)}
    draws = (*reference.draws, *whole_reference.draws)
    return replace(reference, samples=tuple(samples.items()), draws=draws)


def _record(run: FaultFreeRun, options: TrialOptions, *, shares_folder: bool) -> FaultFreeRanks:
    """The samples and a trial of the ranks; a stream that fails has only the trial."""
    references: tuple[Reference, ...] = ()
    error: UnusableDatasetError | None = None
    try:
        taken = _take(run, shares_folder=shares_folder)
        references = tuple(_extend(each, run.reference) for each in taken)
    except UnusableDatasetError as raised:
        error = raised
    start = partial(
        _run_in_ranks, run, (), references, shares_folder=shares_folder, options=options
    )
    runs = tuple(repeat_if_killed(start, was_killed))
    outcome = runs[-1]
    if error is not None and (outcome.kind == "map" or outcome.exception is None):
        raise error
    if references and not was_killed(outcome):  # It shows what a rank delivers.
        first_epochs = [replace(rank, passes=rank.passes[:1]) for rank in outcome.ranks]
        divided = _divide(references, first_epochs, run.reference)
        references = tuple(
            replace(reference, fault_free=rank)
            for reference, rank in zip(divided, first_epochs, strict=True)
        )
    return FaultFreeRanks(run, references, runs, shares_folder)


def _take(run: FaultFreeRun, *, shares_folder: bool) -> tuple[Reference, ...]:
    """The samples that the ranks draw."""
    job = ReferenceJob(
        make_dataset=run.make_dataset,
        settings=run.limited_settings,
        comparison=run.comparison,
        batch_size=run.reference.batch_size,
        history=run.history,
    )
    return tuple(take_references(job, shares_folder=shares_folder))


def _divide(
    references: Sequence[Reference], ranks: Sequence[Outcome], whole_reference: Reference
) -> Sequence[Reference]:
    """*references*, or the samples that *ranks* delivered if all are in *whole_reference*.

    The samples of a rank may depend on the number of workers, or on ``drop_last``. And accelerate
    may divide a stream behind the dataset: rank 0 reads, and sends the others their part.
    """
    if whole_reference.stream_count is None or whole_reference.comparison.by_form:
        return references
    rows = [[row for each in rank.delivered for row in each.digests] for rank in ranks]
    delivered = Counter(itertools.chain(*rows))
    known, may_drop = Counter(whole_reference.digests.values()), ranks[0].loader.drop_last
    if delivered - known or (known - delivered and not may_drop):
        return references
    return [
        replace(reference, samples=tuple(enumerate(map(Sample, rank_rows))))
        for reference, rank_rows in zip(references, rows, strict=True)
    ]
