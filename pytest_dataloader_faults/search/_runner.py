"""Hypothesis at work on one dataset: cases drawn, tried, counted, and shrunk."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from pytest_dataloader_faults import strategies
from pytest_dataloader_faults.battery._survey import DataFiles, Survey
from pytest_dataloader_faults.exceptions import CheckFailedError, InvalidArgumentError
from pytest_dataloader_faults.faults import (
    Fault,
    OpenError,
    ReadError,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
)
from pytest_dataloader_faults.faults._base import InWorkers
from pytest_dataloader_faults.outcomes import Judgement, Outcome, Verdict
from pytest_dataloader_faults.search._assertion import (
    is_violation,
    judged,
    not_exercised,
    note,
    violation,
)
from pytest_dataloader_faults.strategies._files import PASSING

Loader = Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None

_PHASES = (Phase.reuse, Phase.generate, Phase.shrink)
"""Not ``explain``, which would run many more trials to say what the shrunk schedule says."""
_ONE_WORKER = {"num_workers": 1, "batch_size": 4}
_SEEDS = 3
_WORKERS = 2
_OFTEN = 5
"""How much likelier each epoch after the first is than that one alone: it shows what is kept."""


@dataclass(frozen=True)
class Case:
    """One trial of a search: what is to happen, under which loader."""

    schedule: tuple[Fault, ...]
    loader: dict[str, Any]
    epochs: int
    seed: int


@st.composite
def cases(
    draw: st.DrawFn, /, files: Survey, loader: Loader, max_epochs: int, **of_schedule: Any
) -> Case:
    """The loader first, which says how long workers live.

    How many there are must not change what the choices after it mean: the loader could not be
    shrunk then without changing the faults.
    """
    options = draw(_loaders(loader, files))
    epochs = draw(st.sampled_from([1, *(_OFTEN * [*range(2, max_epochs + 1)])]))
    met = files.files.for_loader(options, epochs)
    fixed = loader if isinstance(loader, Mapping) else {}
    most: int = fixed.get("num_workers", _WORKERS)
    drawn = draw(strategies.fault_schedules(files=met, max_workers=max(1, most), **of_schedule))
    workers: int = options.get("num_workers", most)
    schedule = dict.fromkeys(_met(fault, workers) for fault in drawn)
    seed = draw(st.sampled_from(range(_SEEDS + 1))) if options.get("shuffle") else 0
    return Case(tuple(schedule), options, epochs, seed)


def _met(fault: Any, workers: int) -> Any:
    """*fault* in a worker that there is, in its shortest form."""
    alone = workers <= 1
    if isinstance(fault, InWorkers) and fault.workers:
        (worker,) = fault.workers
        return replace(fault, workers=None if alone else (worker % workers,))
    if isinstance(fault, (WorkerExited, WorkerHung, WorkerKilled)):
        every = fault.worker is None and not alone
        return replace(fault, worker=None if every else (fault.worker or 0) % max(1, workers))
    return fault


def _passing(
    files: DataFiles, kinds: Collection[type[Fault]], epoch: int
) -> Iterator[OpenError | ReadError]:
    """One of each sort of error, of those *kinds*, that goes away.

    It befalls the first file, the first time that a worker comes to it in *epoch*.
    """
    for error in PASSING:
        counts = files.opens if isinstance(error, OpenError) else files.reads
        if counts and type(error) in kinds:
            path, each = next(iter(counts.items()))
            yield replace(error, path=path, nth=each * (epoch - 1) + 1)


def _at_first(loader: Loader, max_epochs: int) -> Iterator[dict[str, Any]]:
    """Options to begin with: for one epoch and, where workers may live for it, for two."""
    options = dict(loader) if isinstance(loader, Mapping) else _ONE_WORKER
    yield options
    if max_epochs > 1 and (loader is None or options.get("persistent_workers")):
        yield {**options, "persistent_workers": True}


def require_loader(loader: Loader) -> None:
    """Refuse what is neither options nor a strategy for them."""
    if not (loader is None or isinstance(loader, (Mapping, st.SearchStrategy))):
        message = (
            f"loader={loader!r} must be a dict of DataLoader options, such as {{'num_workers': 2}},"
            " a strategy for one, such as strategies.loader_options(), or None"
        )
        raise InvalidArgumentError(message)


def _loaders(loader: Loader, files: Survey) -> st.SearchStrategy[dict[str, Any]]:
    if loader is None:
        return strategies.loader_options(shuffle=not files.is_iterable)
    return loader if isinstance(loader, st.SearchStrategy) else st.just(dict(loader))


class Search:
    """A search for a schedule that convicts a dataset, and what it has met so far."""

    def __init__(
        self,
        make_dataset: Callable[[], Any],
        survey: Survey,
        *,
        deadline: float,
        engine: str,
    ) -> None:
        self._make_dataset = make_dataset
        self._survey = survey
        self._how: dict[str, Any] = {"deadline": deadline, "engine": engine}
        self.trials = 0
        self.examples: int | None = None
        self.verdicts: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.drawn: Counter[str] = Counter()
        self.last: tuple[Outcome, Judgement] | None = None
        self.convicted: tuple[Any, Outcome, Judgement] | None = None
        self._known: dict[str, tuple[Outcome, Judgement]] = {}

    def run(self, drawn: st.SearchStrategy[Any], seed: int | None, **options: Any) -> str | None:
        """Try *drawn* cases; the text of the failure, shrunk, if there is one."""

        def explored(case: Case) -> None:
            self._try(case)

        # Hypothesis' database tells tests apart by their source and signature.
        explored.__annotations__["case"] = _name_of(self._make_dataset)
        test = settings_of(options)(hypothesis.given(drawn)(explored))
        if seed is not None:
            test = hypothesis.seed(seed)(test)
        with contextlib.suppress(CheckFailedError, Flaky):
            test()
            return None
        return self._confirmed()

    def rehearse(
        self, loader: Loader, max_epochs: int, kinds: Collection[type[Fault]]
    ) -> str | None:
        """Find out which errors that go away the dataset gets over; what convicts it already."""
        survived = []
        for epochs, options in enumerate(_at_first(loader, max_epochs), start=1):
            for error in _passing(self._survey.files, kinds, epochs):
                _, judgement = self._tried(Case((error,), options, epochs, 0))
                if is_violation(judgement):
                    return self._confirmed()
                if judgement.verdict is Verdict.SURVIVED and epochs == 1:
                    survived.append(error)
        self._survey.files = replace(self._survey.files, tolerated_errors=tuple(survived))
        return None

    def _try(self, case: Any) -> None:
        """One example. Of a case that comes again the same is told: to Hypothesis it must be."""
        outcome, judgement = self._tried(case)
        note(outcome, judgement)
        if is_violation(judgement):
            raise self._violation(case, outcome, judgement)

    def _tried(self, case: Any) -> tuple[Outcome, Judgement]:
        """What came of it. Shrinking comes to the same case by several ways: it is tried once."""
        name = repr(case)
        if name not in self._known:
            self._known[name] = self._trial(case)
            self._count(*self._known[name])
        outcome, judgement = self._known[name]
        if is_violation(judgement):
            self.convicted = case, outcome, judgement
        return outcome, judgement

    def _violation(self, _case: Any, outcome: Outcome, judgement: Judgement) -> CheckFailedError:
        return violation(outcome, judgement, self._make_dataset, self._survey.contract)

    def _trial(self, case: Any) -> tuple[Outcome, Judgement]:
        how = {"loader": case.loader, "epochs": case.epochs, "seed": case.seed, **self._how}
        outcome = self._survey.run_trial(*case.schedule, **how)
        return outcome, judged(outcome, self._survey)

    def _confirmed(self) -> str:
        """The text of the conviction, which is tried once more: no trial is to be chance."""
        assert self.convicted is not None
        case, outcome, judgement = self.convicted
        again, second = self._trial(case)
        if second.verdict is judgement.verdict:
            self.convicted = case, again, second
            return str(self._violation(case, again, second))
        text = self._violation(case, outcome, judgement)
        return f"not the same twice: tried again, its verdict was {second.verdict}.\n{text}"

    def _count(self, outcome: Outcome, judgement: Judgement) -> None:
        """Shrinking tries what is like the failure: it would distort the counts."""
        self.trials += 1
        self.last = outcome, judgement
        if is_violation(judgement):
            self.examples = self.examples or self.trials
        if self.examples in {None, self.trials}:
            self.verdicts[judgement.verdict.value] += 1
            self.drawn.update({type(each.fault).__name__ for each in outcome.faults})
            self.fired.update({type(each.fault).__name__ for each in outcome.faults if each.fired})

    def summary(self, failure: str | None) -> dict[str, Any]:
        """What an ``Exploration`` tells, where *failure* is the text of the conviction, if any."""
        clean = self.verdicts[Verdict.FAILED_CLEANLY.value]
        verdict = Verdict.FAILED_CLEANLY if clean else Verdict.SURVIVED
        verdict = Verdict.NOT_EXERCISED if self.unexercised() else verdict
        outcome = None
        if failure and self.convicted:
            _, outcome, judgement = self.convicted
            verdict = judgement.verdict
        counts = {"verdicts": self.verdicts, "drawn": self.drawn, "fired": self.fired}
        comparison = self._survey.comparison.description
        tried = {
            "trials": self.trials,
            "examples": self.examples,
            "comparison": comparison,
            **counts,
        }
        return {**tried, "failure": failure, "outcome": outcome, "verdict": verdict}

    def unexercised(self) -> str | None:
        """What to say if no trial has shown anything."""
        if self.last is None or set(self.verdicts) != {Verdict.NOT_EXERCISED.value}:
            return None
        return f"none of {self.trials} trials: {not_exercised(*self.last)}"


def settings_of(given: Mapping[str, Any]) -> settings:
    """Hypothesis' settings, as *given*, and as a search takes them where nothing is given."""
    own = {"deadline": None, "report_multiple_bugs": False}
    try:
        return settings(**{"phases": _PHASES, "print_blob": False, **given, **own})
    except TypeError as error:
        message = f"{error}: what is no argument of the search goes to hypothesis.settings"
        raise InvalidArgumentError(message) from None


def _name_of(make_dataset: Callable[[], Any]) -> str:
    name = getattr(make_dataset, "__qualname__", type(make_dataset).__name__)
    return f"{getattr(make_dataset, '__module__', '')}.{name}"
