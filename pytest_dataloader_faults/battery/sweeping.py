"""Fail the first operation, then the second, and so on, until there is none left to fail.

The battery puts a fault at the first operation and at one in the middle. Code that goes wrong at
the seventh alone, as while an index is rebuilt, is found by trying each, as SQLite's tests do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import progress_bar, report, run_check, warn
from pytest_dataloader_faults.battery.checks import WORKERS_AGREE, Scenario
from pytest_dataloader_faults.battery.targets import note_on_workers
from pytest_dataloader_faults.battery.workload import NOTHING_TO_SWEEP, NotApplicable
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionReset,
    Fault,
    OpenError,
    ReadError,
)
from pytest_dataloader_faults.faults.base import Triggered, default_path, explain_invalid_fault
from pytest_dataloader_faults.outcomes import CheckResult, Contract, Verdict
from pytest_dataloader_faults.outcomes.judge import explain
from pytest_dataloader_faults.outcomes.repeats import deciding_trial
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import run_epochs

_SWEPT: list[Any] = [OpenError(), ReadError(), ConnectError(), ConnectionReset()]
_FAULTS = tuple(replace(each, times=times) for each in _SWEPT for times in (1, None))


def sweep(
    make_dataset: DatasetFactory,
    *,
    faults: Iterable[Fault] = _FAULTS,
    max_trials: int = 200,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    copy: str | os.PathLike[str] | None = None,
    deadline: float | str | None = None,
    seed: int = 0,
    samples: int | str | None = SAMPLES,
    on_fail: str | None = "raise",
    before_init: bool = False,
) -> list[CheckResult]:
    """Fail the N-th operation of each worker, for N = 1, 2, ... until there is none left to fail.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        faults: The faults to inject: any with *path* and *nth*, which the sweep increases. By
            default, each open and each read fails, once (``times=1``) and from the N-th operation
            on. A fault without a path hits everything of its kind that the workers use. One that
            damages files for good needs a *make_dataset* that takes a folder, and hits files in it.
        max_trials: The largest number of trials. A sweep that needs more issues a warning with the
            *faults* to continue with.
        files, loader, contract, copy, deadline, seed, samples, on_fail: See
            ``check_dataset``.
        before_init: Whether operations of the constructor, and of the main process, fail as well.
            See ``run_trial``.

    Returns:
        A result for each operation that failed. Its ``check`` is the fault.

    Raises:
        CheckFailedError: The dataset fails a step, or no fault fired, and *on_fail* is
            ``"raise"``; or the dataset fails without a fault.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    check(max_trials=max_trials, on_fail=on_fail)
    battery = Battery(make_dataset, settings)
    scenario = Scenario(processes=run_epochs(before_init=before_init))
    remaining_faults = _swept_faults(battery, scenario, faults)
    with progress_bar("sweep") as advance:
        return _run_steps(battery, scenario, remaining_faults, max_trials, on_fail, advance)


def _run_steps(
    battery: Battery,
    scenario: Scenario,
    remaining_faults: list[Any],
    max_trials: int,
    on_fail: str | None,
    advance: Callable[[], object],
) -> list[CheckResult]:
    """The results of steps that fired; raises or warns at the line of our caller's caller."""
    results: list[CheckResult] = []
    trials = 0
    while remaining_faults and trials < max_trials:
        fault = remaining_faults.pop(0)
        result = _run_step(battery, scenario, fault)
        trials += 1
        advance()
        if result.outcome and result.outcome.fired:
            remaining_faults.insert(0, replace(fault, nth=fault.nth + 1))
        elif result.verdict is Verdict.NOT_EXERCISED:  # It has fewer operations.
            continue
        results.append(result)
        if result.failed:
            text = f"{result.explanation}\ncontinue the sweep with faults={remaining_faults!r}"
            report(text, on_fail)
    if remaining_faults:
        message = f"the sweep stopped after {pluralize(trials, 'trial')}. Continue it with"
        warnings.warn(f"{message} faults={remaining_faults!r}", RuntimeWarning, stacklevel=3)
    elif not results:
        report("not_exercised: no fault of the sweep fired", on_fail)
    return results


def _swept_faults(battery: Battery, scenario: Scenario, faults: Iterable[Fault]) -> list[Any]:
    """Those of *faults* that have something to hit; raises if none has, or the dataset fails."""
    templates = _require_templates(faults)
    result = run_check(battery, WORKERS_AGREE)
    if not result.passed:
        is_named = result.verdict is Verdict.FAILS_WITHOUT_FAULT
        prefix = "" if is_named else "the dataset fails without a fault: "
        raise exceptions.CheckFailedError(f"{prefix}{result.explanation}")
    try:
        swept = [each for each in templates if _path_of(battery, scenario, each)]
    except NotApplicable as refusal:
        if refusal.fatal is not None:
            raise exceptions.CheckFailedError(refusal.reason) from None
        raise exceptions.InvalidArgumentError(f"before_init=True: {refusal.reason}") from None
    if not swept:
        refused = battery.workload_for(scenario).refusal
        raise exceptions.UnusableDatasetError(refused.full_reason if refused else NOTHING_TO_SWEEP)
    return swept


def _path_of(battery: Battery, scenario: Scenario, fault: Any) -> Any:
    """The path of the files that *fault* hits; "" if there are none."""
    if fault.path != default_path(type(fault)):
        return fault.path
    return battery.workload_for(scenario).path_of(fault.operation)


def _run_step(battery: Battery, scenario: Scenario, fault: Any) -> CheckResult:
    """The explained result of one trial, and of its repeats; warns if it is flaky."""
    aimed = replace(fault, path=_path_of(battery, scenario, fault))
    try:
        result = battery.run_faults(aimed, processes=scenario.processes)
    except NotApplicable as refusal:
        raise exceptions.UnusableDatasetError(refusal.reason) from None
    outcome, finding = deciding_trial(result)
    run = battery.fault_free_run
    notes = (*result.notes, *run.notes, *note_on_workers(run.reference))
    again = battery.reproduce(
        "sweep", faults=[fault], max_trials=1, before_init=outcome.before_init or None
    )
    text = explain(outcome, finding, again, notes)
    if result.warns or not result.reproduced:
        warn(result, text, stacklevel=5)
    return replace(result, check=str(fault), explanation=text, notes=notes, reproduce=again)


def _require_templates(faults: Any) -> list[Any]:
    is_iterable = isinstance(faults, Iterable) and not isinstance(faults, (str, bytes))
    if not is_iterable or not (templates := list(faults)):
        argument_text = faults.__name__ if isinstance(faults, type) else repr(faults)
        message = (
            f"faults={argument_text} must be a list of faults, such as [OpenError(), ReadError()]"
        )
        raise exceptions.InvalidArgumentError(message)
    for template in templates:
        problem = explain_invalid_fault(template)
        if problem and isinstance(template, (type, list, tuple)):
            raise exceptions.InvalidArgumentError(f"faults: {problem}")
        if not (isinstance(template, Triggered) and template.globs):
            *examples, last = map(repr, _SWEPT[:3])
            text = f"must be a fault with path and nth, such as {', '.join(examples)} or {last}"
            raise exceptions.InvalidArgumentError(f"faults: {template!r} {text}")
        if template.probability != 1:
            text = "must not set probability, because the sweep fails each operation"
            raise exceptions.InvalidArgumentError(f"faults: {template!r} {text}")
    return templates
