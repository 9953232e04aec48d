"""Search for faults under which a dataset fails; shrink what fails.

For tests of your own under Hypothesis' ``@given``, ``assert_survives_or_fails_cleanly`` is the
property, and the strategies are in ``strategies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.survey import survey
from pytest_dataloader_faults.battery.targets import Files
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.outcomes import Contract
from pytest_dataloader_faults.search._exploration import Exploration, conclude

if TYPE_CHECKING:
    from hypothesis import strategies as st

_ENOUGH_EXAMPLES = 50
"""From here on, some examples go into finding out which transient errors the dataset survives."""


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
    _arguments.check(max_examples=max_examples, deadline=deadline, seed=seed or 0)
    _arguments.check(on_fail=on_fail, report=report, max_faults=max_faults, max_epochs=max_epochs)
    how = _runner.settings_of(settings, max_examples)  # Before any trial: it may refuse them.
    fixed = loader if isinstance(loader, Mapping) else None
    alone = (fixed or {}).get("num_workers") == 0
    usual = [kind for kind in DEFAULT_KINDS if not (alone and kind.needs_worker)]
    chosen = usual if kinds is None else _arguments.chosen([*KINDS.values()], kinds=kinds)
    found = survey(
        make_dataset, files=files, loader=fixed, contract=contract, deadline=deadline, engine=engine
    )
    search = _runner.Search(found, how.max_examples, deadline=deadline, engine=engine)
    drawn = _runner.cases(found, loader, max_epochs, max_faults=max_faults, kinds=chosen)
    with progress.stage("explore"):
        failure = search.check_without_fault(_runner.without_fault(fixed))
        if not failure and how.max_examples >= _ENOUGH_EXAMPLES:
            failure = search.try_transient_errors(loader, max_epochs, chosen)
        failure = failure or search.run(drawn, seed, how)
    return conclude(search.exploration(failure), search.unexercised(), on_fail, report)
