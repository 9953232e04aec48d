"""One dataset under the faults of the checks: the trials that run, and their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, PartOf
from pytest_dataloader_faults.battery import at_rest
from pytest_dataloader_faults.battery.checks import (
    CHECKS,
    RANKS_AGREE,
    WORKERS_AGREE,
    Check,
    Scenario,
    Scenarios,
    missing_requirement,
)
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.battery.ranks import FaultFreeRanks, find_ranks
from pytest_dataloader_faults.battery.targets import require_match
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, map_applicable
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ClosedDescriptor, Fault, has_files
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    Contract,
    Finding,
    Outcome,
    Verdict,
    repeats,
)
from pytest_dataloader_faults.outcomes.judge import explain_refusal, find_refusal, judge
from pytest_dataloader_faults.outcomes.judge.causes import INTERMITTENT
from pytest_dataloader_faults.outcomes.judge.hangs import (
    hang_places,
    hangs_at,
    lasting_places,
    makes_progress,
    was_computing,
)
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.outcomes.text import call, pluralize
from pytest_dataloader_faults.steps import Processes, run_epochs

_ORDINARY = Settings()
_SHARE_OF_DEADLINE = 0.8
"""The share of a deadline for which a loader waits, because stopping it takes time as well."""
_SWEEP = Check("sweep", "handles the failure of one operation", lambda _: (Scenario(),))


class Battery:
    """A dataset, and its fault-free run.

    Attributes:
        hangs: The check in which the dataset hung, by the place. A trial of another check that
            hangs there as well is not repeated, and gets an early deadline. Nothing else of one
            check has an effect on the next.
    """

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings = _ORDINARY,
        *,
        hangs: dict[str, str] | None = None,
    ) -> None:
        """*hangs*: those of an earlier battery of this dataset; this one adds to them."""
        self.hangs = {} if hangs is None else hangs
        self.fault_free_run = run = FaultFreeRun(make_dataset, settings)
        self.workload = run.workload
        if not run.unusable_reason:
            require_match(run.settings.files, run.followed.outcome if run.followed else run.working)

    def check(self, name: str, *, should_fail: bool = False) -> CheckResult:
        """Run the trial of one check, and repeat it if its result is not the expected one.

        Raises NotApplicable if the check does not apply to the dataset.
        """
        check = CHECKS[name]
        return self._run_scenarios(check, self._plan_scenarios(check), should_fail)

    def _plan_scenarios(self, check: Check) -> Scenarios:
        """The scenarios of *check*; raises NotApplicable if it does not apply."""
        if check.scenario.uses_accelerator:
            from pytest_dataloader_faults._trial.resources import missing_accelerator  # and torch

            if lacking := missing_accelerator():
                raise NotApplicable(lacking)
        if requirement := missing_requirement(check, self.fault_free_run.settings):
            raise NotApplicable(requirement)
        if self.fault_free_run.unusable_reason and check.name != WORKERS_AGREE:
            raise NotApplicable(self.fault_free_run.unusable_reason)
        is_fault_free = check.name == RANKS_AGREE
        workload = self.workload if is_fault_free else self.workload_for(check.scenario)
        return check.plan_scenarios(workload)

    def workload_for(self, scenario: Scenario) -> Workload:
        """What the processes do that faults of *scenario* can hit; or raises NotApplicable."""
        if scenario.ranks:
            return self._ranks.workload
        if not scenario.is_before_init:
            return self.workload
        at_rest = self.workload.at_rest[0]
        if not at_rest.is_at_rest and at_rest.refusal is not None:
            raise at_rest.refusal
        return at_rest

    @property
    def _ranks(self) -> FaultFreeRanks:
        return find_ranks(self.fault_free_run, CHECKS[RANKS_AGREE].scenario.options)

    def run_faults(self, *faults: Fault, processes: Processes) -> CheckResult:
        """Run *faults* that belong to no check, and repeat a trial that fails."""
        scenario = Scenario(faults=faults, processes=processes)
        return self._confirm(_SWEEP, scenario, should_fail=False)

    def _run_scenarios(
        self,
        check: Check,
        scenarios: tuple[Scenario, ...],
        should_fail: bool,
        is_enough: Callable[[CheckResult], bool] = repeats.is_worst,
    ) -> CheckResult:
        """Run the scenarios that apply, until a result *is_enough*."""
        results: list[tuple[str, CheckResult]] = []
        inapplicable: list[NotApplicable] = []

        def run_scenario(scenario: Scenario) -> tuple[str, CheckResult]:
            result = self._run_scenario(check, scenario, should_fail)
            return scenario.title, self._annotate(scenario, result)

        needed = (each for each in scenarios if _is_needed(each, results))
        for title, result in map_applicable(run_scenario, needed, inapplicable):
            results.append((title, result))
            if is_enough(result):
                break
        result = repeats.combine(results, need_fire=bool(check.origin))
        untested = (f"not tested: {each.full_reason}" for each in inapplicable if each.remedy)
        return replace(result, notes=(*result.notes, *untested))

    def _run_scenario(self, check: Check, scenario: Scenario, should_fail: bool) -> CheckResult:
        """The result of *scenario*; if it fails, that of the first of its parts that does."""
        if not scenario.parts:
            return self._confirm(check, scenario, should_fail)
        whole = self._run_whole(check, scenario)
        if whole is not None and whole.finding.passed:
            return self._confirm(check, scenario, should_fail, [whole])
        result = self._run_scenarios(check, scenario.parts, should_fail, repeats.is_confirmed)
        if whole is not None and result.passed:
            with contextlib.suppress(NotApplicable):
                again = self._run_next_trial(check, scenario, [])
                if again.finding.passed:  # No part fails, but the dataset fails at times.
                    return self._confirm(check, scenario, should_fail, [whole, again])
        return result

    def _run_whole(self, check: Check, scenario: Scenario) -> JudgedTrial | None:
        """The trial of a *scenario* that has parts; None if it proves nothing."""
        with contextlib.suppress(NotApplicable):  # Some of its parts may apply.
            return self._run_next_trial(check, scenario, [])
        return None

    def _confirm(
        self,
        check: Check,
        scenario: Scenario,
        should_fail: bool,
        earlier: Iterable[JudgedTrial] = (),
    ) -> CheckResult:
        """The result of *scenario*, which is repeated after the *earlier* trials if need be."""
        trials = [*earlier]
        while repeats.needs_another_trial(trials, should_fail=should_fail):
            if len(trials) == 1 and hangs_at(trials[0].outcome, self.hangs):
                result = self._conclude(check, trials)
                return replace(result, notes=(self._hang_note(trials[0].outcome),))
            trials.append(self._run_next_trial(check, scenario, trials))
            if check is _SWEEP and trials[0].finding.verdict is Verdict.NOT_EXERCISED:
                break  # The end of a sweep's row, and no failure.
        return self._conclude(check, trials)

    def _run_next_trial(
        self, check: Check, scenario: Scenario, trials: list[JudgedTrial]
    ) -> JudgedTrial:
        """Run one trial, and judge it; raises NotApplicable if it proves nothing."""
        outcome = self._run_in_time(check, scenario, trials)
        if not repeats.was_killed(outcome):
            check.require_effect(scenario, self.workload, outcome)
        trial = self._judge_patiently(check, scenario, outcome, trials)
        self._require_compared_content(scenario, trial)
        return trial

    def _require_compared_content(self, scenario: Scenario, trial: JudgedTrial) -> None:
        """Raise NotApplicable if a long stream survives file faults, which shows nothing."""
        limit = self.fault_free_run.comparison.limit
        if limit is None or trial.finding.verdict is not Verdict.SURVIVED:
            return
        has_raised = any(epoch.exception for epoch in trial.outcome.epochs)
        if has_raised or not any(map(has_files, scenario.faults)):
            return
        if self.fault_free_run.comparison.differs_per_worker:
            raise NotApplicable(
                f"its samples are random, and each worker draws its own {limit}: only types and"
                " shapes are compared, which do not show the effect of a fault. Use a stream that"
                " returns the same samples each time in the test",
                "its samples are random",
            )
        raise NotApplicable(
            f"the stream is endless or very long: of the first {pluralize(limit, 'sample')} of each"
            " worker only types and shapes are compared, which do not show the effect of a fault."
            " Use a finite stream of fewer than 10,000 samples in the test",
            "its stream is endless or very long",
        )

    def _annotate(self, scenario: Scenario, result: CheckResult) -> CheckResult:
        """*result*; if the dataset hung or died, whether it does so without the faults as well."""
        # The trials of a scenario without faults show that themselves, and have their own cause.
        if not scenario.faults or not repeats.hangs_or_dies(repeats.deciding_trial(result)):
            return result
        changes = self._changes_for(scenario)
        outcome = self.fault_free_run.run_trial(changes=changes, may_take_longer=False)
        finding = self.fault_free_run.judge(outcome, Contract())
        if finding.passed:
            return result
        note = repeats.describe_fault_free_failure(JudgedTrial(outcome, finding))
        finding = replace(result.finding, cause=INTERMITTENT, library="")
        return replace(result, finding=finding, notes=(note, *result.notes))

    def _conclude(self, check: Check, trials: list[JudgedTrial]) -> CheckResult:
        """What *trials* show together. The lasting places of a confirmed hang are remembered."""
        if len(trials) > 1 and all(each.outcome.timed_out for each in trials):
            for place in _union(lasting_places(each.outcome) for each in trials):
                self.hangs.setdefault(place, check.name)
        return repeats.conclude(check.name, trials, self.fault_free_run.outcome)

    def _hang_note(self, outcome: Outcome) -> str:
        place = min(hang_places(outcome))
        return f"it hangs at {place}, where two trials of {self.hangs[place]} also hung"

    def _run_in_time(self, check: Check, scenario: Scenario, trials: list[JudgedTrial]) -> Outcome:
        """One trial.

        If the dataset has hung before, an early deadline shows whether it hangs there again. But
        after a fault that does not last, the dataset may stay there for a while, and then continue.
        If the first trial was slow, the deadline of the second one is not extended.
        """
        if runs := self._runs_of(check, scenario)[len(trials) :]:
            return runs[0]
        known_places = self.hangs.keys() | _union(hang_places(each.outcome) for each in trials)
        may_go_on = not trials and any(getattr(each, "times", None) for each in scenario.faults)
        early = self.fault_free_run.deadlines.for_look if known_places and not may_go_on else None
        slow = bool(trials) and makes_progress(trials[-1].outcome)
        try:
            outcome = self._run_trial(check, scenario, early, may_take_longer=not (early or slow))
            if (
                early
                and outcome.timed_out
                and (was_computing(outcome) or not hangs_at(outcome, known_places))
            ):
                # The dataset is slow, hangs elsewhere, or may have its own timeout.
                outcome = self._run_trial(check, scenario, may_take_longer=not slow)
        except InvalidArgumentError as error:
            if check.origin:
                raise check.error(str(error)) from error
            raise
        return outcome

    def _runs_of(self, check: Check, scenario: Scenario) -> list[Outcome]:
        """The first trials of *check*, if they have already run for another purpose."""
        is_fault_free = check.name in (WORKERS_AGREE, RANKS_AGREE)
        if not is_fault_free or scenario.loader or scenario.processes != check.scenario.processes:
            return []
        return list((self._ranks if scenario.ranks else self.fault_free_run).runs)

    def _judge_patiently(
        self, check: Check, scenario: Scenario, outcome: Outcome, trials: list[JudgedTrial]
    ) -> JudgedTrial:
        """The trial that counts: if the loader's timeout was too short, a trial with a longer one.

        A client may have a timeout that the engine cannot see, in a signal or in another thread.
        """
        trial = JudgedTrial(outcome, self._judge(outcome, check, scenario))
        is_known = any(each.finding.verdict is Verdict.HUNG for each in trials)
        is_hung = trial.finding.verdict is Verdict.HUNG and not outcome.timed_out
        if scenario.patience is None or is_known or not is_hung:
            return trial
        patience = _SHARE_OF_DEADLINE * self.fault_free_run.deadlines.for_trial
        outcome = self._run_trial(check, replace(scenario, patience=patience))
        return JudgedTrial(outcome, self._judge(outcome, check, scenario))

    def _run_trial(
        self,
        check: Check,
        scenario: Scenario,
        deadline: float | None = None,
        *,
        may_take_longer: bool = True,
    ) -> Outcome:
        fault_free_run = self.fault_free_run
        is_alone = check.name == WORKERS_AGREE
        comparison = fault_free_run.without_seeds if scenario.keep_randomness else None
        if _is_like_worker_epoch(check, scenario) and (epoch := fault_free_run.worker_epoch):
            comparison = epoch.comparison
        measuring = fault_free_run.deadlines.most / 2
        arguments: dict[str, Any] = {
            "comparison": comparison,
            "options": replace(scenario.options, measuring=measuring),
            "changes": scenario.loader if is_alone else self._changes_for(scenario),
            "deadline": deadline or scenario.deadlines * fault_free_run.deadlines.for_trial,
            "may_take_longer": may_take_longer,
        }
        if not scenario.ranks:
            return fault_free_run.run_trial(*scenario.faults, **arguments)
        arguments |= {"on_rank": scenario.on_rank, "shares_folder": scenario.shares_folder}
        return self._ranks.run_trial(*scenario.faults, **arguments)

    def _changes_for(self, scenario: Scenario) -> dict[str, Any]:
        return {**self.fault_free_run.changes, **scenario.loader}

    def _judge(self, outcome: Outcome, check: Check, scenario: Scenario) -> Finding:
        run = self.fault_free_run
        if refusal := find_refusal(outcome):
            if refusal.verdict is Verdict.NOT_EXERCISED and check is not _SWEEP:
                raise NotApplicable(*explain_refusal(outcome))
            return refusal
        if scenario.ranks:
            reference = self._ranks.reference
        elif scenario.is_before_init:
            reference = at_rest.reference_for(run, outcome)
        else:
            reference = run.reference_for(outcome)
        finding = judge(outcome, reference, run.contract)
        if scenario.is_before_init:
            finding = at_rest.refine(run, finding, outcome)
        finding = check.refine(finding, outcome, reference)
        if not scenario.circumstance:
            return finding
        return replace(finding, sentence=f"{scenario.circumstance}, {finding.sentence}")

    def reproduce(self, name: str, **arguments: Any) -> str:
        """The call of *name* that repeats a trial, with *arguments* and changed settings."""
        base = self.fault_free_run
        return call(
            name,
            str(base.make_dataset) if isinstance(base.make_dataset, PartOf) else "make_dataset",
            **arguments,
            **base.settings.as_arguments(),
        )


def _is_needed(scenario: Scenario, results: Iterable[tuple[str, CheckResult]]) -> bool:
    """Whether *scenario* is to run after these *results*, by title."""
    return scenario.unless_met is None or any(
        title == scenario.unless_met and result.passed and not _is_met_by_workers(result.outcome)
        for title, result in results
    )


def _is_met_by_workers(outcome: Outcome | None) -> bool:
    """Whether a fault happened in a worker."""
    faults = outcome.faults if outcome else ()
    return any(firing.worker is not None for each in faults for firing in each.firings)


def _is_like_worker_epoch(check: Check, scenario: Scenario) -> bool:
    """Whether new workers make one epoch, in which each error lasts until the next attempt."""
    is_changed = scenario.loader or check.name == WORKERS_AGREE
    has_retries = any(map(_spares_retry, scenario.faults))
    is_one_epoch = scenario.processes == run_epochs(before_init=scenario.is_before_init)
    is_plain = not (scenario.ranks or scenario.watch_files) and scenario.descriptors is None
    return bool(scenario.faults) and is_one_epoch and is_plain and not (is_changed or has_retries)


def _spares_retry(fault: Fault) -> bool:
    """Whether *fault* spares a second attempt, which draws other random numbers."""
    return isinstance(fault, ClosedDescriptor) or bool(
        fault.errno and getattr(fault, "times", None)
    )


def _union(places: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*places)
