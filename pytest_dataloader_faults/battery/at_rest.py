"""Trials whose faults are armed before the dataset is created: what their verdicts need."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.job import TakeReference
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.battery.workload import NotApplicable
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.judge.at_rest import (
    COPIED,
    DAMAGED_CACHE,
    NOT_TWICE,
    count_lacking,
    happens_in_passing,
    has_full_reference,
    is_unlisted,
)
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.steps import Epoch, TrialOptions, arm_before_init

_Batches: TypeAlias = "tuple[tuple[int, ...], ...]"
_TWICE = TrialOptions(processes=arm_before_init(Epoch(), after_faults=False))
_NOT_TWICE = "make_dataset cannot be called twice in the same folder"


def reference_for(run: FaultFreeRun, outcome: Outcome) -> Reference:
    """The reference, with the samples that have moved because a listing lacks an earlier file."""
    reference = run.reference_for(outcome)
    lacking = count_lacking(outcome, reference)
    is_seeded, is_whole = outcome.comparison.seeded is not None, outcome.comparison.in_batches
    if not lacking or not is_unlisted(outcome) or outcome.comparison.in_workers:
        return reference
    if (is_seeded and is_whole) or (has_full_reference(reference) and not is_seeded):
        return reference
    batches = tuple(each.keys or () for each in outcome.delivered)
    if not all(isinstance(index, int) for indices in batches for index in indices):
        return reference
    read = partial(_read_moved_batches if is_whole else _read_moved, run, batches, lacking)
    displaced = run.find_once(f"displaced by {lacking}: {batches}", read)
    return replace(reference, displaced=displaced)


def refine(run: FaultFreeRun, finding: Finding, outcome: Outcome) -> Finding:
    """*finding*, or what is wrong with a second call of make_dataset without a fault.

    Raises NotApplicable if that call alone shows what the fault left.
    """
    if finding.verdict is not Verdict.POISONED:
        return finding
    # If make_dataset takes no folder, every trial calls it again in the same way.
    if run.own_folders.paths and not (second := _call_twice(run).finding).passed:
        if any(map(happens_in_passing, outcome.fired_faults)):
            raise NotApplicable(_NOT_TWICE, _NOT_TWICE, remedy=NOT_TWICE.advice)
        return second
    is_copied = finding.cause == DAMAGED_CACHE and _copies_sources(run)
    return replace(finding, cause=COPIED) if is_copied else finding


def _read_moved(run: FaultFreeRun, batches: _Batches, by: int) -> tuple[tuple[Any, Any], ...]:
    """What may be at each index of *batches*: its own sample, or the one that is *by* later."""
    indices = [index for each in batches for index in each]
    return tuple(
        (index - displaced, digest)
        for displaced in (0, by)
        for index, digest in _read_again(
            run, [(each + displaced,) for each in indices], displaced
        ).digests.items()
    )


def _read_moved_batches(
    run: FaultFreeRun, batches: _Batches, by: int
) -> tuple[tuple[Any, Any], ...]:
    """What each of *batches* may be if samples are *by* so many later, from one of them on."""
    moved = {
        (indices, tuple(index + by if index >= first else index for index in indices))
        for indices in batches
        for first in (*indices, math.inf)
    }
    requested = sorted({each for _, each in moved})
    digests_of = _read_again(run, requested).digests
    return tuple((indices, digests_of[each]) for indices, each in moved)


def _read_again(
    run: FaultFreeRun, batches: Sequence[tuple[int, ...]], displaced: int = 0
) -> Reference:
    """The samples of *batches*, without a fault."""
    return take_reference(
        run.make_dataset,
        run.limited_settings,
        TakeReference(batches=batches, displaced=displaced),
        comparison=run.comparison,
        history=run.history,
    )


def _call_twice(run: FaultFreeRun) -> JudgedTrial:
    """A second call of make_dataset with the same folder, without a fault."""

    def call() -> JudgedTrial:
        outcome = run.run_trial(options=_TWICE)
        return JudgedTrial(outcome, run.judge(outcome, Contract()))

    return run.find_once("second call", call)


def _copies_sources(run: FaultFreeRun) -> bool:
    """Whether make_dataset copies files that it reads into the trial's folder."""
    followed = run.followed
    if followed is None or followed.outcome.main is None:
        return False
    files = {path for worker in run.working.workers for path in worker.files}
    copies = set(map(os.path.basename, filter(run.own_folders.is_made_by_dataset, files)))
    sources = followed.outcome.main.files.keys() - followed.changed
    return any(os.path.basename(path) in copies for path in sources)
