"""What a dataset gives and does when nothing is wrong.

What comes of a fault is compared with it. It is the reference, which is taken sample by sample with
no worker, and the fault-free epoch, which has workers and the engine on, but no fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pytest_dataloader_faults._engine.scope import engine_for_files
from pytest_dataloader_faults._settings import SAMPLES, Settings, check
from pytest_dataloader_faults._settings.jobs import (
    ONE_EPOCH,
    Deadlines,
    TrialJob,
    TrialOptions,
)
from pytest_dataloader_faults._trial import repeat_if_killed, run_trial_job, take_reference
from pytest_dataloader_faults._trial.factory import DatasetFactory, bound
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.ranks import KnownRanks, Ranks
from pytest_dataloader_faults.battery.shares import (
    WorkerEpoch,
    are_alike,
    count_own_samples,
    drawn_in,
    most_bytes_of,
    shares_of,
    take_worker_epoch,
)
from pytest_dataloader_faults.battery.targets import (
    FollowedRun,
    OwnFolders,
    files_made_since,
    note_on_cache,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import (
    Contract,
    Judgement,
    Outcome,
    Reference,
    reference,
)
from pytest_dataloader_faults.outcomes.contract import (
    EXACT,
    SHAPES,
    TYPES,
    Compared,
    Comparison,
    SampleHandling,
    comparisons_for,
)
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.judge.repeats import was_killed
from pytest_dataloader_faults.outcomes.reference import Share, merged

ONE_WORKER: Mapping[str, Any] = {"num_workers": 1}
_TWO_WORKERS: Mapping[str, Any] = {"num_workers": 2}
_WATCHED = TrialOptions(watch_files=True)
_WATCHED_FROM_START = TrialOptions(watch_files=True, from_start=True)
_TWICE = TrialOptions(from_start=True, twice=True)


class Baseline:
    """A dataset without faults: what it gives, and one epoch of it.

    Attributes:
        comparison: How samples are compared.
        runs: The epochs without a fault, with the loader as it was asked for: one, and another one
            if a process of the first was killed.
        working: The epoch by which faults are chosen. It is the last of *runs*, unless that fails.
        changes: Loader options that the dataset needs to work with no fault.
        cached: The files that the workers read, and that were made while the dataset was read.
        unusable_reason: Why the dataset does not work with these either, or None.
        ranks: What several ranks give, where settings ask for that.
    """

    _shares: tuple[Share, ...] = ()
    _drawn: int | None = None
    _own_samples: int | None = None

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings,
        *,
        attempts: Sequence[Mapping[str, Any]] = ({}, ONE_WORKER),
        known: KnownBaseline | None = None,
        is_sure: bool = False,
    ) -> None:
        """*attempts*: loader options for the fault-free epoch, and for more tries where it fails.

        *is_sure*: whether *known* is to be believed; otherwise the reference is taken again, and
        OutdatedBaselineError raised if it is another one.
        """
        check(make_dataset=make_dataset)
        self.make_dataset = make_dataset
        self.settings = replace(settings, engine=engine_for_files(settings.engine))
        self.contract = settings.contract
        self.deadlines = Deadlines(settings)
        self.comparison = known.comparison if known else EXACT
        self.changes: Mapping[str, Any] = {}
        self.whole_batches = bool(known and known.whole_batches)
        self.unusable_reason: str | None = None
        self._references = _ReferenceStore(make_dataset, self.settings, self.deadlines.learn)
        began = time.time_ns()
        if known is None:
            self._take(attempts)
        else:
            self._begin_with(known, is_sure=is_sure)
        self._from_start = known.from_start if known else None
        self._worker_epoch = known.worker_epoch if known else None
        self.ranks = Ranks(self, known.ranks if known else None)
        before = known.cached if known else ()
        self.cached = before or files_made_since(began, self.working)

    def _begin_with(self, known: KnownBaseline, *, is_sure: bool) -> None:
        self._references.limit(known.reference.limit)
        if is_sure:
            self._references.put(self.comparison, known.reference)
        elif self.reference != known.reference:
            raise OutdatedBaselineError
        self.runs, self.working, self.changes = [known.fault_free], known.working, known.changes
        self.deadlines.learn(self.fault_free.duration)
        self._shares, self._drawn = shares_of(self.fault_free), drawn_in(self.working)

    @property
    def fault_free(self) -> Outcome:
        """The epoch without a fault, with the loader as it was asked for."""
        return self.runs[-1]

    @property
    def known(self) -> KnownBaseline | None:
        """What another baseline of the dataset may begin with; None if something is wrong."""
        is_of_author = self.comparison.what is Compared.AUTHOR
        if self.unusable_reason or is_of_author or was_killed(self.fault_free):
            return None
        from_start = self._from_start
        if from_start is not None and was_killed(from_start.outcome):
            from_start = None
        parts = (self.reference, self.fault_free, self.working, self.changes)
        more = (self.comparison, self.cached, from_start, self.ranks.known)
        return KnownBaseline(*parts, *more, self._worker_epoch, self.whole_batches)

    @property
    def from_start(self) -> FollowedRun:
        """An epoch without a fault, in which files are followed from the constructor on."""
        if self._from_start is None:
            began = time.time_ns()
            run = self.run_fault_free(options=_WATCHED_FROM_START)[-1]
            self._from_start = FollowedRun.of(run, began, self.own_folders)
        return self._from_start

    @cached_property
    def second_call(self) -> Judgement | None:
        """The judgement on a second call of make_dataset with the same folder and no fault.

        None if it takes no folder: then each trial has called it again.
        """
        if not self.own_folders.paths:
            return None
        return self.judge(self.run_trial(options=_TWICE), Contract())

    @property
    def worker_epoch(self) -> WorkerEpoch:
        """An epoch of workers, if content of samples is known by that only."""
        if self._worker_epoch is None:
            self._worker_epoch = take_worker_epoch(self)
        return self._worker_epoch

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about every trial with faults of files."""
        return (note_on_cache(self.cached),) if self.cached else ()

    @property
    def own_folders(self) -> OwnFolders:
        """Where what a trial writes is its own."""
        return own_folders_of(self.make_dataset, self.settings)

    @property
    def reference(self) -> Reference:
        """What the dataset gives, by the baseline's comparison."""
        return self._references.by(self.comparison)

    @property
    def without_seeds(self) -> Comparison:
        """The baseline's comparison where random numbers are left as they are."""
        if self.comparison.seeded is None:
            return self.comparison
        stable = (
            each for each in (SHAPES, TYPES) if self._references.by(each).unstable_index is None
        )
        return next(stable, self.comparison)

    def handling(self, comparison: Comparison) -> SampleHandling:
        """What *comparison* takes: also the reference's samples, if the author compares them."""
        own = SampleHandling.of(self.contract, comparison)
        known = self.reference if comparison.in_workers else self._references.by(comparison)
        return own.knowing(known)

    @property
    def limited_settings(self) -> Settings:
        """The settings, with the number of samples that are looked at in fact."""
        return replace(self.settings, samples=self._references.samples)

    def run_trial(self, *faults: Fault, **how: Any) -> Outcome:
        """One trial; *how*: as for ``job``."""
        return run_trial_job(self.job(*faults, **how))

    def run_fault_free(self, **how: Any) -> list[Outcome]:
        """A trial without a fault, and another one if a process of it was killed."""
        return repeat_if_killed(lambda: self.run_trial(**how), was_killed)

    def job(
        self,
        *faults: Fault,
        changes: Mapping[str, Any] | None = None,
        comparison: Comparison | None = None,
        deadline: float | None = None,
        options: TrialOptions = ONE_EPOCH,
        may_take_longer: bool = True,
    ) -> TrialJob:
        """A trial; *changes*: loader options in place of the baseline's own changes."""
        comparison = comparison or self.comparison
        return TrialJob(
            make_dataset=self.make_dataset,
            faults=faults,
            settings=replace(self.limited_settings, deadline=deadline or self.deadlines.for_trial),
            changes=self.changes if changes is None else changes,
            comparison=comparison,
            handling=self.handling(comparison),
            options=replace(options, whole_batches=options.whole_batches or self.whole_batches),
            needs_workers=True,
            in_workers_only=self._references.by(comparison).is_of_worker,
            may_take_longer=may_take_longer,
            most_bytes=most_bytes_of(getattr(self, "working", None)),
        )

    def judge(self, outcome: Outcome, contract: Contract | None = None) -> Judgement:
        """The verdict on *outcome*, by *contract* or else by the baseline's own."""
        return judge(outcome, self.reference_for(outcome), contract or self.contract)

    def reference_for(self, outcome: Outcome) -> Reference:
        """The reference for *outcome*; samples that it does not know yet are taken now."""
        if outcome.ranks and self.settings.ranks != len(outcome.ranks):
            return self.reference
        if outcome.ranks:
            return self.ranks.reference_for(outcome, self.reference)
        if outcome.comparison.in_workers and (found := self.worker_epoch.reference):
            return replace(found, shares=self._shares, drawn=self._drawn)
        reference = self._references.for_outcome(outcome, self.comparison)
        return replace(reference, shares=self._shares, drawn=self._drawn)

    def _take(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Reference and fault-free epoch, by the most exact comparison that shows nothing wrong."""
        for each in self._comparisons():
            self.comparison = each
            if not (self._is_unstable or self._is_uncertain or self._is_endless):
                self._run_fault_free(attempts)
                self._own_samples = self._count_own_samples(attempts[0])
                is_done = self.unusable_reason is None or not self.comparison.allows_for_randomness
                if is_done and self._own_samples is None:
                    return
        if self._is_unstable:
            message = reference.nondeterminism_message(self.reference, self.contract)
            raise UnusableDatasetError(message)

    def _comparisons(self) -> Iterator[Comparison]:
        """Those of the contract that can be of use, once the one before has been tried."""
        for each in comparisons_for(self.contract, self.settings.seed):
            is_stream = bool(self._references) and self.reference.kind == "iterable"
            if each.seeded is None or not is_stream:
                yield each
                yield from self._without_varying_parts(each)
            own = self._own_samples is not None
            if (limit := self._own_samples if own else self.reference.stream_limit) is not None:
                yield from (replace(each, limit=limit, own=own) for each in (SHAPES, TYPES))
                return

    def _without_varying_parts(self, comparison: Comparison) -> Iterator[Comparison]:
        """*comparison* without the parts of samples that two readings did not agree on."""
        may_draw = comparison.seeded is None and self.reference.draws_random_numbers
        if comparison.what is not Compared.BYTES or self.contract.deterministic or may_draw:
            return
        for _ in range(_MOST_READINGS):
            levels = tuple((part.path, part.compared) for part in self.reference.varying)
            levels = merged(self.comparison.varying, levels)
            if not self._is_unstable or levels == self.comparison.varying:
                return
            yield replace(comparison, varying=levels)

    def _count_own_samples(self, options: Mapping[str, Any]) -> int | None:
        """How many random samples of its own each worker gave, where it did, or else None."""
        if self.comparison.limit is not None or self.reference.kind == "map":
            return None
        changes = _TWO_WORKERS if options == ONE_WORKER else options
        known = changes == options
        tried = self.fault_free if known else self.run_fault_free(changes=changes)[-1]
        if self.judge(tried, Contract()).passed:
            return None
        count = count_own_samples(tried, self.reference)
        if count is None or not self.comparison.is_of_content:
            return count
        # The reference was the same twice. What a race of the workers made would not be.
        return count if are_alike(tried, self.run_fault_free(changes=changes)[-1]) else None

    def can_make_whole_batches(self, outcome: Outcome) -> bool:
        """Whether there is time for batches as large as the loader's, if *outcome* has none."""
        known = len(self.reference.samples) or sum(len(each) for each, _ in self.reference.batches)
        needed = (outcome.reduced_from or 0) * max(1, len(outcome.workers))
        seconds = self.reference.duration / max(1, known) * needed
        return 0 < needed <= _MOST_IN_BATCHES and seconds <= self.deadlines.most / 2

    @property
    def draws_global_numbers(self) -> bool:
        """Whether samples draw numbers of generators that trials seed, as far as that was asked."""
        return self._references.draws_random_numbers

    @property
    def _is_unstable(self) -> bool:
        return self.reference.unstable_index is not None

    @property
    def _is_endless(self) -> bool:
        """Whether the stream did not end, and the comparison does not end it either."""
        return self.reference.stream_limit is not None and self.comparison.limit is None

    @property
    def _is_uncertain(self) -> bool:
        """Whether samples draw random numbers, which may have had no effect so far.

        Or whether too little of them is compared: nothing, or what many samples of a stream have.
        """
        if self.comparison.varying:
            rows = [digest for _, digest in self.reference.samples]
            is_same = self.reference.kind == "iterable" and len(set(rows)) * 2 < len(rows)
            return is_same or not self.reference.has_content
        is_asked = self.contract.deterministic is None and self.comparison == EXACT
        return is_asked and self.reference.draws_random_numbers

    def _run_fault_free(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Trials without a fault until one of them shows nothing wrong."""
        reference.require_samples(self.reference, self.contract)
        self.whole_batches |= self.reference.whole_batches
        runs = []
        for self.changes in attempts:
            progress.step(f"with workers (without them it took {self.reference.duration:.1f} s)")
            runs.append(self.run_fault_free(options=_WATCHED))
            latest = runs[-1][-1]
            self.deadlines.learn(0 if latest.timed_out else latest.duration)
            found = self.judge(latest, Contract())
            if not found.passed and self.can_make_whole_batches(latest):
                self.whole_batches = True
                runs[-1] = self.run_fault_free(options=_WATCHED)
                latest = runs[-1][-1]
                found = self.judge(latest, Contract())
            if found.passed:
                break
        self.runs, self.working = runs[0], latest
        why = f"with one worker and no fault it fails already ({found.sentence}); see workers-agree"
        self.unusable_reason = None if found.passed else why
        self._shares = shares_of(self.working) if found.passed else ()
        self._drawn = drawn_in(self.working) if found.passed else None


_MOST_IN_BATCHES = 1024
"""Samples that are looked at for a batch of the loader's own size for each worker."""
_MOST_READINGS = 3
"""A part that varies rarely may be the same twice in the first of them."""
_ENOUGH_SECONDS = 5.0
"""Where this many would take longer, fewer are looked at."""


class _ReferenceStore:
    """What the dataset gives, by comparison.

    The first one may settle for fewer samples than *settings* say, and the others do as it does.
    *learn* is told how long each reference took, in seconds.
    """

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings,
        learn: Callable[[float], None],
    ) -> None:
        self._make_dataset = make_dataset
        self._settings = settings
        self._seconds = _ENOUGH_SECONDS if settings.samples == SAMPLES else None
        self._learn = learn
        self._known: dict[Comparison, Reference] = {}

    @property
    def samples(self) -> int | None:
        """About how many samples are looked at; None for all."""
        return self._settings.samples

    def __bool__(self) -> bool:
        """Whether one has been taken."""
        return bool(self._known)

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a reference shows that samples draw numbers of the global generators."""
        return any(each.draws_random_numbers for each in self._known.values())

    def put(self, comparison: Comparison, known: Reference) -> None:
        """Take *known* for the reference by *comparison*."""
        self._known[comparison] = known

    def limit(self, samples: int | None) -> None:
        """Look at this many *samples*, and at no fewer."""
        self._settings, self._seconds = replace(self._settings, samples=samples), None

    def by(self, comparison: Comparison) -> Reference:
        """The reference by *comparison*."""
        if comparison not in self._known:
            progress.step("without workers")
            found = self._take(comparison, seconds=self._seconds)
            self._learn(found.duration)
            self._known[comparison] = found
            self.limit(found.limit)  # From now on the same for all.
        return self._known[comparison]

    def for_outcome(self, outcome: Outcome, otherwise: Comparison) -> Reference:
        """The reference for *outcome*; samples that it does not know yet are taken now.

        *otherwise*: the comparison to take where the outcome's own has no reference.
        """
        comparison = outcome.comparison if outcome.comparison in self._known else otherwise
        reference = self.by(comparison)
        if unknown := reference.unknown_batches(outcome):
            packed = dict(outcome.packed_draws)
            batches = [(indices, packed.get(indices)) for indices in unknown]
            more = self._take(comparison, batches=batches)
            self._known[comparison] = reference = reference.merged_with(more)
        return reference

    def _take(self, comparison: Comparison, **how: Any) -> Reference:
        handling = SampleHandling.of(self._settings.contract, comparison)
        how |= {"comparison": comparison, "handling": handling}
        return take_reference(self._make_dataset, self._settings, **how)


def own_folders_of(make_dataset: DatasetFactory, settings: Settings) -> OwnFolders:
    """The folder that *make_dataset* gets in each trial, if it takes one."""
    return OwnFolders(bound(make_dataset, copy=settings.copy)[1], settings.copy)


class OutdatedBaselineError(Exception):
    """The dataset gives other samples than the ones that are known."""


@dataclass(frozen=True)
class KnownBaseline:
    """What another baseline of the same dataset may begin with. Plain data."""

    reference: Reference
    fault_free: Outcome
    working: Outcome
    changes: Mapping[str, Any]
    comparison: Comparison = EXACT
    cached: tuple[str, ...] = ()
    from_start: FollowedRun | None = None
    ranks: KnownRanks | None = None
    worker_epoch: WorkerEpoch | None = None
    whole_batches: bool = False
