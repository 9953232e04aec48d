"""A search: Hypothesis draws cases, which are run, judged and counted; failures are shrunk."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from pytest_dataloader_faults import exceptions, faults, strategies
from pytest_dataloader_faults._arguments import FLAG, optional, suggest_name
from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults._trial.factory import DatasetFactory, full_name, is_named
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.battery.fault_free_run import ONE_WORKER, FaultFreeRun
from pytest_dataloader_faults.battery.targets import require_match
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import InWorkers
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Verdict
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from pytest_dataloader_faults.outcomes.judge import explain
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.judge.sharing import start_cause
from pytest_dataloader_faults.outcomes.results import Exploration
from pytest_dataloader_faults.outcomes.text import call_in_lines, format_value, pluralize
from pytest_dataloader_faults.steps import TrialOptions, run_epochs
from pytest_dataloader_faults.strategies import TRANSIENT_ERRORS, DataFiles

Loader = Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None

VIOLATIONS: dict[Verdict, type[exceptions.CheckFailedError]] = {
    verdict: type(
        f"{verdict.value.title().replace('_', '')}Error",
        (exceptions.CheckFailedError,),
        {"__doc__": f"A trial's verdict is ``{verdict}``.", "__module__": __name__},
    )
    for verdict in Verdict
}
"""One class for each verdict. Hypothesis considers failures of the same class and line as the same
bug, so it would shrink a hang into a different failure."""
_DROPPED_BATCH = (
    "torch ran out of file descriptors or shared memory while sharing a batch, dropped the batch,"
    " and waits for it forever"
)
_NAMELESS = "make_dataset"
LOADER = optional(
    lambda value: isinstance(value, (Mapping, st.SearchStrategy)),
    "a dict of DataLoader options, such as {'num_workers': 2},"
    " a strategy for one, such as strategies.loader_options(), or None",
)
_WORKERS = 2
_OFTEN = 5
"""How much likelier several epochs are than one: later ones show what a worker keeps."""


class Survey:
    """A dataset, and its fault-free run."""

    def __init__(
        self, make_dataset: DatasetFactory, settings: Settings, *, before_init: bool = False
    ) -> None:
        FLAG.check("before_init", before_init)
        run = FaultFreeRun(make_dataset, settings, attempts=[ONE_WORKER])
        self._fault_free_run, self.make_dataset, self.before_init = run, make_dataset, before_init
        self.contract, self.comparison = run.contract, run.comparison
        self.is_iterable = run.reference.kind == "iterable"
        self._workload = run.workload
        if before_init:
            (self._workload, *_) = run.workload.at_rest
            if not self._workload.is_at_rest and (refusal := self._workload.refusal):
                raise exceptions.InvalidArgumentError(f"before_init=True: {refusal.reason}")
        require_match(run.settings.files, self._workload.fault_free)

    @cached_property
    def files(self) -> DataFiles:
        """What can fail."""
        return DataFiles.of(self._workload, self._fault_free_run.reference.sample_count)

    def run_trial(
        self,
        *schedule: Fault,
        epochs: int = 1,
        loader: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Outcome:
        """Run a trial with the survey's settings, except for those in *settings*.

        *loader*: options that replace, or are added to, those of the survey.
        """
        run = self._fault_free_run
        check(loader=loader, epochs=epochs)
        # Another loader may request other samples, which are known alone, but not other batches.
        is_known = not loader or run.reference.comparison.in_batches
        loader = {**(run.settings.loader or {}), **(loader or {})}
        job = Job(
            make_dataset=self.make_dataset,
            faults=schedule,
            settings=run.settings.override({**settings, "loader": loader}),
            comparison=self.comparison,
            options=TrialOptions(processes=run_epochs(epochs, before_init=self.before_init)),
            draws=run.reference.draws if is_known else (),
            length=run.reference.readable,
            recovers_in_workers=bool(run.reference.workers),
            history=run.history,
        )
        return run_trial_job(job)

    def judge(self, outcome: Outcome) -> Finding:
        """The verdict by the contract; ``not_exercised`` also if torch itself causes a hang."""
        if torch_dropped_a_batch(outcome):
            return Finding(Verdict.NOT_EXERCISED, _DROPPED_BATCH)
        return self._fault_free_run.judge(outcome, self.contract)

    def violation(self, outcome: Outcome, finding: Finding) -> exceptions.CheckFailedError:
        """The error to raise: the verdict's own explanation, and a test that repeats the trial."""
        request, name = outcome.request, _importable_name(self.make_dataset)
        promise = None if self.contract == Contract() else self.contract
        again = call_in_lines(
            "replay",
            name or _NAMELESS,
            *map(repr, request.schedule),
            loader=request.loader,
            contract=promise,
            **request.run_options,
            deadline=request.deadline,
            seed=request.seed,
        )
        imports = list(_import_lines(outcome, promise))
        if name:
            imports.append(f"from {self.make_dataset.__module__} import {name.partition('.')[0]}")
        else:
            imports.append(
                f"# Insert here: your dataset factory, {_NAMELESS}, and other names of your own"
            )
        test = "\n".join(["", *imports, "", "", "def test_again():", f"    {again}"])
        cause = start_cause(outcome)
        notes = (cause.advice,) if cause else ()
        return VIOLATIONS[finding.verdict](explain(outcome, finding, test, notes))


