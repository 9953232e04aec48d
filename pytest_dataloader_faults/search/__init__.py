"""Search: Hypothesis draws schedules of faults, and shrinks those under which a dataset fails.

``explore`` is the search, and ``replay`` runs one trial of it again. Your own tests under
Hypothesis' ``@given`` call ``replay`` with the faults that the strategies in ``strategies`` draw.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._arguments import choose_arguments
from pytest_dataloader_faults._settings import Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery.checking import progress_bar
from pytest_dataloader_faults.exceptions import CheckFailedError, FaultNotFiredError
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.outcomes import Contract, Verdict
from pytest_dataloader_faults.outcomes.results import Exploration
from pytest_dataloader_faults.outcomes.text import escape_for_log

if TYPE_CHECKING:
    from hypothesis import strategies as st

__all__ = ("Exploration", "explore", "replay")

_ENOUGH_EXAMPLES = 50
"""With this many, some examples first determine which transient errors the dataset survives."""


def replay(
    make_dataset: DatasetFactory,
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    before_init: bool = False,
    copy: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Run one trial under *faults*, and raise if the dataset fails.

    The dataset also runs without a fault, for comparison. Inside a Hypothesis test, the verdict and
    the faults go to Hypothesis' statistics, and a trial in which no fault fired is not an error.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        *faults: The faults to inject; see ``run_trial``.
        loader: Options of the ``DataLoader``.
        contract: What the dataset promises, if it differs from the default ``Contract()``.
        epochs: Number of epochs under the faults.
        deadline, seed, before_init, copy: See ``run_trial``.

    Returns:
        The verdict, which is a pass or, inside a Hypothesis test, ``not_exercised``.

    Raises:
        CheckFailedError: With the verdict, the evidence, and a test that repeats the trial.
        FaultNotFiredError: No fault fired, outside of Hypothesis.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search._search import Survey, assert_survives_or_fails_cleanly

    __tracebackhide__ = True
    trial_settings = Settings.of(locals())
    options = dict(loader or {})
    if not options.get("num_workers"):
        options.pop("num_workers", None)  # The fault-free run has workers.
    trial_settings = replace(trial_settings, loader=options)
    survey = Survey(make_dataset, trial_settings, before_init=before_init)
    outcome = survey.run_trial(*faults, epochs=epochs, loader=loader)
    return assert_survives_or_fails_cleanly(outcome, survey)


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
    on_fail: str | None = "raise",
    before_init: bool = False,
    copy: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Exploration:
    """Search for a schedule of faults under which the dataset neither survives nor fails cleanly.

    The first trial has no fault. With 50 examples or more, the next trials determine which errors
    the dataset tolerates. Then Hypothesis draws schedules. A case that Hypothesis draws again does
    not run again. The first failure is shrunk, and repeated before it is reported.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files to inject faults into; by default, all that its worker reads.
        kinds: Fault classes to draw from; by default, those of ``strategies.DEFAULT_KINDS`` that
            can occur with the loader.
        max_faults: The maximum number of faults in a schedule.
        loader: Options of the ``DataLoader``, or a strategy for them; by default
            ``strategies.loader_options()``. For a ready ``DataLoader``, pass ``{}``.
        max_epochs: The maximum number of epochs under the faults.
        contract: What the dataset promises, if it differs from the default ``Contract()``.
        max_examples: The number of trials before shrinking; by default that of Hypothesis' active
            profile, which is usually 100.
        deadline: Seconds for each trial. Each trial that hangs takes that long.
        seed: Seed of the search; by default, ``--hypothesis-seed`` and ``derandomize`` apply.
        on_fail: ``"raise"``, ``"warn"`` or None.
        before_init: Whether faults are armed before *make_dataset* is called. See ``run_trial``.
        copy: A folder, of which each trial passes a copy to *make_dataset*. See ``run_trial``.
        **settings: Other arguments of ``hypothesis.settings``, such as ``derandomize`` or
            ``database``; by default those of Hypothesis' active profile, without the phase
            ``explain``.

    Returns:
        The statistics and, with *on_fail* ``"warn"`` or None, the shrunk failure, if any.

    Raises:
        CheckFailedError: With the shrunk schedule, the verdict, the evidence, and a test that
            repeats the trial.
        FaultNotFiredError: No fault fired in any trial, so the search proves nothing.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search import _search
    from pytest_dataloader_faults.strategies import DEFAULT_KINDS

    __tracebackhide__ = True
    _search.LOADER.check("loader", loader)
    fixed = loader if isinstance(loader, Mapping) else None
    check(max_faults=max_faults, max_epochs=max_epochs)
    check(max_examples=max_examples, seed=seed or 0, on_fail=on_fail)
    trial_settings = Settings.of({**locals(), "loader": fixed, "seed": 0})
    search_settings = _search.make_settings(settings, max_examples, explore)
    alone = (fixed or {}).get("num_workers") == 0
    if kinds is None:
        kinds = [kind for kind in DEFAULT_KINDS if not (alone and kind.needs_worker)]
    kinds = choose_arguments([*KINDS.values()], kinds=kinds)
    survey = _search.Survey(make_dataset, trial_settings, before_init=before_init)
    drawn = _search.cases(survey, loader, max_epochs, max_faults=max_faults, kinds=kinds)
    with progress_bar("explore", search_settings.max_examples) as advance:
        search = _search.Search(survey, advance)
        failure = search.check_without_fault(fixed)
        if not failure and search_settings.max_examples >= _ENOUGH_EXAMPLES:
            failure = search.try_transient_errors(loader, max_epochs, kinds)
        failure = failure or search.run(drawn, seed, search_settings)
    return _conclude(search.exploration(failure), search.explain_unexercised(), on_fail)


def _conclude(result: Exploration, unexercised: str | None, on_fail: str | None) -> Exploration:
    """Report *result*. Raise, warn or return it, depending on *on_fail*.

    *unexercised*: the message if no fault fired in any trial.
    """
    __tracebackhide__ = True
    if unexercised and not result.failure:
        raise FaultNotFiredError(unexercised)
    if result.failure and on_fail == "raise":
        raise CheckFailedError(f"{result.failure}\n\n{result.describe()}")
    if result.failure and on_fail == "warn":
        warnings.warn(escape_for_log(result.failure), stacklevel=3)
    return result
