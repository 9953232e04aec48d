"""The samples of each rank of a dataset, and an epoch of all ranks without a fault."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_dataloader_faults._settings.jobs import ReferenceJob, TrialOptions, has_step
from pytest_dataloader_faults._trial import repeat_if_killed
from pytest_dataloader_faults.battery.checks.ranks.generators import RECORDED_EPOCH
from pytest_dataloader_faults.battery.checks.ranks.rules import is_of_content
from pytest_dataloader_faults.battery.checks.ranks.shared_folder import NO_FOLDER, HoldWrites
from pytest_dataloader_faults.battery.checks.ranks.trials import run_ranks, take_references
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun, replay_of
from pytest_dataloader_faults.battery.shares import count_drawn, shares_of
from pytest_dataloader_faults.battery.workload import NotApplicable
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.collisions import Collisions
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.repeats import run_without_vain_waits, was_killed

_RECORDED = TrialOptions(watch_files=True, processes=RECORDED_EPOCH)
_NAME = "ranks"
"""Of what ``FaultFreeRun.find_once`` finds."""


@dataclass(frozen=True)
class FaultFreeRanks:
    """The samples of each rank, and epochs of all ranks without a fault. Plain data.

    Attributes:
        references: The samples of each rank; none of a stream that fails.
        runs: One epoch, or two if a process of the first was killed.
        shares_folder: Whether ranks fail unless they share the folder that make_dataset receives,
            because one of them prepares the files for all.
    """

    references: tuple[Reference, ...]
    runs: tuple[Outcome, ...]
    shares_folder: bool = False

    @property
    def outcome(self) -> Outcome:
        """The epoch that counts."""
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


def _divide_references(
    references: Sequence[Reference], run: Outcome, whole_reference: Reference
) -> Sequence[Reference]:
    """*references*, or the samples of each rank in *run* if all are in *whole_reference*.

    The samples of a rank may depend on the number of workers, or on ``drop_last``. And accelerate
    may divide a stream behind the dataset: rank 0 reads, and sends the others their part.
    """
    if whole_reference.stream_count is None or whole_reference.comparison.by_form:
        return references
    rows = [[row for each in rank.delivered for row in each.digests] for rank in run.ranks]
    delivered_rows, known_rows = (
        Counter(itertools.chain(*rows)),
        Counter(whole_reference.digests.values()),
    )
    if delivered_rows - known_rows or (known_rows - delivered_rows and not run.loader.drop_last):
        return references
    pairs = zip(references, rows, strict=True)
    return [
        replace(reference, samples=tuple(enumerate(map(Sample, rank_rows))))
        for reference, rank_rows in pairs
    ]


def find_ranks(run: FaultFreeRun) -> FaultFreeRanks:
    """The ranks of the dataset of *run*, compared in the same way."""
    return run.find_once(_NAME, partial(_record, run))


def run_faulty_rank(run: FaultFreeRun, *faults: Fault, **arguments: Any) -> Outcome:
    """One trial with *faults* in one rank; *arguments* are those of ``FaultFreeRun.job``."""
    ranks = find_ranks(run)
    is_held = has_step(arguments["options"].processes, HoldWrites)
    if is_held and not run.own_folders.paths:
        raise NotApplicable(NO_FOLDER)
    return _run(
        run,
        faults,
        ranks.references,
        on_rank=ranks.faulty_rank,
        shares_folder=is_held or ranks.shares_folder,
        **arguments,
    )


def reference_for(run: FaultFreeRun) -> Reference:
    """The reference of *run*, with those of its ranks."""
    references = find_ranks(run).references
    if not references:
        return run.reference
    if _are_mixed(run, references):
        references = _update(run, _take_all(run, shares_folder=find_ranks(run).shares_folder))
    is_whole = _is_whole(run, references)
    drawn = count_drawn(run.working)
    return replace(run.reference, members=references, is_whole=is_whole, drawn=drawn)


def _are_mixed(run: FaultFreeRun, references: Sequence[Reference]) -> bool:
    """Whether some of the *references* have samples, although *run* compares whole batches."""
    is_split = any(not each.comparison.in_batches for each in references)
    return run.comparison.in_batches and is_split


def _update(run: FaultFreeRun, references: Sequence[Reference]) -> tuple[Reference, ...]:
    """*references*, which are those of the ranks of *run* from now on."""
    updated = tuple(references)
    run.replace_finding(_NAME, replace(find_ranks(run), references=updated))
    return updated


def _record(run: FaultFreeRun) -> FaultFreeRanks:
    """The samples and an epoch of the ranks.

    Each rank has its own folder, if make_dataset takes one: what ranks do to each other in a shared
    folder is the subject of a single check.
    """
    if not run.own_folders.paths:
        return _record_in(run, shares_folder=False)
    with contextlib.suppress(UnusableDatasetError):
        ranks = _record_in(run, shares_folder=False)
        if ranks.references:
            return ranks
    return _record_in(run, shares_folder=True)


def _record_in(run: FaultFreeRun, *, shares_folder: bool) -> FaultFreeRanks:
    """The same with folders that are shared or not; a stream that fails has only the epoch."""
    try:
        references = _take_all(run, shares_folder=shares_folder)
    except UnusableDatasetError:
        epochs = _run_fault_free(run, (), shares_folder=shares_folder)
        if epochs[-1].kind == "map" or epochs[-1].exception is None:
            raise
        return FaultFreeRanks((), epochs, shares_folder)
    epochs = _run_fault_free(run, references, shares_folder=shares_folder)
    if was_killed(epochs[-1]):  # It does not show what a rank delivers.
        return FaultFreeRanks(tuple(references), epochs, shares_folder)
    divided = _divide_references(references, epochs[-1], run.reference)
    with_runs = (
        replace(reference, shares=shares_of(rank), drawn=count_drawn(rank))
        for reference, rank in zip(divided, epochs[-1].ranks, strict=True)
    )
    return FaultFreeRanks(tuple(with_runs), epochs, shares_folder)


def _run_fault_free(
    run: FaultFreeRun, references: Sequence[Reference], *, shares_folder: bool
) -> tuple[Outcome, ...]:
    """An epoch of all ranks without a fault; another one if a process of it was killed."""
    start = partial(_run, run, (), references, shares_folder=shares_folder, options=_RECORDED)
    return tuple(repeat_if_killed(start, was_killed))


def _is_whole(run: FaultFreeRun, references: Sequence[Reference]) -> bool:
    """Whether the sampler draws the same samples for each epoch, in any order.

    A dataset that is divided by its author, and has random samples, is not known.
    """
    whole_reference = run.reference
    if whole_reference.kind == "iterable":
        return True
    if not whole_reference.is_whole:
        return False
    if is_of_content(whole_reference):
        return True
    if any(each.readable != whole_reference.readable for each in references):
        return False
    known_digests = whole_reference.digests
    parts = (pair for reference in references for pair in reference.digests.items())
    return all(known_digests.get(index, row) == row for index, row in parts)


def _take_all(run: FaultFreeRun, *, shares_folder: bool) -> list[Reference]:
    """The samples that the ranks draw. One of them may have no batch that cannot be split."""
    references = _take(run, shares_folder=shares_folder)
    return _take(run, shares_folder=shares_folder) if _are_mixed(run, references) else references


def _take(run: FaultFreeRun, *, shares_folder: bool) -> list[Reference]:
    job = ReferenceJob(
        make_dataset=run.make_dataset,
        settings=run.limited_settings,
        comparison=run.comparison,
        batch_size=run.reference.batch_size,
        history=run.history,
    )
    references = take_references(job, shares_folder=shares_folder)
    is_whole = any(each.comparison.in_batches for each in references)
    if is_whole and not run.comparison.in_batches:
        run.compare_batches()
    return references


def _run(
    run: FaultFreeRun,
    faults: tuple[Fault, ...],
    references: Sequence[Reference],
    on_rank: int | None = None,
    *,
    shares_folder: bool,
    **arguments: Any,
) -> Outcome:
    job, replays = run.job(*faults, **arguments), list(map(replay_of, references))

    def run_once(collisions: Collisions) -> Outcome:
        trial_job = replace(job, collisions=collisions)
        return run_ranks(trial_job, on_rank, replays, shares_folder=shares_folder)

    return run_without_vain_waits(
        run_once, lambda outcome: not faults and bool(outcome.exception or outcome.timed_out)
    )