def assert_survives_or_fails_cleanly(outcome: Outcome, survey: Survey) -> Verdict:
    """Raise unless the dataset of *outcome* survived the faults, or failed cleanly.

    Inside a Hypothesis test, verdicts and faults go to Hypothesis' statistics. A trial in which no
    fault fired (``not_exercised``) only counts there; outside of Hypothesis it raises.
    """
    __tracebackhide__ = True
    finding = survey.judge(outcome)
    inside = hypothesis.currently_in_test_context()
    if inside:
        _record_statistics(outcome, finding)
    if _is_violation(finding):
        raise survey.violation(outcome, finding)
    if finding.verdict is Verdict.NOT_EXERCISED and not inside:
        raise _not_exercised(outcome, finding)
    return finding.verdict


def _is_violation(finding: Finding) -> bool:
    """Whether the dataset broke the property; False if no fault fired, or for a warning."""
    return finding.verdict.fails and not finding.library


def _record_statistics(outcome: Outcome, finding: Finding) -> None:
    """Add the verdict and the faults to Hypothesis' statistics, inside one of its tests."""
    hypothesis.event("verdict", str(finding.verdict))
    for facts in outcome.faults:
        kind = type(facts.fault).__name__
        hypothesis.event(kind, "fired" if facts.fired else "did not fire")


def _not_exercised(outcome: Outcome, finding: Finding) -> exceptions.FaultNotFiredError:
    """The error that says why no fault fired."""
    reason = explain_unfired(outcome.faults, outcome.processes)
    return exceptions.FaultNotFiredError(f"not_exercised: {reason or finding.sentence}")


def _import_lines(outcome: Outcome, contract: Contract | None) -> Iterator[str]:
    """The lines above the test that import names of this package."""
    if contract is not None:
        yield "from pytest_dataloader_faults import Contract"
    if names := ", ".join(sorted({type(fault).__name__ for fault in outcome.schedule})):
        yield f"from pytest_dataloader_faults.faults import {names}"
    yield "from pytest_dataloader_faults.search import replay"


def _importable_name(function: Any) -> str:
    """The name that *function* has in its module; empty if others cannot import it."""
    if not is_named(function):
        return ""
    name, module = str(function.__qualname__), function.__module__
    value: object = None if module == "__main__" else sys.modules.get(module or "")
    for part in name.split("."):
        value = getattr(value, part, None)
    return name if value is not None and value == function else ""


