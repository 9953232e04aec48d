"""Fail the first operation, then the second, and so on, until there is none left to fail.

The battery puts a fault at the first operation and at one in the middle. Code that goes wrong at
the seventh alone, as while an index is rebuilt, is found by trying each, as SQLite's tests do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import report
from pytest_dataloader_faults.battery.checks import WORKERS_AGREE, Scenario, kind_of
from pytest_dataloader_faults.battery.runner import run_check
from pytest_dataloader_faults.battery.targets import note_on_workers
from pytest_dataloader_faults.battery.workload import NOTHING_TO_SWEEP, NotApplicable, Workload
from pytest_dataloader_faults.faults import KINDS, Fault
from pytest_dataloader_faults.faults.base import (
    Trigger,
    Triggered,
    default_path,
    explain_invalid_fault,
)
from pytest_dataloader_faults.outcomes import Contract, SweepResult, SweepStep, Verdict
from pytest_dataloader_faults.outcomes.judge.report import explain
from pytest_dataloader_faults.outcomes.repeats import deciding_trial
from pytest_dataloader_faults.steps import Processes, run_epochs

_FAULTS: tuple[Any, ...] = tuple(kind() for kind in KINDS.values() if kind.is_swept)


def sweep(
    make_dataset: DatasetFactory,
    *,
    faults: Iterable[Fault] = _FAULTS,
    start_at: Fault | None = None,
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
) -> SweepResult:
    """Fail the N-th operation of each worker, for N = 1, 2, ... until there is none left to fail.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        faults: The faults to inject: any with *path*, *nth* and *times*. The sweep sets the last
            two: each is injected once (``times=1``) and every time. A fault without a path hits
            everything of its kind that the workers use. One that damages files for good needs a
            *make_dataset* that takes a folder, and hits files in it.
        start_at: The step to start with, such as the ``next`` of a sweep that was stopped.
        max_trials: The largest number of trials.
        files, loader, contract, copy, deadline, seed, samples, on_fail: See
            ``check_dataset``.
        before_init: Whether operations of the constructor, and of the main process, fail as well.
            See ``run_trial``.

    Returns:
        The steps, a table of them, and whether the sweep is complete.

    Raises:
        CheckFailedError: The dataset fails a step, or no fault fired, and *on_fail* is
            ``"raise"``; or the dataset fails without a fault.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    check(max_trials=max_trials, on_fail=on_fail)
    target = _target_of(make_dataset, settings, run_epochs(before_init=before_init))
    rows = _rows_for(target, faults, start_at)
    with progress.bar("sweep") as advance:
        sweep_result = _run_rows(target, rows, max_trials, on_fail, advance)
    if start_at is None:
        _require_fired(sweep_result, on_fail)
    return sweep_result


class _SweepTarget(NamedTuple):
    """What is swept: a dataset, its operations, and the processes of each trial."""

    battery: Battery
    workload: Workload
    processes: Processes


def _target_of(
    make_dataset: DatasetFactory, settings: Settings, processes: Processes
) -> _SweepTarget:
    """The dataset; raises if it fails without a fault."""
    battery = Battery(make_dataset, settings)
    result = run_check(battery, WORKERS_AGREE)
    if not result.passed:
        is_named = result.verdict is Verdict.FAILS_WITHOUT_FAULT
        prefix = "" if is_named else "the dataset fails without a fault: "
        raise exceptions.CheckFailedError(f"{prefix}{result.explanation}")
    try:
        workload = battery.workload_of(kind_of(Scenario(processes=processes)))
    except NotApplicable as refusal:
        if refusal.fatal is not None:
            raise exceptions.CheckFailedError(refusal.reason) from None
        raise exceptions.InvalidArgumentError(f"before_init=True: {refusal.reason}") from None
    return _SweepTarget(battery, workload, processes)


def _rows_for(target: _SweepTarget, faults: Iterable[Fault], start_at: Any) -> list[Any]:
    """The first step of each row; raises where there is nothing to sweep."""
    rows = _rows_from_step(_first_steps(faults), start_at)
    rows = [each for each in rows if _with_target(each, target.workload)]
    if not rows:
        refusal = kind_of(Scenario(processes=target.processes)).refusal(
            target.battery.fault_free_run
        )
        raise exceptions.UnusableDatasetError(refusal.full_reason if refusal else NOTHING_TO_SWEEP)
    return rows


