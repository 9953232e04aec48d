"""Search the schedules of faults for one that convicts a dataset, and shrink it.

``explore`` does it in a call. ``assert_survives_or_fails_cleanly`` is the property, for tests of
your own under Hypothesis' ``@given``; the strategies are in ``strategies``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults.battery._survey import Survey, survey
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import KINDS, NEED_A_WORKER, Fault
from pytest_dataloader_faults.outcomes import Contract, Outcome, Reference, Verdict
from pytest_dataloader_faults.search._assertion import (
    is_violation,
    judged,
    not_exercised,
    note,
    violation,
)

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from pytest_dataloader_faults.search._runner import Search


__all__ = (
    "Exploration",
    "assert_survives_or_fails_cleanly",
    "explore",
    "replay",
)

_CONTROL = {"num_workers": 2}
_WORTH_IT = 50
"""Examples, from which on some are spent to find out what the dataset gets over."""


@dataclass(frozen=True)
class Exploration:
    """What a search has found.

    Attributes:
        trials: How many were run, with those of shrinking.
        examples: How many it took to the first conviction; None if there was none.
        verdicts: How often each verdict came, before any shrinking.
        drawn: In how many trials there was a fault of each kind.
        fired: In how many of them it happened.
        failure: The explanation of the shrunk conviction, or None.
        outcome: Its facts, or None.
        verdict: Its verdict. Without a conviction ``failed_cleanly`` if any trial failed, else
            ``survived``, or ``not_exercised`` if no fault of any trial fired.
        comparison: What of samples was compared, as in an ``Outcome``.

    """

    trials: int
    examples: int | None
    verdicts: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    outcome: Outcome | None = None
    verdict: Verdict = Verdict.SURVIVED
    comparison: str = "bytes"
    _tried: ClassVar[str] = "schedules"

    def describe(self) -> str:
        """The statistics, for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        total = sum(self.verdicts.values())
        shown = total - self.verdicts[Verdict.NOT_EXERCISED.value]
        found = "" if self.examples is None else f", {self.trials - total} more to shrink one"
        yield f"{total} {self._tried} tried{found}; {shown} of them showed something"
        for verdict, count in self.verdicts.most_common():
            yield f"  {verdict}: {count}"
        if self.comparison != "bytes":
            yield f"  samples were compared by {self.comparison}"
        for kind, count in sorted(self.drawn.items()):
            yield f"  {kind}: fired in {self.fired[kind]} of {count}"