@dataclass(frozen=True)
class Case:
    """One trial to run: the faults, and the loader."""

    schedule: tuple[Fault, ...]
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
    kinds: Collection[type[Fault]],
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
    files: DataFiles, kinds: Collection[type[Fault]], loader: Loader, max_epochs: int
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
        self._fatal_error: exceptions.DataLoaderFaultsError | None = None

    def check_without_fault(self, loader: Mapping[str, Any] | None) -> str | None:
        """The failure in an epoch without a fault. Otherwise faults would be blamed for it.

        It has the maximum number of workers of a case, unless *loader* has a number.
        """
        options = {"num_workers": _WORKERS} if loader is None else dict(loader)
        trial = self._run(Case((), options, 1, 0))
        if trial.finding.passed:
            return None
        self.failed = trial
        return str(self.survey.violation(*trial[1:]))

    def try_transient_errors(
        self, loader: Loader, max_epochs: int, kinds: Collection[type[Fault]]
    ) -> str | None:
        """Determine which transient errors the dataset survives; return a failure, if any."""
        survived: list[Any] = []
        for case in _first_cases(self.survey.files, kinds, loader, max_epochs):
            finding = self._run_once(case).finding
            if _is_violation(finding):
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
        with contextlib.suppress(exceptions.CheckFailedError, Flaky):
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
        error = _not_exercised(*self.last[1:])
        return f"no fault fired in {pluralize(self.trials, 'trial')}: {error}"

    def _try(self, case: Case) -> None:
        if self._fatal_error:  # Hypothesis would call an error that does not occur again flaky.
            raise self._fatal_error
        try:
            trial = self._run_once(case)
        except exceptions.DataLoaderFaultsError as error:
            self._fatal_error = error
            raise
        _record_statistics(*trial[1:])
        if _is_violation(trial.finding):
            raise self.survey.violation(*trial[1:])

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
        if _is_violation(trial.finding):
            self.failed = trial
        return trial

    def _run(self, case: Case) -> Example:
        outcome = self.survey.run_trial(
            *case.schedule, epochs=case.epochs, loader=case.loader, seed=case.seed
        )
        return Example(case, outcome, self.survey.judge(outcome))

    def _confirm_failure(self) -> str:
        """The message of the failure. Its case runs again, to show that it is reproducible."""
        assert self.failed is not None
        first, again = self.failed, self._run(self.failed.case)
        if again.finding.verdict is first.finding.verdict:
            self.failed = again
            return str(self.survey.violation(*again[1:]))
        text = self.survey.violation(*first[1:])
        return f"not deterministic: a second run gave {again.finding.verdict}.\n{text}"

    def _count(self, trial: Example) -> None:
        """Count *trial*. While Hypothesis shrinks, verdicts do not count."""
        self.last = trial
        self.trials += 1
        if _is_violation(trial.finding):
            self.examples = self.examples or self.trials
        if self.examples in {None, self.trials}:
            facts = trial.outcome.faults
            self.verdicts[trial.finding.verdict.value] += 1
            self.attempted.update({type(each.fault).__name__ for each in facts})
            self.fired.update({type(each.fault).__name__ for each in facts if each.fired})


# Some facts about profiles. ``settings()`` has the values of the active profile and Hypothesis'
# defaults, without saying which are which. So the search ignores values that do not suit it. The
# deadline is for examples that take milliseconds, and a trial has its own. The phase ``explain``
# would run many more trials to find what the shrunk schedule already shows. The blob is for a
# decorator, which a search does not have.


_ALWAYS = {"deadline": None, "report_multiple_bugs": False}


def make_settings(
    arguments: Mapping[str, Any], max_examples: int | None, search: Callable[..., Any]
) -> hypothesis.settings:
    """The settings with *arguments* and, unless it is None, *max_examples*, for *search*."""
    phases = [each for each in hypothesis.settings().phases if each is not Phase.explain]
    limits = {} if max_examples is None else {"max_examples": max_examples}
    setting_names = inspect.signature(hypothesis.settings).parameters
    if unknown := {name: value for name, value in arguments.items() if name not in setting_names}:
        raise exceptions.InvalidArgumentError(
            _describe_unknown(unknown, {*inspect.signature(search).parameters, *setting_names})
        )
    return hypothesis.settings(
        **{"phases": phases, "print_blob": False, **arguments, **limits, **_ALWAYS}
    )


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
    return f"explore() does not accept {name}={format_value(unknown[name])}. {advice}"
