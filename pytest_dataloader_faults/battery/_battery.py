"""One dataset under the checks' faults: which trials are run, and what they show together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import ONE_EPOCH, TrialOptions
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults._trial.factory import DatasetFactory, PartOf, is_a
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.baseline import Baseline, KnownBaseline
from pytest_dataloader_faults.battery.checks import (
    CHECKS,
    RANKS_AGREE,
    WITHOUT_RANKS,
    Check,
    Variant,
)
from pytest_dataloader_faults.battery.targets import require_match
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ClosedDescriptor, Fault, OpenError, ReadError, has_files
from pytest_dataloader_faults.globs import host_of
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Verdict
from pytest_dataloader_faults.outcomes.contract import Comparison
from pytest_dataloader_faults.outcomes.judge import repeats
from pytest_dataloader_faults.outcomes.judge.causes import is_alike, is_without_error
from pytest_dataloader_faults.outcomes.judge.hangs import (
    goes_on,
    is_at,
    places_of,
    tries_again,
)
from pytest_dataloader_faults.outcomes.judge.repeats import Conclusion, Trial
from pytest_dataloader_faults.outcomes.judge.report import note_on
from pytest_dataloader_faults.outcomes.text import (
    call,
    counted,
    listed,
    were,
)

_ORDINARY = Settings()
WORKERS_AGREE = "workers-agree"
_OF_DEADLINE = 0.8
"""The part of a deadline for which a loader waits: its end needs time, too."""
_OF_CONNECTIONS = "checks of files say nothing of what comes through them"
_ENOUGH_SOUND_RUNS = 3
"""So many trials with no fault show that what fails does so by its fault."""
_KERNEL_ONLY = (
    "files can be bad before the dataset is made with the kernel engine only: the python engine"
    " replaces file access in workers"
)
_RANKS_FAIL = "with no fault, its ranks fail already ({}); see ranks-agree"
_FAILS_FOLLOWED = (
    "with no fault, but with its files followed from its constructor on, it fails already: {}"
)
_FAILS_AGAIN = "it raised {} with no fault, while its constructor was followed"
_NOT_FOLLOWED = "its constructor cannot be followed"
_SWEEP = Check("sweep", "handles the failure of one operation")
_SWEEP_FROM_START = replace(_SWEEP, options=TrialOptions(from_start=True))
_SWEEPS = (_SWEEP, _SWEEP_FROM_START)


@dataclass
class Memory:
    """What checks have found that the next ones of the same dataset may use.

    Attributes:
        hangs: Where the dataset has hung, and under which check.
        alone: What it does at times with no fault, if it hangs or dies then.
        sound_runs: How many trials looked for that, and went well.
    """

    hangs: dict[str, str] = field(default_factory=dict)
    alone: str = ""
    sound_runs: int = 0


class Battery:
    """A dataset, and what it does when nothing is wrong."""

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings = _ORDINARY,
        *,
        known: KnownBaseline | None = None,
        is_sure: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """*memory*: what earlier checks have found; it is added to."""
        self.memory = memory or Memory()
        self.hangs = self.memory.hangs
        self._after_errors: dict[tuple[tuple[str, ...], TrialOptions], Trial | None] = {}
        with progress.stage("first reading"):
            self.baseline = Baseline(make_dataset, settings, known=known, is_sure=is_sure)
        self.workload = Workload.of(
            self.baseline.working,
            self.baseline.settings.files,
            self.baseline.own_folders,
            self.baseline.cached,
            self.baseline.reference,
        )
        if not self.baseline.unusable_reason:
            require_match(self.baseline.settings.files, self.baseline.working)

    def check(self, name: str, *, should_fail: bool = False) -> Conclusion | NotApplicable:
        """Run the trial of one check, and those that confirm it where it is not as expected."""
        check = CHECKS[name]
        if check.gpu and (lacking := missing_accelerator()):
            return NotApplicable(lacking)
        if check.ranks and self.baseline.settings.ranks is None:
            return NotApplicable(WITHOUT_RANKS)
        if self.baseline.unusable_reason and name != WORKERS_AGREE:
            return NotApplicable(self.baseline.unusable_reason)
        workload = self._workload_for(check)
        plan = workload if isinstance(workload, NotApplicable) else check.plan(workload)
        if isinstance(plan, NotApplicable):
            return plan
        return self._ask(check, plan, should_fail)

    def _workload_for(self, check: Check) -> Workload | NotApplicable:
        if check.options.from_start:
            found = self.from_start
            return found if isinstance(found, NotApplicable) else self.rewrites or found
        of_ranks = check.ranks and check.name != RANKS_AGREE
        return self.faulty_rank if of_ranks else self.workload

    @cached_property
    def faulty_rank(self) -> Workload | NotApplicable:
        """What the workers of the rank that gets the faults do when nothing is wrong."""
        run = self.baseline.ranks.fault_free
        judgement = self.baseline.judge(run, Contract())
        if not judgement.passed:
            reason = _RANKS_FAIL.format(judgement.sentence)
            return NotApplicable(reason, "its ranks do not agree", _fatal(run, judgement))
        return Workload.of(run.ranks[self.baseline.ranks.faulty], self.baseline.settings.files)

    @cached_property
    def from_start(self) -> Workload | NotApplicable:
        """What the constructor, the loader's process and the workers do when nothing is wrong."""
        if self.baseline.settings.engine == "python":
            return NotApplicable(_KERNEL_ONLY)
        found, files = self.baseline.from_start, self.baseline.settings.files
        run = found.outcome
        judgement = self.baseline.judge(run, Contract())
        if not judgement.passed:
            failed = _FAILS_AGAIN.format(run.exception.type) if run.exception else _NOT_FOLLOWED
            reason = _FAILS_FOLLOWED.format(judgement.sentence)
            return NotApplicable(reason, failed, _fatal(run, judgement))
        followed = replace(run, workers=run.processes)
        return Workload.of(followed, files, self.baseline.own_folders)

    @property
    def rewrites(self) -> NotApplicable | None:
        """Why no file can be damaged beforehand, if that is because each run writes them."""
        found = self.baseline.from_start
        refusal = found.refusal(self.baseline.settings.files)
        return refusal and NotApplicable(refusal[0], found.writer, remedy=refusal[1])

    @property
    def copies_sources(self) -> bool:
        """Whether make_dataset copies files that it reads into the folder that it takes."""
        own, main = self.baseline.own_folders, self.baseline.from_start.outcome.main
        files = {path for worker in self.baseline.working.workers for path in worker.files}
        made = set(map(os.path.basename, filter(own.is_made_by_dataset, files)))
        return main is not None and any(os.path.basename(path) in made for path in main.files)

    @property
    def fails_followed(self) -> bool:
        """Whether it was tried with no fault in another way than the baseline, and failed."""
        tried = (vars(self).get(name) for name in ("from_start", "faulty_rank"))
        return any(isinstance(each, NotApplicable) for each in tried)

    def notes_on(self, outcome: Outcome) -> tuple[str, ...]:
        """What the reader of the result of *outcome* should know of the dataset."""
        noted = (*self._note_on_comparison(outcome.comparison), *self._note_on_connections())
        reference = self.baseline.reference
        seen = len(reference.samples) or sum(len(batch) for batch, _ in reference.batches)
        if reference.limit is None or reference.total is None or seen >= reference.total:
            return noted
        return (
            f"{seen:,} of {counted(reference.total, 'sample', ',')} {were(seen)} looked at",
            *noted,
        )

    def notes_on_files(self, *, from_start: bool) -> tuple[str, ...]:
        """What the reader of each result about files should know of the dataset."""
        base = self.baseline
        at_rest = base.from_start.notes(base.settings.files) if from_start else ()
        return (*base.notes, *at_rest)

    def _note_on_comparison(self, comparison: Comparison) -> Iterator[str]:
        """What a trial did not compare, unless its check leaves random numbers as they are."""
        is_looser = self.baseline.comparison.is_of_content and not comparison.is_of_content
        draws = self.baseline.draws_global_numbers
        return iter(()) if is_looser else note_on(comparison, draws=draws)

    def _note_on_connections(self) -> tuple[str, ...]:
        """What came through a network, since a check of files says nothing of it."""
        workers = self.baseline.working.workers
        # A server of a test may have another port in each of its items.
        hosts = sorted({host_of(path) for worker in workers for path in worker.connections})
        if not hosts:
            return ()
        return (f"the workers made TCP connections to {listed(hosts)}: {_OF_CONNECTIONS}",)

    def catches_errors(self, trial: Trial) -> bool:
        """Whether *trial*, of bad content, shows what the dataset does after an error, too."""
        if not is_without_error(trial.outcome, trial.judgement):
            return False
        path = next(each.fault.globs for each in trial.outcome.faults if each.fired)
        after_error = self._after_error(path, TrialOptions(from_start=trial.outcome.from_start))
        reference = self.baseline.reference_for(trial.outcome)
        return after_error is not None and is_alike(trial, after_error, reference)

    def _after_error(self, path: tuple[str, ...], options: TrialOptions) -> Trial | None:
        """What happens where the files *path* cannot be opened, or else not be read."""
        key = path, options
        if key not in self._after_errors:
            errors = OpenError(path), ReadError(path)
            trials = (self._with_error(each, options) for each in errors)
            self._after_errors[key] = next((each for each in trials if each.outcome.fired), None)
        return self._after_errors[key]

    def _with_error(self, fault: Fault, options: TrialOptions) -> Trial:
        deadline = self.baseline.deadlines.for_look
        outcome = self.baseline.run_trial(fault, deadline=deadline, options=options)
        return Trial(outcome, self.baseline.judge(outcome))

    def run_faults(self, *faults: Fault, from_start: bool = False) -> Conclusion:
        """Run *faults* as no check does, and repeat a trial that fails."""
        check = _SWEEP_FROM_START if from_start else _SWEEP
        found = self._run(check, Variant(faults), should_fail=False)
        assert isinstance(found, Conclusion)
        return found

    def _ask(
        self, check: Check, variants: tuple[Variant, ...], should_fail: bool
    ) -> Conclusion | NotApplicable:
        """Run the variants until one fails; those that do not apply are left out.

        So are files that no worker uses in the trial, as locks whose name is new each time, unless
        there are no others.
        """
        found: list[tuple[str, Conclusion]] = []
        unused: list[tuple[str, Conclusion]] = []
        refused: list[NotApplicable] = []
        for each in variants:
            result = self._run(check, each, should_fail)
            if isinstance(result, NotApplicable):
                refused.append(result)
                continue
            result = self._compared(check, each, result)
            if _met_no_file(result):
                unused.append((each.title, result))
                continue
            found.append((each.title, result))
            if result.reproduced and not result.trial.judgement.passed:
                break
        return repeats.combine(found or unused) if found or unused else refused[0]

    def _run(self, check: Check, variant: Variant, should_fail: bool) -> Conclusion | NotApplicable:
        trials: list[Trial] = []
        while repeats.needs_another(trials, should_fail=should_fail):
            outcome = self._outcome(check, variant, trials)
            if isinstance(outcome, NotApplicable):
                return outcome
            if refusal := self._refusal(check, variant, outcome):
                return refusal
            trials.append(self._judged(check, variant, outcome, trials))
            if unseen := self._unseen(variant, trials[-1]):
                return unseen
            if self._may_be_of_small_batches(trials[-1]):
                return self._run(check, replace(variant, whole_batches=True), should_fail)
            if check in _SWEEPS and trials[0].judgement.verdict is Verdict.NOT_EXERCISED:
                break  # The end of a sweep's row, and no failure.
            if len(trials) == 1 and is_at(outcome, self.hangs):
                return Conclusion(trials[0], notes=(self._as_before(outcome),), trials=(trials[0],))
        return self._concluded(check, trials)

    def _refusal(self, check: Check, variant: Variant, outcome: Outcome) -> NotApplicable | None:
        """Why *outcome* shows that *check* does not apply; a killed process shows no such thing."""
        if repeats.was_killed(outcome):
            return None
        return check.skip_reason(self.workload, outcome) or variant.skip_reason(outcome)

    def _may_be_of_small_batches(self, trial: Trial) -> bool:
        """Whether it fails, and may pass with batches as large as the loader makes them."""
        is_failure = not trial.judgement.passed
        is_failure &= trial.judgement.verdict is not Verdict.NOT_EXERCISED
        return is_failure and self.baseline.can_make_whole_batches(trial.outcome)

    def _unseen(self, variant: Variant, trial: Trial) -> NotApplicable | None:
        """Why it shows nothing that a long stream survives faults of files, where that is so."""
        limit = self.baseline.comparison.limit
        if limit is None or trial.judgement.verdict is not Verdict.SURVIVED:
            return None
        if not any(map(has_files, variant.faults)):
            return None
        if self.baseline.comparison.own:
            return NotApplicable(
                f"its samples are random, {limit} of its own in each worker: only types and shapes"
                " are compared, which do not show what a fault left out. Give the test a stream"
                " that returns the same samples each time",
                "its samples are random",
            )
        return NotApplicable(
            "the stream has no end, or a late one: of the first"
            f" {counted(limit, 'sample')} of each worker"
            " only types and shapes are compared, which do not show what a fault left out."
            " Give the test a stream that ends, with fewer than 10,000 samples",
            "its stream has no end, or a late one",
        )

    def _compared(self, check: Check, variant: Variant, found: Conclusion) -> Conclusion:
        """*found*; where the dataset hangs or dies, with what it does then with no fault."""
        memory = self.memory
        if check.name == WORKERS_AGREE or not repeats.hangs_or_dies(found.trial):
            return found
        # The trials of a check without a fault are such trials themselves, and have a cause.
        if variant.faults and not memory.alone and memory.sound_runs < _ENOUGH_SOUND_RUNS:
            changes = self._changes_for(check, variant)
            outcome = self.baseline.run_trial(changes=changes, may_take_longer=False)
            judgement = self.baseline.judge(outcome, Contract())
            memory.alone = repeats.told_alone(Trial(outcome, judgement))
            memory.sound_runs += not memory.alone
        return replace(found, alone=memory.alone)

    def _concluded(self, check: Check, trials: list[Trial]) -> Conclusion:
        """What *trials* show together; where a hang is confirmed, its place is kept."""
        if len(trials) > 1 and all(each.outcome.timed_out for each in trials):
            for place in _places(trials):
                self.hangs.setdefault(place, check.name)
        return replace(repeats.conclude(trials, self.baseline.fault_free), trials=tuple(trials))

    def _as_before(self, outcome: Outcome) -> str:
        place = min(places_of(outcome))
        return f"it hangs at {place}, where two trials of {self.hangs[place]} hung"

    def _outcome(
        self, check: Check, variant: Variant, before: list[Trial]
    ) -> Outcome | NotApplicable:
        """One trial; not applicable where the python engine cannot make the faults happen.

        Where the dataset has hung before, a look at an early time tells whether it is there again.
        After a fault that passes, it may be there for a while and go on. One that was slow once
        gets no more than its deadline for a second trial.
        """
        if runs := self._runs_of(check, variant)[len(before) :]:
            return runs[0]
        known = self.hangs.keys() | _places(before)
        may_go_on = not before and any(getattr(each, "times", None) for each in variant.faults)
        early = self.baseline.deadlines.for_look if known and not may_go_on else None
        was_slow = bool(before) and goes_on(before[-1].outcome)
        try:
            outcome = self._trial(check, variant, early, may_take_longer=not (early or was_slow))
            if early and outcome.timed_out and (tries_again(outcome) or not is_at(outcome, known)):
                # It is slow, it hangs elsewhere, or it may have a limit of its own.
                outcome = self._trial(check, variant, may_take_longer=not was_slow)
        except InvalidArgumentError as error:
            if check in _SWEEPS or self.baseline.settings.engine != "python":
                raise
            return NotApplicable(str(error))
        return outcome

    def _runs_of(self, check: Check, variant: Variant) -> list[Outcome]:
        """The first trials of *check*, if the baseline has made them."""
        if variant.whole_batches:
            return []
        if check.name == WORKERS_AGREE and not variant.changes:
            return self.baseline.runs
        return self.baseline.ranks.runs if check.name == RANKS_AGREE else []

    def _judged(
        self, check: Check, variant: Variant, outcome: Outcome, before: list[Trial]
    ) -> Trial:
        """The trial that counts: one that would hang for want of patience is run with more.

        A client may have a limit that cannot be seen, by a signal or in another thread.
        """
        trial = Trial(outcome, self._judge(outcome, check, variant))
        is_known = any(each.judgement.verdict is Verdict.HUNG for each in before)
        is_hung = trial.judgement.verdict is Verdict.HUNG and not outcome.timed_out
        if check.options.patience is None or is_known or not is_hung:
            return trial
        patient = replace(check.options, patience=_OF_DEADLINE * self.baseline.deadlines.for_trial)
        outcome = self._trial(replace(check, options=patient), variant)
        return Trial(outcome, self._judge(outcome, check, variant))

    def _trial(
        self,
        check: Check,
        variant: Variant,
        deadline: float | None = None,
        *,
        may_take_longer: bool = True,
    ) -> Outcome:
        options, alone = check.options, check.name == WORKERS_AGREE
        if options.footprints is not None:
            options = replace(options, footprints=self.baseline.deadlines.most / 2)
        options = replace(
            options,
            resume=variant.resume,
            same_draws=variant.same_draws,
            whole_batches=variant.whole_batches,
        )
        source = self.baseline.ranks if check.ranks else self.baseline
        run = partial(
            source.run_trial,
            *variant.faults,
            changes=variant.changes if alone else self._changes_for(check, variant),
            deadline=deadline,
            may_take_longer=may_take_longer,
        )
        if _is_like_worker_epoch(check, variant):
            epoch = self.baseline.worker_epoch
            in_order = replace(options, same_order=True)
            if epoch.reference:
                outcome = run(comparison=epoch.reference.comparison, options=in_order)
                if epoch.is_comparable(outcome):
                    return outcome
        comparison = self.baseline.without_seeds if check.keep_randomness else None
        return run(comparison=comparison, options=options)

    def _changes_for(self, check: Check, variant: Variant) -> dict[str, Any]:
        return {**self.baseline.changes, **check.changes, **variant.changes}

    def _judge(self, outcome: Outcome, check: Check, variant: Variant) -> Judgement:
        judgement = self._judge_as(outcome, check)
        if not variant.circumstance:
            return judgement
        return replace(judgement, sentence=f"{variant.circumstance}, {judgement.sentence}")

    def _judge_as(self, outcome: Outcome, check: Check) -> Judgement:
        judgement = self.baseline.judge(outcome)
        if judgement.verdict is Verdict.POISONED and outcome.from_start:
            second = self.baseline.second_call
            if second is not None and not second.passed:
                return second
        # What a check looks for is graver than an error with the wrong words.
        if not judgement.passed and judgement.verdict is not Verdict.FAILED_UNCLEARLY:
            return judgement
        found = check.extra_rule(outcome, self.baseline.reference_for(outcome))
        return Judgement(found.verdict, found.sentence, False, found.kind) if found else judgement

    def reproduce(self, name: str, **given: Any) -> str:
        """The call of *name* that repeats a trial, with *given* and the settings that differ."""
        base = self.baseline
        return call(
            name,
            str(base.make_dataset) if is_a(base.make_dataset, PartOf) else "make_dataset",
            **given,
            **base.settings.as_arguments(),
        )