def explore(
    make_dataset: Callable[[], Any],
    *,
    files: Files | None = None,
    kinds: Iterable[type[Fault]] | None = None,
    max_faults: int = 3,
    loader: Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None = None,
    max_epochs: int = 2,
    contract: Contract | None = None,
    max_examples: int = 100,
    deadline: float = 10.0,
    seed: int | None = None,
    engine: str = "auto",
    on_fail: str | None = "raise",
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> Exploration:
    """Search for a schedule of faults under which the dataset neither survives nor fails cleanly.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files to put at risk; by default all that its worker reads.
        kinds: Fault classes to draw from; by default those of ``strategies.DEFAULT_KINDS`` that the
            loader can meet.
        max_faults: The most faults in one schedule.
        loader: Options of the ``DataLoader``, or a strategy for them; by default
            ``strategies.loader_options()``. For a ready ``DataLoader`` give ``{}``.
        max_epochs: The most passes under the faults.
        contract: What the author promises beyond the ordinary.
        max_examples: Trials before any shrinking.
        deadline: Seconds for each trial; a hang costs as many each time it is tried.
        seed: Of the search. By default Hypothesis chooses, as ``--hypothesis-seed`` and
            ``derandomize`` say.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        on_fail: ``"raise"``, ``"warn"`` or None.
        report: Called with the statistics, before anything is raised.
        **settings: What else ``hypothesis.settings`` takes, as ``derandomize`` or ``database``.

    Raises:
        CheckFailedError: The shrunk schedule, the verdict, the evidence, a test that repeats it.
        FaultNotFiredError: No fault of any trial happened, so nothing was shown.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search._runner import Search, cases, require_loader, settings_of

    __tracebackhide__ = True
    require_loader(loader)
    _arguments.check(max_examples=max_examples, max_faults=max_faults, on_fail=on_fail)
    _arguments.check(max_epochs=max_epochs, deadline=deadline, seed=seed or 0, report=report)
    settings_of(settings)  # Hypothesis refuses what it does not know, before anything is tried.
    fixed = loader if isinstance(loader, Mapping) else None
    chosen = _by_default(fixed) if kinds is None else _listed(kinds)
    how: dict[str, Any] = {"deadline": deadline, "engine": engine}
    found = survey(make_dataset, files=files, loader=fixed, contract=contract, **how)
    search = Search(make_dataset, found, **how)
    drawn = cases(found, loader, max_epochs, max_faults=max_faults, kinds=chosen)
    failure = _alone(search, make_dataset, found, fixed, **how)
    if not failure and max_examples >= _WORTH_IT:
        failure = search.rehearse(loader, max_epochs, chosen)
    if not failure:
        failure = search.run(drawn, seed, max_examples=max_examples - search.trials, **settings)
    result = Exploration(**search.summary(failure))
    if report is not None:
        report(result.describe())
    settle(result, search.unexercised(), on_fail)
    return result


def _by_default(loader: Mapping[str, Any] | None) -> tuple[type[Fault], ...]:
    """The kinds of ``DEFAULT_KINDS`` that can happen where *loader* reads."""
    from pytest_dataloader_faults.strategies import DEFAULT_KINDS

    has_workers = (loader or {}).get("num_workers") != 0
    return tuple(
        each for each in DEFAULT_KINDS if has_workers or not issubclass(each, NEED_A_WORKER)
    )


def _listed(kinds: Iterable[type[Fault]]) -> tuple[type[Fault], ...]:
    chosen = tuple(kinds) if isinstance(kinds, Iterable) else ()
    if not chosen or not all(each in KINDS.values() for each in chosen):
        message = f"kinds={kinds!r} must be one or more fault classes, such as [faults.OpenError]"
        raise InvalidArgumentError(message)
    return chosen


def _alone(
    search: Search,
    make_dataset: Callable[[], Any],
    found: Survey,
    loader: Mapping[str, Any] | None,
    **how: Any,
) -> str | None:
    """What is wrong with no fault at all: it would be found under any fault, and blamed on it."""
    options = _CONTROL if loader is None else loader
    outcome = found.run_trial(loader=options, **how)
    judgement = judged(outcome, found)
    if judgement.passed:
        return None
    search.convicted = None, outcome, judgement
    return str(violation(outcome, judgement, make_dataset, found.contract))


def settle(result: Exploration, unexercised: str | None, on_fail: str | None) -> None:
    """Raise or warn of what a search has found, as *on_fail* says."""
    __tracebackhide__ = True
    if unexercised and not result.failure:
        raise FaultNotFiredError(unexercised)
    if result.failure and on_fail == "raise":
        raise CheckFailedError(f"{result.failure}\n\n{result.describe()}")
    if result.failure and on_fail == "warn":
        warnings.warn(result.failure, stacklevel=3)


def assert_survives_or_fails_cleanly(
    outcome: Outcome, reference: Reference | Survey, *, contract: Contract | None = None
) -> Verdict:
    """Raise unless the dataset of *outcome* survived the faults or failed of them cleanly.

    Inside a Hypothesis test, verdicts and faults go to the statistics, and a trial in which no
    fault fired is told there alone (``not_exercised``); elsewhere it raises.

    Args:
        outcome: Of ``run_trial``.
        reference: ``survey(make_dataset)``: what the dataset gives when nothing is wrong.
        contract: What the author promises beyond the ordinary; by default the survey's.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats it.
        FaultNotFiredError: No fault fired, outside of Hypothesis.

    """
    import hypothesis

    __tracebackhide__ = True
    judgement = judged(outcome, reference, contract)
    inside = hypothesis.currently_in_test_context()
    if inside:
        note(outcome, judgement)
    if is_violation(judgement):
        make_dataset = getattr(reference, "make_dataset", None)
        promise = contract or getattr(reference, "contract", None)
        raise violation(outcome, judgement, make_dataset, promise)
    if judgement.verdict is Verdict.NOT_EXERCISED and not inside:
        raise not_exercised(outcome, judgement)
    return judgement.verdict


def replay(
    make_dataset: Callable[[], Any],
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    epochs: int = 1,
    deadline: float = 10.0,
    seed: int = 0,
    engine: str = "auto",
) -> Verdict:
    """Run one trial and assert the property: what a failure prints, to be pasted.

    The arguments are those of ``run_trial``, and a *contract*.
    """
    __tracebackhide__ = True
    _arguments.check(make_dataset=make_dataset, loader=loader)
    how: dict[str, Any] = {"deadline": deadline, "seed": seed, "engine": engine}
    found = survey(make_dataset, loader=_kept(loader), contract=contract, **how)
    outcome = found.run_trial(*faults, loader=loader, epochs=epochs, **how)
    return assert_survives_or_fails_cleanly(outcome, found)


def _kept(loader: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of *loader* the reference depends on, too."""
    return {name: value for name, value in (loader or {}).items() if name != "num_workers"}
