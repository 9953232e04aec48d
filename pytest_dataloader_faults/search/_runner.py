"""A search: Hypothesis draws cases, which are run, judged and counted; failures are shrunk."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import hypothesis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from pytest_dataloader_faults import exceptions, faults, strategies
from pytest_dataloader_faults._arguments import optional, suggest_name
from pytest_dataloader_faults._trial.factory import full_name
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    DataLoaderFaultsError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults.base import InWorkers
from pytest_dataloader_faults.outcomes import Finding, Outcome, Verdict
from pytest_dataloader_faults.outcomes.results import Exploration
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.search import _assertion
from pytest_dataloader_faults.search._assertion import Survey, is_violation
from pytest_dataloader_faults.strategies import TRANSIENT_ERRORS
from pytest_dataloader_faults.strategies.choices import DataFiles

Loader = Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None

_WORKERS = 2
_OFTEN = 5
"""How much likelier several epochs are than one: later ones show what a worker keeps."""


@dataclass(frozen=True)
class Case:
    """One trial to run: the faults, and the loader."""

    schedule: tuple[faults.Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int


@st.composite
def cases(
    draw: st.DrawFn,
    /,
    files: Survey,
    loader: Loader,
    max_epochs: int,
    *,
    max_faults: int,
    kinds: Collection[type[faults.Fault]],
) -> Case:
    """The loader is drawn first, because it determines how long workers live.

    The number of workers must not change the meaning of later choices. Otherwise Hypothesis could
    not shrink the loader without changing the faults.
    """
    if loader is None:
        loader = strategies.loader_options(shuffle=not files.is_iterable)
    options = draw(loader) if isinstance(loader, st.SearchStrategy) else dict(loader)
    epochs = draw(st.sampled_from([1, *(_OFTEN * [*range(2, max_epochs + 1)])]))
    at_risk = files.files.for_loader(options, epochs)
    fixed = loader if isinstance(loader, Mapping) else {}
    max_workers: int = fixed.get("num_workers", _WORKERS)
    drawn = draw(
        strategies.fault_schedules(
            files=at_risk, max_workers=max(1, max_workers), max_faults=max_faults, kinds=kinds
        )
    )
    workers: int = options.get("num_workers", max_workers)
    schedule = dict.fromkeys(_clamp_to_workers(fault, workers) for fault in drawn)
    seed = draw(st.sampled_from(range(4))) if options.get("shuffle") else 0
    return Case(tuple(schedule), options, epochs, seed)


def fault_free_case(loader: Mapping[str, Any] | None) -> Case:
    """One epoch, with the maximum number of workers of a case, unless *loader* has a number."""
    return Case((), {"num_workers": _WORKERS} if loader is None else dict(loader), 1, 0)


def _clamp_to_workers(fault: Any, workers: int) -> Any:
    """*fault* in a worker that the loader has, in its shortest form."""
    alone = workers <= 1
    if isinstance(fault, InWorkers) and fault.workers:
        (worker,) = fault.workers
        return replace(fault, workers=None if alone else (worker % workers,))
    if isinstance(fault, (faults.WorkerExited, faults.WorkerHung, faults.WorkerKilled)):
        is_in_all_workers = fault.worker is None and not alone
        return replace(
            fault, worker=None if is_in_all_workers else (fault.worker or 0) % max(1, workers)
        )
    return fault


def _first_cases(
    files: DataFiles, kinds: Collection[type[faults.Fault]], loader: Loader, max_epochs: int
) -> Iterator[Case]:
    """A case for each transient error, with one epoch and, if workers may persist, with two.

    The error hits the first file, at the first operation of a worker on it in the last epoch.
    """
    options = dict(loader) if isinstance(loader, Mapping) else {"num_workers": 1, "batch_size": 4}
    loaders = [options]
    if max_epochs > 1 and (loader is None or options.get("persistent_workers")):
        loaders.append({**options, "persistent_workers": True})
    for epochs, options in enumerate(loaders, start=1):
        for error in TRANSIENT_ERRORS:
            counts = files.count(error.operation)
            if counts and type(error) in kinds:
                path, count = next(iter(counts.items()))
                late = replace(error, path=path, nth=count * (epochs - 1) + 1)
                yield Case((late,), options, epochs, 0)


def require_loader(loader: Loader) -> None:
    """Raise InvalidArgumentError unless *loader* is a dict of options or a strategy for one."""
    allowed = (
        "a dict of DataLoader options, such as {'num_workers': 2},"
        " a strategy for one, such as strategies.loader_options(), or None"
    )
    kinds = (Mapping, st.SearchStrategy)
    optional(lambda value: isinstance(value, kinds), allowed).check("loader", loader)


class Example(NamedTuple):
    """A case that was run: its facts, and the verdict."""

    case: Case
    outcome: Outcome
    finding: Finding


class Search:
    """A search for a case that fails, and what its trials have shown so far."""

    def __init__(self, survey: Survey, advance: Callable[[], object]) -> None:
        """*advance* is called after each trial."""
        self.survey = survey
        self._advance = advance
        self.trials = 0
        self.examples: int | None = None
        self.verdicts: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.attempted: Counter[str] = Counter()
        self.last: Example | None = None
        self.failed: Example | None = None
        self._trials_by_case: dict[str, Example] = {}
        self._fatal_error: DataLoaderFaultsError | None = None

    def check_without_fault(self, case: Case) -> str | None:
        """The failure in *case*, which has no fault. Otherwise faults would be blamed for it."""
        trial = self._run(case)
        if trial.finding.passed:
            return None
        self.failed = trial
        return str(self._violation(trial))

    def try_transient_errors(
        self, loader: Loader, max_epochs: int, kinds: Collection[type[faults.Fault]]
    ) -> str | None:
        """Determine which transient errors the dataset survives; return a failure, if any."""
        survived: list[Any] = []
        for case in _first_cases(self.survey.files, kinds, loader, max_epochs):
            finding = self._run_once(case).finding
            if is_violation(finding):
                return self._confirm_failure()
            if finding.verdict is Verdict.SURVIVED and case.epochs == 1:
                survived += case.schedule
        self.survey.files = replace(self.survey.files, tolerated_errors=tuple(survived))
        return None

    def run(
        self, drawn: st.SearchStrategy[Case], seed: int | None, search_settings: hypothesis.settings
    ) -> str | None:
        """Run *drawn* cases; return the message of the shrunk failure, if any."""

        def run_case(case: Case) -> None:
            self._try(case)

        # Hypothesis' database distinguishes tests by their source and signature.
        run_case.__annotations__["case"] = full_name(self.survey.make_dataset)
        remaining_settings = hypothesis.settings(
            search_settings, max_examples=search_settings.max_examples - self.trials
        )
        test = remaining_settings(hypothesis.given(drawn)(run_case))
        if seed is not None:
            test = hypothesis.seed(seed)(test)
        with contextlib.suppress(CheckFailedError, Flaky):
            test()
            return None
        return self._confirm_failure()

    def exploration(self, failure: str | None) -> Exploration:
        """The result, with the message of the *failure*, if any."""
        failed = self.failed if failure else None
        clean = self.verdicts[Verdict.FAILED_CLEANLY.value]
        verdict = Verdict.FAILED_CLEANLY if clean else Verdict.SURVIVED
        verdict = Verdict.NOT_EXERCISED if self.explain_unexercised() else verdict
        return Exploration(
            trials=self.trials,
            examples=self.examples,
            verdicts=self.verdicts,
            attempted=self.attempted,
            fired=self.fired,
            failure=failure,
            outcome=failed.outcome if failed else None,
            verdict=failed.finding.verdict if failed else verdict,
            comparison=self.survey.comparison,
        )

    def explain_unexercised(self) -> str | None:
        """The message if no fault fired in any trial."""
        if self.last is None or set(self.verdicts) != {Verdict.NOT_EXERCISED.value}:
            return None
        error = _assertion.not_exercised(self.last.outcome, self.last.finding)
        return f"no fault fired in {pluralize(self.trials, 'trial')}: {error}"

    def _try(self, case: Case) -> None:
        if self._fatal_error:  # Hypothesis would call an error that does not occur again flaky.
            raise self._fatal_error
        try:
            trial = self._run_once(case)
        except DataLoaderFaultsError as error:
            self._fatal_error = error
            raise
        _assertion.record_statistics(trial.outcome, trial.finding)
        if is_violation(trial.finding):
            raise self._violation(trial)

    def _run_once(self, case: Case) -> Example:
        """The trial of *case*, which runs only once.

        Shrinking reaches the same case in several ways, and Hypothesis reports a test as flaky if
        its result changes.
        """
        name = repr(case)
        if name not in self._trials_by_case:
            self._trials_by_case[name] = self._run(case)
            self._count(self._trials_by_case[name])
            self._advance()
        trial = self._trials_by_case[name]
        if is_violation(trial.finding):
            self.failed = trial
        return trial

    def _run(self, case: Case) -> Example:
        outcome = self.survey.run_trial(
            *case.schedule, epochs=case.epochs, loader=case.loader, seed=case.seed
        )
        return Example(case, outcome, _assertion.judge_outcome(outcome, self.survey))

    def _violation(self, trial: Example) -> CheckFailedError:
        _, outcome, finding = trial
        known = self.survey.make_dataset, self.survey.contract
        return _assertion.violation(outcome, finding, *known)

    def _confirm_failure(self) -> str:
        """The message of the failure. Its case runs again, to show that it is reproducible."""
        assert self.failed is not None
        again = self._run(self.failed.case)
        if again.finding.verdict is self.failed.finding.verdict:
            self.failed = again
            return str(self._violation(again))
        text = self._violation(self.failed)
        verdict = again.finding.verdict
        return f"not deterministic: a second run gave {verdict}.\n{text}"

    def _count(self, trial: Example) -> None:
        """Count *trial*. While Hypothesis shrinks, verdicts do not count."""
        self.last = trial
        _, outcome, finding = trial
        self.trials += 1
        if is_violation(finding):
            self.examples = self.examples or self.trials
        if self.examples in {None, self.trials}:
            self.verdicts[finding.verdict.value] += 1
            self.attempted.update({type(each.fault).__name__ for each in outcome.faults})
            self.fired.update({type(each.fault).__name__ for each in outcome.faults if each.fired})


# Some facts about profiles. ``settings()`` has the values of the active profile and Hypothesis'
# defaults, without saying which are which. So the search ignores values that do not suit it. The
# deadline is for examples that take milliseconds, and a trial has its own. The phase ``explain``
# would run many more trials to find what the shrunk schedule already shows. The blob is for a
# decorator, which a search does not have.


_ALWAYS = {"deadline": None, "report_multiple_bugs": False}


def make_search_settings(
    arguments: Mapping[str, Any], max_examples: int | None, parameters: Collection[str]
) -> settings:
    """The settings of a search with *arguments* and, unless it is None, *max_examples*.

    *parameters*: the names of the arguments of the search itself.
    """
    phases = [each for each in settings().phases if each is not Phase.explain]
    limits = {} if max_examples is None else {"max_examples": max_examples}
    setting_names = inspect.signature(settings).parameters
    if unknown := {name: value for name, value in arguments.items() if name not in setting_names}:
        raise InvalidArgumentError(_describe_unknown(unknown, {*parameters, *setting_names}))
    return settings(**{"phases": phases, "print_blob": False, **arguments, **limits, **_ALWAYS})


def _describe_unknown(unknown: Mapping[str, Any], names: Collection[str]) -> str:
    name = next(iter(unknown))
    if name == "faults":
        return (
            f"explore() does not accept faults={unknown[name]!r}, because it draws faults itself:"
            " pass fault classes, as in kinds=[ReadError], or run these faults with run_trial or"
            " replay"
        )
    hint = "All other arguments are passed to hypothesis.settings"
    advice = " ".join(filter(None, (suggest_name(name, sorted(names)), hint)))
    return f"explore() does not accept {name}={exceptions._format_value(unknown[name])}. {advice}"