def _run_rows(
    target: _SweepTarget,
    rows: list[Any],
    max_trials: int,
    on_fail: str | None,
    advance: Callable[[], object],
) -> SweepResult:
    """The steps of all *rows*; raises or warns of a failure at the line of our caller's caller."""
    steps: list[SweepStep] = []
    remaining_rows = list(rows)
    while remaining_rows and len(steps) < max_trials:
        fault = remaining_rows.pop(0)
        steps.append(_step(target, fault))
        advance()
        if steps[-1].fired:
            remaining_rows.insert(0, replace(fault, nth=fault.nth + 1))  # The next in this row.
        if not steps[-1].passed:
            table = SweepResult(tuple(steps), next(iter(remaining_rows), None)).table()
            report(f"{steps[-1].explanation}\n{table}", on_fail)
    return SweepResult(tuple(steps), next(iter(remaining_rows), None))


def _require_fired(sweep_result: SweepResult, on_fail: str | None) -> None:
    """Report a sweep in which no fault fired: it has shown nothing."""
    if not any(each.fired for each in sweep_result.steps):
        text = f"not_exercised: no fault of the sweep fired. {sweep_result.steps[0].explanation}"
        report(f"{text}\n{sweep_result.table()}", on_fail)


def _step(target: _SweepTarget, fault: Any) -> SweepStep:
    battery = target.battery
    aimed = _with_target(fault, target.workload)
    try:
        result = battery.run_faults(aimed, processes=target.processes)
    except NotApplicable as refusal:
        raise exceptions.UnusableDatasetError(refusal.reason) from None
    outcome, finding = deciding_trial(result)
    template = replace(fault, nth=1, times=None)
    again = battery.reproduce(
        "sweep",
        faults=[template],
        start_at=fault,
        max_trials=1,
        before_init=outcome.before_init or None,
    )
    notes = (
        *result.notes,
        *battery.fault_free_run.notes,
        *note_on_workers(battery.fault_free_run.reference),
    )
    text = explain(outcome, finding, again, notes)
    passed = finding.passed or finding.verdict is Verdict.NOT_EXERCISED or not result.reproduced
    if not result.reproduced:
        warnings.warn(exceptions._escape_for_log(text), exceptions.FlakyCheckWarning, stacklevel=4)
    elif result.warns:
        passed = True
        warnings.warn(
            exceptions._escape_for_log(text), exceptions.UnclearErrorWarning, stacklevel=4
        )
    return SweepStep(fault, outcome.fired, finding.verdict, passed, text)


def _first_steps(templates: Iterable[Any]) -> list[Any]:
    """The first step of each row: each of *templates*, once and every time."""
    is_iterable = isinstance(templates, Iterable) and not isinstance(templates, (str, bytes))
    if not is_iterable or not (templates := list(templates)):
        argument_text = templates.__name__ if isinstance(templates, type) else repr(templates)
        message = (
            f"faults={argument_text} must be a list of faults, such as [OpenError(), ReadError()]"
        )
        raise exceptions.InvalidArgumentError(message)
    rows = []
    for template in templates:
        _require_template(template)
        rows += [replace(template, times=times) for times in (1, None)]
    return rows


def _with_target(fault: Any, workload: Workload) -> Any:
    """*fault* with the path of the files that it hits; None if there are none."""
    is_default = fault.path == default_path(type(fault))
    path = workload.path_of(fault.operation) if is_default else fault.path
    return replace(fault, path=path) if path else None


def _require_template(template: Any) -> None:
    problem = explain_invalid_fault(template)
    if problem and isinstance(template, (type, list, tuple)):
        raise exceptions.InvalidArgumentError(f"faults: {problem}")
    if isinstance(template, Triggered) and template.globs:
        if template.trigger._replace(every=1) == Trigger():
            return
        problem = "must not set nth, times or probability, because the sweep sets nth and times"
    else:
        *examples, last = map(repr, _FAULTS[:3])
        problem = (
            f"must be a fault with path, nth and times, such as {', '.join(examples)} or {last}"
        )
    message = f"faults: {template!r} {problem}"
    raise exceptions.InvalidArgumentError(message)


def _rows_from_step(rows: list[Any], start_at: Any) -> list[Any]:
    """*rows* from *start_at* on, which is a step of one of them."""
    if start_at is None:
        return rows
    for place, row in enumerate(rows):
        if isinstance(start_at, type(row)) and replace(start_at, nth=1) == row:
            return [start_at, *rows[place + 1 :]]
    row_lines = "".join(f"\n  {row!r}" for row in rows)
    message = (
        f"start_at={start_at!r} must be one of these steps of the sweep, with any nth:{row_lines}"
    )
    raise exceptions.InvalidArgumentError(message)