def _fatal(run: Outcome, judgement: Judgement) -> Trial | None:
    """The trial, if a process of its *run* was killed."""
    return Trial(run, judgement) if repeats.was_killed(run) else None


def _is_like_worker_epoch(check: Check, variant: Variant) -> bool:
    """Whether new workers make one epoch, in which no error is over before the next attempt."""
    is_changed = check.changes or variant.changes or check.ranks or check.name == WORKERS_AGREE
    has_retries = any(map(_may_be_over, variant.faults))
    options = replace(check.options, patience=None, from_start=False)
    is_one_epoch = options == ONE_EPOCH and variant.resume is None
    return bool(variant.faults) and is_one_epoch and not (is_changed or has_retries)


def _may_be_over(fault: Fault) -> bool:
    """Whether *fault* does not hit a second attempt, before which random numbers were drawn."""
    return isinstance(fault, ClosedDescriptor) or bool(
        fault.errno and getattr(fault, "times", None)
    )


def _places(trials: list[Trial]) -> frozenset[str]:
    return frozenset[str]().union(*(places_of(each.outcome) for each in trials))


def _met_no_file(result: Conclusion) -> bool:
    """Whether no worker did anything that the faults are about."""
    trial = result.trial
    reached = any(each.reached for each in trial.outcome.faults)
    return trial.judgement.verdict is Verdict.NOT_EXERCISED and not reached
