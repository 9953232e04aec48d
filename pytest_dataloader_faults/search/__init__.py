"""Search: Hypothesis draws schedules of faults, and shrinks those under which a dataset fails.

``explore`` is the search, and ``replay`` runs one trial of it again. For tests of your own under
Hypothesis' ``@given``, ``survey`` finds the files that can fail,
``assert_survives_or_fails_cleanly`` is the property, and the strategies are in ``strategies``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._arguments import chosen
from pytest_dataloader_faults._settings import Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.survey import DataFiles, Survey, trial_of
from pytest_dataloader_faults.exceptions import CheckFailedError, FaultNotFiredError
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.outcomes import Contract, Verdict
from pytest_dataloader_faults.outcomes.results import Exploration
from pytest_dataloader_faults.outcomes.text import for_log
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly

if TYPE_CHECKING:
    from hypothesis import strategies as st

__all__ = (
    "DataFiles",
    "Exploration",
    "Survey",
    "assert_survives_or_fails_cleanly",
    "explore",
    "replay",
    "survey",
)

_ENOUGH_EXAMPLES = 50
"""From here on, some examples go into finding out which transient errors the dataset survives."""


def survey(
    make_dataset: DatasetFactory,
    *,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    contract: Contract | None = None,
    from_start: bool = False,
) -> Survey:
    """Run the dataset that *make_dataset* returns once without a fault, and see what it reads.

    Args:
        make_dataset, seed, engine: See ``check_dataset``.
        files: Globs of the files that faults may hit; by default all that its worker reads.
        loader: Options of the ``DataLoader`` that every trial has, such as ``collate_fn``.
        deadline: Seconds for each of the two runs.
        contract: What the author promises beyond the ordinary. Where it says that samples are
            random, or how to compare them, run trials by the survey's own ``run_trial``.
        from_start: Whether files of the constructor can fail as well, in each trial of the survey.
            See ``run_trial``.

    Raises:
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    return Survey(make_dataset, Settings.of(locals()), from_start=from_start)


def replay(
    make_dataset: DatasetFactory,
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    from_start: bool = False,
) -> Verdict:
    """Run one trial under *faults*, and raise if the dataset fails.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        *faults: As ``run_trial`` takes them.
        loader: Options of the ``DataLoader``.
        contract: What the author promises beyond the ordinary.
        epochs: Passes under the faults.
        deadline, seed, engine, from_start: See ``run_trial``.

    Returns:
        The verdict, which is a pass.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats the trial.
        FaultNotFiredError: There were faults, and none of them fired.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    __tracebackhide__ = True
    asked = Settings.of(locals())
    options = dict(loader or {})
    options.pop("num_workers", None)  # The reference does not depend on it.
    found = Survey(make_dataset, replace(asked, loader=options), from_start=from_start)
    outcome = trial_of(found, faults, epochs, loader=loader)
    return assert_survives_or_fails_cleanly(outcome, found)


def explore(
    make_dataset: DatasetFactory,
    *,
    files: Files | None = None,
    kinds: Iterable[type[Fault]] | None = None,
    max_faults: int = 3,
    loader: Mapping[str, Any] | st.SearchStrategy[dict[str, Any]] | None = None,
    max_epochs: int = 2,
    contract: Contract | None = None,
    max_examples: int | None = None,
    deadline: float = 30.0,
    seed: int | None = None,
    engine: str = "auto",
    on_fail: str | None = "raise",
    report: Callable[[str], object] | None = None,
    from_start: bool = False,
    **settings: Any,
) -> Exploration:
    """Search for a schedule of faults under which the dataset neither survives nor fails cleanly.

    The first trial has no fault. With 50 examples or more, the next trials find out which errors
    the dataset tolerates. Then Hypothesis draws schedules. A case that Hypothesis draws again is
    not run again. The first failure is shrunk, and run once more before it is reported.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files to put at risk; by default all that its worker reads.
        kinds: Fault classes to draw from; by default those of ``strategies.DEFAULT_KINDS`` that can
            happen under the loader.
        max_faults: The most faults in one schedule.
        loader: Options of the ``DataLoader``, or a strategy for them; by default
            ``strategies.loader_options()``. For a ready ``DataLoader`` give ``{}``.
        max_epochs: The most passes under the faults.
        contract: What the author promises beyond the ordinary.
        max_examples: Trials before any shrinking; by default as Hypothesis' active profile says,
            which is 100 where it says nothing.
        deadline: Seconds for each trial; a hang costs as many each time it is tried.
        seed: Of the search. By default Hypothesis chooses, as ``--hypothesis-seed`` and
            ``derandomize`` say.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        on_fail: ``"raise"``, ``"warn"`` or None.
        report: Called with the statistics, before anything is raised.
        from_start: Whether the faults are there before *make_dataset* is called. See ``run_trial``.
        **settings: What else ``hypothesis.settings`` takes, as ``derandomize`` or ``database``; by
            default as Hypothesis' active profile says. Of its phases, ``explain`` is left out.

    Returns:
        The statistics and, with *on_fail* ``"warn"`` or None, the shrunk failure if there is one.

    Raises:
        CheckFailedError: The shrunk schedule, the verdict, the evidence, a test that repeats it.
        FaultNotFiredError: No fault of any trial happened, so nothing was shown.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search import _runner
    from pytest_dataloader_faults.strategies import DEFAULT_KINDS

    __tracebackhide__ = True
    _runner.require_loader(loader)
    fixed = loader if isinstance(loader, Mapping) else None
    check(max_examples=max_examples, seed=seed or 0, max_faults=max_faults, max_epochs=max_epochs)
    check(on_fail=on_fail, report=report)
    asked = Settings.of({**locals(), "loader": fixed, "seed": 0})
    own = inspect.signature(explore).parameters
    how = _runner.settings_of(settings, max_examples, own)  # Before any trial: it may refuse them.
    alone = (fixed or {}).get("num_workers") == 0
    usual = [kind for kind in DEFAULT_KINDS if not (alone and kind.needs_worker)]
    kinds = usual if kinds is None else chosen([*KINDS.values()], kinds=kinds)
    search = _runner.Search(Survey(make_dataset, asked, from_start=from_start), how.max_examples)
    drawn = _runner.cases(search.found, loader, max_epochs, max_faults=max_faults, kinds=kinds)
    with progress.stage("explore"):
        failure = search.check_without_fault(_runner.without_fault(fixed))
        if not failure and how.max_examples >= _ENOUGH_EXAMPLES:
            failure = search.try_transient_errors(loader, max_epochs, kinds)
        failure = failure or search.run(drawn, seed, how)
    return _conclude(search.exploration(failure), search.unexercised(), on_fail, report)


def _conclude(
    result: Exploration,
    unexercised: str | None,
    on_fail: str | None,
    report: Callable[[str], object] | None,
) -> Exploration:
    """Report *result*. Raise what it and *on_fail* ask for, or warn, or return it.

    *unexercised*: what to say where no trial has shown anything.
    """
    __tracebackhide__ = True
    if report is not None:
        report(result.describe())
    if unexercised and not result.failure:
        raise FaultNotFiredError(unexercised)
    if result.failure and on_fail == "raise":
        raise CheckFailedError(f"{result.failure}\n\n{result.describe()}")
    if result.failure and on_fail == "warn":
        warnings.warn(for_log(result.failure), stacklevel=3)
    return result
