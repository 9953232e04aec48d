"""A dataset before the battery: what recon found, and what comes of each check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._trial import run_compared_trial, take_reference
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults._trial.job import ONE_EPOCH, TrialOptions
from pytest_dataloader_faults.battery._results import not_applicable, result_of
from pytest_dataloader_faults.battery._targets import (
    EVERY_FILE,
    Files,
    ends_of,
    globs_for,
    globs_of,
    lasting,
    nothing_matches,
)
from pytest_dataloader_faults.battery.checks import CHECKS, Check, NotApplicable, Recon, path_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults._globs import GlobMatcher
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    Contract,
    Judgement,
    Outcome,
    Reference,
    Verdict,
)
from pytest_dataloader_faults.outcomes._judge import judge
from pytest_dataloader_faults.outcomes._judge._repeats import (
    Conclusion,
    Trial,
    conclude,
    needs_another,
)
from pytest_dataloader_faults.outcomes._reference import (
    EXACT,
    SHAPES,
    Comparison,
    unstable,
    ways_of,
)
from pytest_dataloader_faults.outcomes._text import code, plain

_WATCHED = TrialOptions(watch_files=True)
_FEWEST_SECONDS = 5.0
_TIMES_CONTROL = 10.0
"""How much longer than the epoch without faults a trial may take that has hung before."""


class OutdatedFindingsError(Exception):
    """What is known is of a dataset that gives other samples: look at this one."""


@dataclass(frozen=True)
class Findings:
    """What recon found: samples, one epoch with workers and no fault, and its sum."""

    reference: Reference
    control: Outcome
    recon: Recon


class Battery:
    """A dataset, and what was found out about it before any fault."""

    def __init__(
        self,
        make_dataset: Callable[[], Any],
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        deadline: float = 30.0,
        seed: int = 0,
        engine: str = "auto",
        known: Findings | None = None,
    ) -> None:
        self._engine = choose(engine)
        _arguments.check(make_dataset=make_dataset, loader=loader)
        _arguments.check(deadline=deadline, seed=seed)
        self._make_dataset = make_dataset
        self._files = globs_of(files)
        self._loader = dict(loader or {})
        self._contract = Contract.given(contract)
        self._deadline = deadline
        self._seed = seed
        self._way = self._telling = EXACT
        self._changes: dict[str, Any] = {}
        self._broken: str | None = None
        self._references: dict[Comparison, Reference] = {}
        if known is None:
            self._recon = self._look()
        else:
            self._references[self._way] = self._take_reference()
            if self._reference != known.reference:
                raise OutdatedFindingsError
            self._control, self._recon = known.control, known.recon

    @property
    def reference(self) -> Reference:
        """What the dataset gives when nothing is wrong; what ``Outcome.judge`` asks for."""
        return self._references[self._way]

    @property
    def findings(self) -> Findings | None:
        """What another battery for the same dataset may begin with; None if something is wrong."""
        if self._changes or self._way != EXACT:
            return None
        return Findings(self._references[self._way], self._control, self._recon)

    def check(
        self, name: str, *, expected: str | None = None, how: str | None = None
    ) -> CheckResult:
        """Ask one check. *how* is the command that repeats it, if there is a better one."""
        check = CHECKS[name]
        if check.gpu and (lacking := missing_accelerator()):
            return not_applicable(name, lacking, expected)
        if self._broken and name != "workers-agree":
            return not_applicable(name, self._broken, expected)
        self._telling = SHAPES if check.unseeded and not self._contract.deterministic else self._way
        plan = check.plan(self._recon)
        trials = plan if isinstance(plan, NotApplicable) else self._trials(check, plan, expected)
        if isinstance(trials, NotApplicable):
            return not_applicable(name, trials.reason, expected)
        how = how or self.reproduce("check_dataset", f"only={name!r}")
        return result_of(check, trials, conclude(trials, self._control), how, expected)

    def _trials(
        self, check: Check, plan: tuple[Any, ...], expected: str | None
    ) -> list[Trial] | NotApplicable:
        """The trial of *check*, and if it fails those that confirm that."""
        trials: list[Trial] = []
        while needs_another(trials, should_fail=bool(expected)):
            outcome = self._outcome(check, plan, trials)
            if isinstance(outcome, NotApplicable):
                return outcome
            if reason := check.moot(self._recon, outcome):
                return NotApplicable(reason)
            trials.append(Trial(outcome, self._judge(outcome, self._contract, check)))
        return trials

    @property
    def victims(self) -> tuple[str | tuple[str, ...], str | tuple[str, ...]]:
        """Globs of the data files that the workers open, and of those that they read."""
        return path_of(self._recon.opened), path_of(self._recon.read)

    def ask(self, *faults: Fault) -> Conclusion:
        """What comes of *faults*, and what that shows."""
        trials: list[Trial] = []
        while needs_another(trials, should_fail=False):
            deadline = self._deadline_after(trials)
            outcome = self._run_trial(self._changes, *faults, deadline=deadline)
            trials.append(Trial(outcome, self._judge(outcome, self._contract)))
            if trials[0].judgement.verdict is Verdict.NOT_EXERCISED:
                break  # The end of a sweep's row, and no failure.
        return conclude(trials, self._control)

    def _deadline_after(self, trials: list[Trial]) -> float:
        """Of the next trial: what hung once is not waited for at full length again."""
        if any(each.outcome.timed_out for each in trials):
            enough = max(_FEWEST_SECONDS, _TIMES_CONTROL * self._control.duration)
            return min(self._deadline, enough)
        return self._deadline

    def _outcome(
        self, check: Check, plan: tuple[Any, ...], before: list[Trial]
    ) -> Outcome | NotApplicable:
        """What comes of it; unsuitable where the python engine cannot make it happen."""
        is_control = check.name == "workers-agree"
        if is_control and not before:
            return self._control
        changes = {} if is_control else {**self._changes, **check.changes}
        deadline = self._deadline_after(before)
        try:
            return self._run_trial(changes, *plan, deadline=deadline, options=check.options)
        except InvalidArgumentError as error:
            if self._engine != "python":
                raise
            return NotApplicable(str(error))

    def _look(self) -> Recon:
        """Recon, by the most exact way to tell samples apart that shows nothing wrong."""
        for way in ways_of(self._contract, self._seed):
            self._way = self._telling = way
            self._changes, self._broken = {}, None
            if self._reference.unstable is None:
                recon = self._look_in_this_way()
                if not self._broken:
                    break
        if self._reference.unstable is not None:
            raise UnusableDatasetError(unstable(self._reference.unstable, self._contract))
        return recon

    @property
    def _reference(self) -> Reference:
        """What the dataset gives, told in the way that is in use."""
        if self._telling not in self._references:
            self._references[self._telling] = self._take_reference()
        return self._references[self._telling]

    def _look_in_this_way(self) -> Recon:
        """One epoch with workers and no fault, beside the reference."""
        _require_rows(self._reference, self._contract)
        control = self._control = self._run_trial({}, options=_WATCHED)
        if not self._judge(control, Contract()).passed:
            # It is wrong with several workers and no fault at all. That has a check of its own;
            # the others ask what faults do to it, with one worker that shares nothing.
            self._changes = {"num_workers": 1}
            control = self._run_trial(self._changes, options=_WATCHED)
            self._broken = self._what_breaks_it(control)
        matches = lasting(control, GlobMatcher(self._files))
        recon = Recon.of(control, matches, partial(globs_for, asked=self._files))
        recon = replace(recon, ends=ends_of(recon.paths))
        if self._files != EVERY_FILE and not (self._broken or recon.opened or recon.read):
            raise InvalidArgumentError(nothing_matches(self._files, control))
        return recon

    def _what_breaks_it(self, control: Outcome) -> str | None:
        found = self._judge(control, Contract())
        if found.passed:
            return None
        return (
            f"with one worker and no fault it fails already ({found.sentence}); see workers-agree"
        )

    def _judge(self, outcome: Outcome, contract: Contract, check: Check | None = None) -> Judgement:
        if lacking := self._reference.lacks(outcome):
            more = self._take_reference(lacking)
            self._references[self._telling] = self._reference.with_more(more)
        judgement = judge(outcome, self._reference, contract)
        crime = check.rule(outcome, self._reference) if check and judgement.passed else None
        return Judgement(*crime, passed=False) if crime else judgement

    def _take_reference(self, asked: list[tuple[Any, ...]] | None = None) -> Reference:
        return take_reference(
            self._make_dataset,
            loader=self._loader,
            deadline=self._deadline,
            seed=self._seed,
            batches=asked,
            comparison=self._telling,
        )

    def _run_trial(
        self,
        changes: Mapping[str, Any],
        *faults: Fault,
        deadline: float | None = None,
        options: TrialOptions = ONE_EPOCH,
    ) -> Outcome:
        return run_compared_trial(
            self._make_dataset,
            *faults,
            loader=self._loader,
            changes=changes,
            seed=self._seed,
            engine=self._engine,
            comparison=replace(self._telling, kept=self._reference.kept),
            deadline=deadline or self._deadline,
            options=options,
            needs_workers=True,
        )

    def reproduce(self, call: str, *given: str) -> str:
        """The *call* that repeats what was asked, with *given* and all that is not ordinary."""
        parts = ["make_dataset", *given]
        parts += [f"files={self._files!r}"] if self._files != EVERY_FILE else []
        parts += [f"loader={code(plain(self._loader))}"] if self._loader else []
        parts += [f"contract={self._contract!r}"] if self._contract != Contract() else []
        parts += [f"deadline={self._deadline}", f"seed={self._seed}"]
        parts += ["engine='python'"] if self._engine == "python" else []
        return f"{call}({', '.join(parts)})"


def _require_rows(reference: Reference, contract: Contract) -> None:
    """What is missing can be told only where batches come apart into samples."""
    if contract.may_skip and not reference.samples:
        message = (
            f"contract={contract!r}: the batches cannot be taken apart into samples, so it could"
            " not be told which are missing. Use a collate_fn that stacks samples"
        )
        raise InvalidArgumentError(message)
