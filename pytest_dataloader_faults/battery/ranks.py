"""The ranks of a dataset without a fault, and trials of all of them."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_dataloader_faults._trial import repeat_if_killed
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Outcome, Reference
from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.judge.ranks import is_of_content
from pytest_dataloader_faults.outcomes.repeats import (
    JudgedTrial,
    run_without_vain_waits,
    was_killed,
)
from pytest_dataloader_faults.steps import TrialOptions

_FAIL = "its ranks fail even without a fault ({}); see ranks-agree"


@dataclass(frozen=True)
class FaultFreeRanks:
    """What the ranks deliver without a fault, and trials of all ranks, with faults in one of them.

    Attributes:
        run: The dataset in a single process.
        runs: One trial of two epochs without a fault, or two if a process of the first was killed.
        shares_folder: Whether ranks fail unless they share the folder that make_dataset receives,
            because one of them prepares the files for all.
    """

    run: FaultFreeRun
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
        first_workers = {each.worker: each for each in reversed(rank.processes)}
        passes = rank.passes if len(first_workers) == len(rank.processes) else rank.passes[:1]
        rank = replace(rank, passes=passes, processes=tuple(reversed(first_workers.values())))
        settings = self.run.settings
        workload = Workload.of(rank, settings.files, ranks=settings.ranks)
        return replace(workload, at_rest=self.run.workload.at_rest)

    def run_trial(
        self, *faults: Fault, on_rank: int | None, shares_folder: bool, **arguments: Any
    ) -> Outcome:
        """One trial of all ranks; *arguments* are those of ``FaultFreeRun.job``.

        *on_rank*: the rank that gets the faults; None for ``faulty_rank``.
        """
        if faults or shares_folder:
            self._require_agreement()
        shares_folder = shares_folder or self.shares_folder
        on_rank = self.faulty_rank if on_rank is None else on_rank
        return _run(self.run, *faults, on_rank=on_rank, shares=shares_folder, **arguments)

    @functools.cached_property
    def reference(self) -> Reference:
        """The samples of the dataset, and those of each rank."""
        undivided = self.run.reference
        if was_killed(self.outcome):  # It does not show what a rank delivers.
            return undivided
        members = tuple(_reference_of_rank(each, undivided) for each in self.outcome.ranks)
        # A dataset that its author divides, and that has random samples, is not known as a whole.
        is_whole = undivided.is_whole and (
            undivided.kind == "iterable"
            or is_of_content(undivided)
            or all(_has_same_samples(each, undivided) for each in members)
        )
        return replace(undivided, fault_free=self.run.working, members=members, is_whole=is_whole)

    def _require_agreement(self) -> None:
        """Raise NotApplicable if the ranks fail without a fault."""
        finding = judge(self.outcome, self.reference, Contract())
        self.run.require_pass(JudgedTrial(self.outcome, finding), _FAIL, "its ranks do not agree")


def find_ranks(run: FaultFreeRun, options: TrialOptions) -> FaultFreeRanks:
    """The ranks of the dataset of *run*; *options*: those of a trial without a fault.

    Each rank has its own folder, if make_dataset takes one, unless they fail with that.
    """

    def record(*, shares_folder: bool) -> FaultFreeRanks:
        start = partial(_run, run, shares=shares_folder, options=options)
        return FaultFreeRanks(run, tuple(repeat_if_killed(start, was_killed)), shares_folder)

    def find() -> FaultFreeRanks:
        if not run.own_folders.paths:
            return record(shares_folder=False)
        with contextlib.suppress(UnusableDatasetError):
            ranks = record(shares_folder=False)
            if not (ranks.outcome.exception or ranks.outcome.timed_out or ranks.outcome.died):
                return ranks
        return record(shares_folder=True)

    return run.find_once("ranks", find)


def _run(
    run: FaultFreeRun, *faults: Fault, on_rank: int | None = None, shares: bool, **arguments: Any
) -> Outcome:
    """One trial with *faults* in one rank; *arguments* are those of ``FaultFreeRun.job``.

    *shares*: whether the ranks share a folder.
    """
    from pytest_dataloader_faults._trial.ranks import run_ranks  # It imports torch.

    job = replace(run.job(*faults, **arguments), draws=())

    def run_once(unprovoked: tuple[str, ...]) -> Outcome:
        return run_ranks(replace(job, unprovoked=unprovoked), on_rank, shares_folder=shares)

    return run_without_vain_waits(
        run_once, lambda outcome: not faults and bool(outcome.exception or outcome.timed_out)
    )


def _reference_of_rank(rank: Outcome, undivided: Reference) -> Reference:
    """What *rank* delivered in its first epoch, and other samples that its sampler may draw."""
    rank = replace(rank, passes=rank.passes[:1])
    samples: tuple[tuple[Any, Sample], ...]
    if undivided.kind == "map":
        samples = tuple(pair for each in rank.delivered for pair in each.pairs)
    else:
        samples = tuple(enumerate(each for batch in rank.delivered for each in batch.samples))
    rows = tuple(each.rows for each in rank.delivered)
    rank_reference = replace(
        undivided,
        samples=samples,
        readable=next((each.length for each in rank.epochs), None),
        parts=rows if all(rows) else (),
        fault_free=rank,
    )
    if undivided.kind == "map" and _has_same_samples(rank_reference, undivided):
        return replace(
            rank_reference, samples=tuple({**dict(samples), **dict(undivided.samples)}.items())
        )
    return rank_reference


def _has_same_samples(reference: Reference, undivided: Reference) -> bool:
    """Whether a rank has the same samples as a single process, under the same indices."""
    digests = undivided.digests
    return reference.readable == undivided.readable and all(
        digests.get(index, digest) == digest for index, digest in reference.digests.items()
    )
