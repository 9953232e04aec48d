"""What a dataset gives and does when nothing is wrong.

Work on fault injection calls this the golden run: what comes of a fault is compared with it. It is
the reference, which is taken sample by sample with no worker, and the control, one epoch with
workers and the engine on, but with no fault.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine.scope import engine_for_files
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.factory import DatasetFactory, bound
from pytest_dataloader_faults._trial.job import ONE_EPOCH, RunSettings, TrialJob, TrialOptions
from pytest_dataloader_faults._trial.process.deadline import Deadlines
from pytest_dataloader_faults.battery import _progress
from pytest_dataloader_faults.battery._baseline import caches
from pytest_dataloader_faults.battery._baseline.golden_run import (
    GoldenRun,
    OutdatedBaselineError,
    Settings,
    most_bytes_of,
)
from pytest_dataloader_faults.battery._baseline.own_samples import (
    are_alike,
    count_own_samples,
    shares_of,
)
from pytest_dataloader_faults.battery._baseline.references import References
from pytest_dataloader_faults.battery._targets import parse_globs
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Reference, reference
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.reference import EXACT, SHAPES, TYPES, Comparison, Share

if TYPE_CHECKING:
    from typing_extensions import Unpack

ONE_WORKER: Mapping[str, Any] = {"num_workers": 1}
_TWO_WORKERS: Mapping[str, Any] = {"num_workers": 2}
_WATCHED = TrialOptions(watch_files=True)


class Baseline:
    """A dataset without faults: what it gives, and one epoch of it.

    Attributes:
        comparison: How samples are compared.
        control: The epoch without a fault, with the loader as it was asked for.
        observed: The epoch by which faults are chosen. It is the control, unless that fails.
        changes: Loader options that the dataset needs to work with no fault.
        cached: The files that the workers read, and that were made while the dataset was read.
        unusable_reason: Why the dataset does not work with these either, or None.
    """

    _shares: tuple[Share, ...] = ()
    _own_samples: int | None = None

    def __init__(
        self,
        make_dataset: DatasetFactory,
        *,
        attempts: Sequence[Mapping[str, Any]] = ({}, ONE_WORKER),
        known: GoldenRun | None = None,
        is_sure: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        """*attempts*: loader options for the control, and for further tries where it fails.

        *is_sure*: whether *known* is to be believed; otherwise the reference is taken again, and
        OutdatedBaselineError raised if it is another one.
        """
        self.engine = engine_for_files(settings.get("engine", "auto"))
        self.make_dataset = make_dataset
        self.loader = settings.get("loader")
        self.deadlines = Deadlines(_arguments.or_none(settings.get("deadline"), "auto"))
        self.seed = settings.get("seed", 0)
        self.asked_samples = _arguments.or_none(settings.get("samples"), "all")
        _arguments.check(make_dataset=make_dataset, loader=self.loader)
        _arguments.check(deadline=self.deadlines.most, seed=self.seed, samples=self.asked_samples)
        self.contract = Contract.given(settings.get("contract"))
        self.globs = parse_globs(settings.get("files"))
        self.comparison = known.comparison if known else EXACT
        self.changes: Mapping[str, Any] = {}
        self.unusable_reason: str | None = None
        how = RunSettings(loader=self.loader, deadline=self.deadlines.most, seed=self.seed)
        self._references = References(
            functools.partial(take_reference, make_dataset, **how),
            self.contract.split,
            self.asked_samples,
            self.deadlines.learn,
        )
        began = time.time_ns()
        if known is None:
            self._take(attempts)
        else:
            self._begin_with(known, is_sure=is_sure)
        before = known.cached if known else ()
        self.cached = before or caches.files_made_since(began, self.observed)

    def _begin_with(self, known: GoldenRun, *, is_sure: bool) -> None:
        self._references.limit(known.reference.limit)
        if is_sure:
            self._references.put(self.comparison, known.reference)
        elif self.reference != known.reference:
            raise OutdatedBaselineError
        self.control, self.observed, self.changes = known.control, known.observed, known.changes
        self.deadlines.learn(self.control.duration)
        self._shares = shares_of(self.control)

    @property
    def golden_run(self) -> GoldenRun | None:
        """What another baseline of the dataset may begin with; None if something is wrong."""
        if self.unusable_reason or self.comparison.compare:
            return None
        parts = (self.reference, self.control, self.observed, self.changes)
        return GoldenRun(*parts, self.comparison, self.cached)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about every trial with faults of files."""
        return (caches.note_of(self.cached),) if self.cached else ()

    @property
    def writable_folders(self) -> tuple[str, ...]:
        """Where what a trial writes is its own."""
        return bound(self.make_dataset)[1]

    @property
    def reference(self) -> Reference:
        """What the dataset gives, by the baseline's comparison."""
        return self._references.by(self.comparison)

    @property
    def without_seeds(self) -> Comparison:
        """The baseline's comparison where random numbers are left as they are."""
        if self.comparison.seeded is None:
            return self.comparison
        is_stable = self._references.by(SHAPES).unstable_index is None
        return SHAPES if is_stable else TYPES

    def with_reference(self, comparison: Comparison) -> Comparison:
        """*comparison*, with what the reference shows: the samples, if the author compares them."""
        reference = self._references.by(comparison)
        return replace(
            comparison,
            pickled_samples=reference.pickled_samples,
            whole=bool(reference.batches),
            split=self.contract.split,
        )

    def run_trial(
        self,
        *faults: Fault,
        changes: Mapping[str, Any] | None = None,
        comparison: Comparison | None = None,
        deadline: float | None = None,
        options: TrialOptions = ONE_EPOCH,
        may_take_longer: bool = True,
    ) -> Outcome:
        """One trial; *changes*: loader options in place of the baseline's own changes."""
        job = TrialJob(
            make_dataset=self.make_dataset,
            faults=faults,
            loader=self.loader,
            changes=self.changes if changes is None else changes,
            comparison=self.with_reference(comparison or self.comparison),
            deadline=deadline or self.deadlines.for_trial,
            seed=self.seed,
            engine=self.engine,
            samples=self._references.samples,
            options=options,
            needs_workers=True,
            may_take_longer=may_take_longer,
            most_bytes=most_bytes_of(getattr(self, "observed", None)),
        )
        return run_trial_job(job)

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Judgement:
        """The verdict on *outcome*, by *contract* or else by the baseline's own."""
        return judge(outcome, self.reference_for(outcome), contract or self.contract)

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference for *outcome*; samples that it does not know yet are taken now."""
        reference = self._references.for_outcome(outcome, self.comparison)
        return replace(reference, shares=self._shares)

    def _take(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Reference and control, by the most exact comparison that shows nothing wrong."""
        for each in self._comparisons():
            self.comparison = each
            if not (self._is_unstable or self._is_same_by_luck or self._is_endless):
                self._run_control(attempts)
                self._own_samples = self._count_own_samples(attempts[0])
                is_done = self.unusable_reason is None or not self.comparison.allows_for_randomness
                if is_done and self._own_samples is None:
                    return
        if self._is_unstable:
            message = reference.nondeterminism_message(self.reference, self.contract)
            raise UnusableDatasetError(message)

    def _comparisons(self) -> Iterator[Comparison]:
        """Those of the contract that can be of use, once the one before has been tried."""
        for each in reference.comparisons_for(self.contract, self.seed):
            is_stream = bool(self._references) and self.reference.kind == "iterable"
            if each.seeded is None or not is_stream:
                yield each
            own = self._own_samples is not None
            if (limit := self._own_samples if own else self.reference.stream_limit) is not None:
                yield from (replace(each, limit=limit, own=own) for each in (SHAPES, TYPES))
                return

    def _count_own_samples(self, options: Mapping[str, Any]) -> int | None:
        """How many random samples of its own each worker gave, where it did, or else None."""
        if self.comparison.limit is not None or self.reference.kind == "map":
            return None
        changes = _TWO_WORKERS if options == ONE_WORKER else options
        tried = self.control if changes == options else self.run_trial(changes=changes)
        if self.judge(tried, Contract()).passed:
            return None
        count = count_own_samples(tried, self.reference)
        if count is None or self.comparison.allows_for_randomness:
            return count
        # The reference was the same twice. What a race of the workers made would not be.
        return count if are_alike(tried, self.run_trial(changes=changes)) else None

    @property
    def _is_unstable(self) -> bool:
        return self.reference.unstable_index is not None

    @property
    def _is_endless(self) -> bool:
        """Whether the stream did not end, and the comparison does not end it either."""
        return self.reference.stream_limit is not None and self.comparison.limit is None

    @property
    def _is_same_by_luck(self) -> bool:
        """Whether samples draw random numbers, which may have had no effect so far."""
        is_asked = self.contract.deterministic is None and self.comparison == EXACT
        return is_asked and self.reference.draws_random_numbers

    def _run_control(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Trials without a fault until one of them shows nothing wrong."""
        reference.require_samples(self.reference, self.contract)
        runs = []
        for self.changes in attempts:
            _progress.step(f"with workers (without them it took {self.reference.duration:.1f} s)")
            runs.append(self.run_trial(options=_WATCHED))
            self.deadlines.learn(0 if runs[-1].timed_out else runs[-1].duration)
            found = self.judge(runs[-1], Contract())
            if found.passed:
                break
        self.control, self.observed = runs[0], runs[-1]
        why = f"with one worker and no fault it fails already ({found.sentence}); see workers-agree"
        self.unusable_reason = None if found.passed else why
        self._shares = shares_of(self.observed) if found.passed else ()
