"""Search for faults, or for steps of a lifecycle, under which a dataset fails; shrink what fails.

``explore`` searches the schedules of faults, ``explore_lifecycle`` the steps of a loader. For tests
of your own under Hypothesis' ``@given``, ``assert_survives_or_fails_cleanly`` is the property, and
the strategies are in ``strategies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments, lifecycle
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults._trial.job import RunSettings
from pytest_dataloader_faults.battery import _progress
from pytest_dataloader_faults.battery._survey import survey
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.faults import KINDS, NEED_A_WORKER, Fault, has_files
from pytest_dataloader_faults.outcomes import Contract
from pytest_dataloader_faults.search._exploration import Exploration, conclude
from pytest_dataloader_faults.search._lifecycle import check_loader, steps_left_out

if TYPE_CHECKING:
    from hypothesis import strategies as st

STEPS = tuple(lifecycle.Step.__subclasses__())
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
    from pytest_dataloader_faults.search import _runner, _settings
    from pytest_dataloader_faults.strategies import DEFAULT_KINDS

    __tracebackhide__ = True
    _runner.require_loader(loader)
    _arguments.check(max_examples=max_examples, deadline=deadline, seed=seed or 0)
    _arguments.check(on_fail=on_fail, report=report, max_faults=max_faults, max_epochs=max_epochs)
    how = _settings.settings_of(settings, max_examples)  # Before any trial: it may refuse them.
    fixed = loader if isinstance(loader, Mapping) else None
    beyond = NEED_A_WORKER if (fixed or {}).get("num_workers") == 0 else ()
    usual = [kind for kind in DEFAULT_KINDS if not issubclass(kind, beyond)]
    chosen = usual if kinds is None else _arguments.chosen([*KINDS.values()], kinds=kinds)
    found = survey(
        make_dataset, files=files, loader=fixed, contract=contract, deadline=deadline, engine=engine
    )
    search = _runner.Search(found, how.max_examples, deadline=deadline, engine=engine)
    drawn = _runner.cases(found, loader, max_epochs, max_faults=max_faults, kinds=chosen)
    with _progress.stage("explore"):
        failure = search.check_without_fault(_runner.without_fault(fixed))
        if not failure and how.max_examples >= _ENOUGH_EXAMPLES:
            failure = search.try_transient_errors(loader, max_epochs, chosen)
        failure = failure or search.run(drawn, seed, how)
    return conclude(search.exploration(failure), search.unexercised(), on_fail, report)


def explore_lifecycle(
    make_dataset: DatasetFactory,
    *,
    files: Files | None = None,
    kinds: Iterable[type[Fault]] | None = None,
    steps: Iterable[type[lifecycle.Step]] | None = None,
    max_steps: int = 12,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    max_examples: int | None = None,
    deadline: float = 30.0,
    seed: int | None = None,
    engine: str = "auto",
    on_fail: str | None = "raise",
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> Exploration:
    """Search for steps in the lifecycle of a loader after which the dataset breaks a rule.

    A whole lifecycle runs in one disposable process. After each step the search checks these rules:

    - Each sample that was delivered is right. Otherwise the verdict is ``corrupted``, or
      ``poisoned`` if the fault is gone.
    - An error came only from workers that a fault happened to, and names its cause. Otherwise the
      verdict is ``failed_unclearly``, ``poisoned`` if a fault happened to earlier workers, or
      ``broken`` if no fault happened or the contract promises that the dataset survives.
    - Where no worker is to run, no process and no file in /dev/shm is left, and no process has a
      data file open once more, epoch after epoch. Otherwise the verdict is ``leaked``.

    The result, what is raised, and *files*, *contract*, *seed*, *engine*, *on_fail*, *report* and
    *settings* are as for ``explore``. If no armed fault fired in any lifecycle, or no lifecycle
    began an epoch, that is a ``FaultNotFiredError``.

    Args:
        make_dataset: Returns a map-style or iterable dataset, not a ready ``DataLoader``.
        kinds: Classes of faults of files, to arm; by default ``OpenError``, ``ReadError``,
            ``ShortRead``, ``TruncatedFile``, ``SlowRead`` and ``ClosedDescriptor``.
        steps: Classes of steps to draw; by default all.
        max_steps: The most steps in one lifecycle.
        loader: Options that every loader has, such as ``collate_fn``. The step ``NewLoader`` sets
            the number of workers, whether they persist, and the batch size.
        max_examples: Lifecycles before any shrinking; by default as for ``explore``.
        deadline: Seconds for each lifecycle; a hang costs as many each time it is tried.

    """
    from pytest_dataloader_faults.search import _lifecycle_runner, _settings

    __tracebackhide__ = True
    _arguments.check(max_examples=max_examples, deadline=deadline, seed=seed or 0)
    _arguments.check(on_fail=on_fail, report=report, max_steps=max_steps)
    check_loader(loader)
    how = _settings.settings_of(settings, max_examples)
    of_files = [kind for kind in KINDS.values() if has_files(kind())]
    usual = _lifecycle_runner.LIFECYCLE_KINDS
    armed = _arguments.chosen(of_files, kinds=usual if kinds is None else kinds)
    chosen = _arguments.chosen(STEPS, steps=STEPS if steps is None else steps)
    where = RunSettings(loader=loader, deadline=deadline, seed=0, engine=engine)
    found = survey(make_dataset, files=files, contract=contract, **where)
    search = _lifecycle_runner.LifecycleSearch(found, how.max_examples, **where)
    failure, left_out = search.check_first_epoch(), {}
    if not failure:
        left_out = steps_left_out(chosen, found, **where)
        possible = [each for each in chosen if each not in left_out]
        drawn = _lifecycle_runner.programs(found, armed, possible, max_steps)
        with _progress.stage("explore_lifecycle"):
            failure = search.run(drawn, seed, how)
    result = replace(search.exploration(failure), left_out="\n".join(left_out.values()) or None)
    return conclude(result, search.unexercised(), on_fail, report)
