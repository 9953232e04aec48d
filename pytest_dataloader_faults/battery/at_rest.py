"""Trials whose faults are armed before the dataset is created: what their verdicts need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
from pytest_dataloader_faults.outcomes.stages import JobKilled
from pytest_dataloader_faults.steps import Epoch, TrialOptions, arm_before_init

_TWICE = TrialOptions(processes=arm_before_init(Epoch(), after_faults=False))
_NOT_TWICE = "make_dataset cannot be called twice in the same folder"


def reference_for(run: FaultFreeRun, outcome: Outcome) -> Reference:
    """The reference, with the samples that have moved because a listing lacks an earlier file."""
    reference = run.reference_for(outcome)
    lacking = count_lacking(outcome, reference)
    is_seeded = outcome.comparison.seeded is not None
    if not lacking or not is_unlisted(outcome) or outcome.comparison.in_workers:
        return reference
    if outcome.comparison.in_batches or (has_full_reference(reference) and not is_seeded):
        return reference
    indices = tuple(index for batch in outcome.delivered for index in batch.keys or ())
    if not all(isinstance(index, int) for index in indices):
        return reference
    read = partial(_read_moved, run, indices, lacking)
    displaced = run.find_once(f"displaced by {lacking}: {indices}", read)
    return replace(reference, displaced=displaced)


def refine(run: FaultFreeRun, finding: Finding, outcome: Outcome) -> Finding:
    """*finding*, or what is wrong with a second call of make_dataset without a fault.

    Raises NotApplicable if that call alone shows what the fault left.
    """
    if finding.verdict is not Verdict.POISONED:
        return finding
    # If make_dataset takes no folder, every trial calls it again in the same way.
    if run.own_folders.paths and not (second := _call_twice(run).finding).passed:
        if outcome.of(JobKilled) or any(map(happens_in_passing, outcome.fired_faults)):
            raise NotApplicable(_NOT_TWICE, _NOT_TWICE, remedy=NOT_TWICE.advice)
        return second
    is_copied = finding.cause == DAMAGED_CACHE and _copies_sources(run)
    return replace(finding, cause=COPIED) if is_copied else finding


def _read_moved(run: FaultFreeRun, indices: Sequence[int], by: int) -> tuple[tuple[Any, Any], ...]:
    """What may be at each of *indices* without a fault: its own sample, or the one *by* later."""
    readings = {
        displaced: take_reference(
            run.make_dataset,
            run.limited_settings,
            TakeReference([each + displaced for each in indices], displaced),
            comparison=run.comparison,
            history=run.history,
        )
        for displaced in (0, by)
    }
    return tuple(
        (index - displaced, digest)
        for displaced, taken in readings.items()
        for index, digest in taken.digests.items()
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
