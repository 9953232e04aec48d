"""Hypothesis draws cases for one dataset. Each is run, judged and counted; failures shrink."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import hypothesis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from pytest_dataloader_faults import exceptions, faults, strategies
from pytest_dataloader_faults._arguments import meant, optional
from pytest_dataloader_faults._trial.factory import full_name
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.survey import DataFiles, Survey, trial_of
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    DataLoaderFaultsError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults.base import InWorkers
from pytest_dataloader_faults.outcomes import Judgement, Outcome, Verdict
from pytest_dataloader_faults.outcomes.results import Exploration
from pytest_dataloader_faults.outcomes.text import counted
from pytest_dataloader_faults.search import _assertion
from pytest_dataloader_faults.search._assertion import is_violation
from pytest_dataloader_faults.strategies.schedules import TRANSIENT_ERRORS

Loader = Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None

_WORKERS = 2
_OFTEN = 5
"""How much likelier several epochs are than one alone: the later ones show what a worker keeps."""


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
    """The loader first, which says how long workers live.

    The number of workers must not change what the choices after it mean. Otherwise Hypothesis could
    not shrink the loader without changing the faults.
    """
    if loader is None:
        loader = strategies.loader_options(shuffle=not files.is_iterable)
    options = draw(loader) if isinstance(loader, st.SearchStrategy) else dict(loader)
    epochs = draw(st.sampled_from([1, *(_OFTEN * [*range(2, max_epochs + 1)])]))
    at_risk = files.files.for_loader(options, epochs)
    fixed = loader if isinstance(loader, Mapping) else {}
    most: int = fixed.get("num_workers", _WORKERS)
    drawn = draw(
        strategies.fault_schedules(
            files=at_risk, max_workers=max(1, most), max_faults=max_faults, kinds=kinds
        )
    )
    workers: int = options.get("num_workers", most)
    schedule = dict.fromkeys(_clamped_to_workers(fault, workers) for fault in drawn)
    seed = draw(st.sampled_from(range(4))) if options.get("shuffle") else 0
    return Case(tuple(schedule), options, epochs, seed)


def without_fault(loader: Mapping[str, Any] | None) -> Case:
    """One epoch, with as many workers as cases have at most, unless *loader* says."""
    return Case((), {"num_workers": _WORKERS} if loader is None else dict(loader), 1, 0)


def _clamped_to_workers(fault: Any, workers: int) -> Any:
    """*fault* in a worker of the loader, in its shortest form."""
    alone = workers <= 1
    if isinstance(fault, InWorkers) and fault.workers:
        (worker,) = fault.workers
        return replace(fault, workers=None if alone else (worker % workers,))
    if isinstance(fault, (faults.WorkerExited, faults.WorkerHung, faults.WorkerKilled)):
        every = fault.worker is None and not alone
        return replace(fault, worker=None if every else (fault.worker or 0) % max(1, workers))
    return fault


def _first_cases(
    files: DataFiles, kinds: Collection[type[faults.Fault]], loader: Loader, max_epochs: int
) -> Iterator[Case]:
    """One transient error of each sort, for one epoch and, where workers may live for it, for two.

    It hits the first file, at the first operation of a worker on that file in the last epoch.
    """
    options = dict(loader) if isinstance(loader, Mapping) else {"num_workers": 1, "batch_size": 4}
    every = [options]
    if max_epochs > 1 and (loader is None or options.get("persistent_workers")):
        every.append({**options, "persistent_workers": True})
    for epochs, options in enumerate(every, start=1):
        for error in TRANSIENT_ERRORS:
            counts = files.opens if isinstance(error, faults.OpenError) else files.reads
            if counts and type(error) in kinds:
                path, each = next(iter(counts.items()))
                late = replace(error, path=path, nth=each * (epochs - 1) + 1)
                yield Case((late,), options, epochs, 0)


def require_loader(loader: Loader) -> None:
    """Refuse what is neither options nor a strategy for them."""
    allowed = (
        "a dict of DataLoader options, such as {'num_workers': 2},"
        " a strategy for one, such as strategies.loader_options(), or None"
    )
    kinds = (Mapping, st.SearchStrategy)
    optional(lambda value: isinstance(value, kinds), allowed).check("loader", loader)


class Trial(NamedTuple):
    """A case that was run: its facts, and the verdict."""

    case: Case
    outcome: Outcome
    judgement: Judgement


class Search:
    """A search for a case that fails, and what its trials have shown so far."""

    def __init__(self, found: Survey, most: int) -> None:
        """*most*: how many trials there may be before a failure."""
        self.found = found
        self.most = most
        self.trials = 0
        self.examples: int | None = None
        self.verdicts: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.attempted: Counter[str] = Counter()
        self.last: Trial | None = None
        self.failed: Trial | None = None
        self._known: dict[str, Trial] = {}
        self._hurt: DataLoaderFaultsError | None = None

    def check_without_fault(self, case: Case) -> str | None:
        """What is wrong in *case*, which has no fault: others would show it, and blame theirs."""
        trial = self._run(case)
        if trial.judgement.passed:
            return None
        self.failed = trial
        return str(self._violation(trial))

    def try_transient_errors(
        self, loader: Loader, max_epochs: int, kinds: Collection[type[faults.Fault]]
    ) -> str | None:
        """Find out which transient errors the dataset survives; the text of a failure, if any."""
        survived: list[Any] = []
        for case in _first_cases(self.found.files, kinds, loader, max_epochs):
            judgement = self._trial_of(case).judgement
            if is_violation(judgement):
                return self._confirmed()
            if judgement.verdict is Verdict.SURVIVED and case.epochs == 1:
                survived += case.schedule
        self.found.files = replace(self.found.files, tolerated_errors=tuple(survived))
        return None

    def run(
        self, drawn: st.SearchStrategy[Case], seed: int | None, how: hypothesis.settings
    ) -> str | None:
        """Try *drawn* cases; the text of the failure, shrunk, if there is one."""

        def explored(case: Case) -> None:
            self._try(case)

        # Hypothesis' database tells tests apart by their source and signature.
        explored.__annotations__["case"] = full_name(self.found.make_dataset)
        left = hypothesis.settings(how, max_examples=how.max_examples - self.trials)
        test = left(hypothesis.given(drawn)(explored))
        if seed is not None:
            test = hypothesis.seed(seed)(test)
        with contextlib.suppress(CheckFailedError, Flaky):
            test()
            return None
        return self._confirmed()

    def exploration(self, failure: str | None) -> Exploration:
        """The result, where *failure* is the text of the failure, if there is one."""
        failed = self.failed if failure else None
        clean = self.verdicts[Verdict.FAILED_CLEANLY.value]
        verdict = Verdict.FAILED_CLEANLY if clean else Verdict.SURVIVED
        verdict = Verdict.NOT_EXERCISED if self.unexercised() else verdict
        return Exploration(
            trials=self.trials,
            examples=self.examples,
            verdicts=self.verdicts,
            attempted=self.attempted,
            fired=self.fired,
            failure=failure,
            outcome=failed.outcome if failed else None,
            verdict=failed.judgement.verdict if failed else verdict,
            comparison=self.found.comparison,
        )

    def unexercised(self) -> str | None:
        """What to say if no trial has shown anything."""
        if self.last is None or set(self.verdicts) != {Verdict.NOT_EXERCISED.value}:
            return None
        error = _assertion.not_exercised(self.last.outcome, self.last.judgement)
        return f"none of {counted(self.trials, 'trial')}: {error}"

    def _try(self, case: Case) -> None:
        if self._hurt:  # Hypothesis tries again, and calls an error that does not return flaky.
            raise self._hurt
        try:
            trial = self._trial_of(case)
        except DataLoaderFaultsError as error:
            self._hurt = error
            raise
        _assertion.record_statistics(trial.outcome, trial.judgement)
        if is_violation(trial.judgement):
            raise self._violation(trial)

    def _trial_of(self, case: Case) -> Trial:
        """The trial of *case*, which runs once only.

        Shrinking comes to the same case in several ways, and Hypothesis calls a test flaky whose
        result changes.
        """
        name = repr(case)
        if name not in self._known:
            self._tell()
            self._known[name] = self._run(case)
            self._count(self._known[name])
        trial = self._known[name]
        if is_violation(trial.judgement):
            self.failed = trial
        return trial

    def _tell(self) -> None:
        """Tell how far the search is."""
        if self.examples is None:
            progress.step("", self.trials, self.most)
        else:
            progress.step(
                f"failed in trial {self.examples}, {self.trials - self.examples} since to shrink it"
            )

    def _run(self, case: Case) -> Trial:
        given = {"loader": case.loader, "seed": case.seed}
        outcome = trial_of(self.found, case.schedule, case.epochs, **given)
        return Trial(case, outcome, _assertion.judge_outcome(outcome, self.found))

    def _violation(self, trial: Trial) -> CheckFailedError:
        _, outcome, judgement = trial
        known = self.found.make_dataset, self.found.contract
        return _assertion.violation(outcome, judgement, *known)

    def _confirmed(self) -> str:
        """The text of the failure. Its case runs once more, to show that it was not chance."""
        assert self.failed is not None
        again = self._run(self.failed.case)
        if again.judgement.verdict is self.failed.judgement.verdict:
            self.failed = again
            return str(self._violation(again))
        text = self._violation(self.failed)
        verdict = again.judgement.verdict
        return f"not the same twice: tried again, its verdict was {verdict}.\n{text}"

    def _count(self, trial: Trial) -> None:
        """Count *trial*, but not for the verdicts while Hypothesis shrinks: they are all alike."""
        self.last = trial
        _, outcome, judgement = trial
        self.trials += 1
        if is_violation(judgement):
            self.examples = self.examples or self.trials
        if self.examples in {None, self.trials}:
            self.verdicts[judgement.verdict.value] += 1
            self.attempted.update({type(each.fault).__name__ for each in outcome.faults})
            self.fired.update({type(each.fault).__name__ for each in outcome.faults if each.fired})


# Some facts about profiles. ``settings()`` has what the active profile says, and Hypothesis' own
# defaults for the rest, and not which of them a profile meant. So where those make no sense for a
# search, a profile has no say. Its deadline is for examples that take milliseconds: a trial has
# one of its own. The phase ``explain`` would run many more trials to say what the shrunk schedule
# says. The blob is for a decorator, and a search has none.


_ALWAYS = {"deadline": None, "report_multiple_bugs": False}


def settings_of(
    given: Mapping[str, Any], max_examples: int | None, own: Collection[str]
) -> settings:
    """The settings of a search with the arguments *given*, and *max_examples* if that is given.

    *own*: the names of the arguments that are for the search.
    """
    phases = [each for each in settings().phases if each is not Phase.explain]
    most = {} if max_examples is None else {"max_examples": max_examples}
    taken = inspect.signature(settings).parameters
    if unknown := {name: value for name, value in given.items() if name not in taken}:
        raise InvalidArgumentError(_refused(unknown, {*own, *taken}))
    return settings(**{"phases": phases, "print_blob": False, **given, **most, **_ALWAYS})


def _refused(unknown: Mapping[str, Any], known: Collection[str]) -> str:
    name = next(iter(unknown))
    if name == "faults":
        return (
            f"faults={unknown[name]!r} is no argument of a search, which draws faults itself: give"
            " their classes, as in kinds=[ReadError], or run these by run_trial or replay"
        )
    other = "What is no argument of the search goes to hypothesis.settings"
    advice = " ".join(filter(None, (meant(name, sorted(known)), other)))
    return f"explore() takes no {name}={exceptions._shown(unknown[name])}. {advice}"
