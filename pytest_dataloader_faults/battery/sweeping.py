"""Fail the first operation, then the second, and so on, until there is none left to fail.

The battery puts a fault at the first operation and at one in the middle. Code that goes wrong at
the seventh alone, as while an index is rebuilt, is found by trying each, as SQLite's tests do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._settings import SAMPLES, Files, Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery._battery import WORKERS_AGREE, Battery
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.asking import ask
from pytest_dataloader_faults.battery.checking import report
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionReset,
    Fault,
    OpenError,
    ReadError,
)
from pytest_dataloader_faults.faults.base import FileFault, Place, Trigger, Triggered, why_no_fault
from pytest_dataloader_faults.faults.kinds import NetworkFault
from pytest_dataloader_faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Contract, SweepResult, SweepStep, Verdict
from pytest_dataloader_faults.outcomes.judge.report import explain

_FAULTS = (OpenError(), ReadError(), ConnectError(), ConnectionReset())

_NOTHING = (
    "its workers open, read and write no data file and make no TCP connection that these faults are"
    " about, so there is nothing to sweep. For files that its constructor reads, give"
    " from_start=True"
)


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
    engine: str = "auto",
    samples: int | str | None = SAMPLES,
    on_fail: str | None = "raise",
    from_start: bool = False,
) -> SweepResult:
    """Let the N-th operation of each worker fail, for N = 1, 2, ... until nothing is left to fail.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        faults: The faults to try: any that have *nth* and *times*, which the sweep sets. Each is
            tried once (``times=1``) and every time. One without a path hits all data files that the
            workers open, read or write, or all their TCP connections. One of writing takes a
            factory that takes a folder, and hits files in it.
        start_at: The step to begin with, such as the ``next`` of a sweep that was stopped.
        max_trials: How many trials there may be.
        files, loader, contract, copy, deadline, seed, engine, samples, on_fail: See
            ``check_dataset``.
        from_start: Whether operations of the constructor, and of the loader's process, fail as
            well. See ``run_trial``.

    Returns:
        The steps, a table of them, and whether it is complete.

    Raises:
        CheckFailedError: The dataset fails a step, or no fault happened, and *on_fail* is
            ``"raise"``; or the dataset fails without a fault.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.
    """
    settings = Settings.of(locals(), may_be_auto=True)
    check(max_trials=max_trials, on_fail=on_fail, from_start=from_start)
    target = _target_of(make_dataset, settings, from_start=from_start)
    rows = _rows_for(target, faults, start_at)
    with progress.stage("sweep"):
        swept = _swept(target, rows, max_trials, on_fail)
    if start_at is None:
        _require_fired(swept, on_fail)
    return swept


class _Target(NamedTuple):
    """What is swept: a dataset, its operations, and whether those of its constructor count."""

    battery: Battery
    workload: Workload
    from_start: bool


def _target_of(make_dataset: DatasetFactory, settings: Settings, *, from_start: bool) -> _Target:
    """The dataset; raises if it fails without a fault."""
    battery = Battery(make_dataset, settings)
    found = ask(battery, WORKERS_AGREE)
    if not found.passed:
        raise exceptions.CheckFailedError(f"with no fault at all, {found.explanation}")
    workload = battery.from_start if from_start else battery.workload
    if isinstance(workload, NotApplicable) and workload.fatal is not None:
        raise exceptions.CheckFailedError(workload.reason)
    if isinstance(workload, NotApplicable):
        raise exceptions.InvalidArgumentError(f"from_start=True: {workload.reason}")
    return _Target(battery, workload, from_start)


def _rows_for(target: _Target, faults: Iterable[Fault], start_at: Any) -> list[Any]:
    """The first step of each row; raises where there is nothing to sweep."""
    rows = _rows_from(_rows(faults), start_at)
    rows = [each for each in rows if _with_target(each, target.workload)]
    if not rows:
        rewrites = target.battery.rewrites if target.from_start else None
        raise exceptions.UnusableDatasetError(rewrites.full_reason if rewrites else _NOTHING)
    return rows


def _swept(target: _Target, rows: list[Any], max_trials: int, on_fail: str | None) -> SweepResult:
    """The steps of all *rows*; raises or warns of a failure at the line of our caller's caller."""
    steps: list[SweepStep] = []
    left = list(rows)
    while left and len(steps) < max_trials:
        total = len(steps) + sum(_expected_steps(each, target.workload) for each in left)
        fault = left.pop(0)
        progress.step(f"{type(fault).__name__} nth={fault.nth}", len(steps), min(total, max_trials))
        steps.append(_step(target, fault))
        if steps[-1].fired:
            left.insert(0, replace(fault, nth=fault.nth + 1))  # The next in this row.
        if not steps[-1].passed:
            table = SweepResult(tuple(steps), next(iter(left), None)).table()
            report(f"{steps[-1].explanation}\n{table}", on_fail)
    return SweepResult(tuple(steps), next(iter(left), None))


def _expected_steps(fault: Any, workload: Workload) -> int:
    """How many steps are likely to be left in a row: the last one finds nothing to fail."""
    path = _with_target(fault, workload).path
    is_meant = GlobMatcher((path,) if isinstance(path, str) else path)
    kind = "opens" if isinstance(fault, OpenError) else "reads"
    kind = "writes" if Place.WRITE in fault.places else kind
    most: int = 0
    for worker in workload.fault_free.workers:
        counts = {path: getattr(each, kind) for path, each in worker.files.items()}
        counts = worker.connections if isinstance(fault, NetworkFault) else counts
        most = max(most, sum(count for path, count in counts.items() if is_meant(path)))
    left: int = most + 2 - fault.nth
    return max(1, left)


def _require_fired(swept: SweepResult, on_fail: str | None) -> None:
    """Report a sweep in which no fault happened: it has shown nothing."""
    if not any(each.fired for each in swept.steps):
        text = f"not_exercised: no fault of the sweep happened. {swept.steps[0].explanation}"
        report(f"{text}\n{swept.table()}", on_fail)


def _step(target: _Target, fault: Any) -> SweepStep:
    battery = target.battery
    aimed = _with_target(fault, target.workload)
    found = battery.run_faults(aimed, from_start=target.from_start)
    outcome, judgement = found.trial.outcome, found.trial.judgement
    template = replace(fault, nth=1, times=None)
    again = battery.reproduce(
        "sweep",
        faults=[template],
        start_at=fault,
        max_trials=1,
        from_start=target.from_start or None,
    )
    text = explain(outcome, judgement, again, (*found.notes, *battery.baseline.notes))
    passed = judgement.passed or judgement.verdict is Verdict.NOT_EXERCISED or not found.reproduced
    if not found.reproduced:
        warnings.warn(exceptions._for_log(text), exceptions.NotReproducedWarning, stacklevel=4)
    return SweepStep(fault, outcome.fired, judgement.verdict, passed, text)


def _rows(templates: Iterable[Any]) -> list[Any]:
    """The first step of each row: each of *templates*, once and every time."""
    is_iterable = isinstance(templates, Iterable) and not isinstance(templates, (str, bytes))
    if not is_iterable or not (templates := list(templates)):
        shown = templates.__name__ if isinstance(templates, type) else repr(templates)
        message = f"faults={shown} must be several faults, such as [OpenError(), ReadError()]"
        raise exceptions.InvalidArgumentError(message)
    made = []
    for template in templates:
        _require_template(template)
        made += [replace(template, times=times) for times in (1, None)]
    return made


def _with_target(fault: Any, workload: Workload) -> Any:
    """*fault* with the path of the files that it hits; None if there are none."""
    if isinstance(fault, NetworkFault):
        files = workload.connections
        is_usual = fault.path == type(fault)().path
        path = files.path if is_usual and files.paths else "" if is_usual else fault.path
    else:
        path = _usual_path(fault, workload) if fault.path == "*" else fault.path
    return replace(fault, path=path) if path else None


def _usual_path(fault: Any, workload: Workload) -> Any:
    """The path for *fault* where none was given; None if there is no such file."""
    if Place.WRITE not in fault.places:
        return (workload.opened if isinstance(fault, OpenError) else workload.read).path
    return None if isinstance(workload.written, NotApplicable) else workload.written.path


def _require_template(template: Any) -> None:
    problem = why_no_fault(template)
    if problem and isinstance(template, (type, list, tuple)):
        raise exceptions.InvalidArgumentError(f"faults: {problem}")
    if isinstance(template, (FileFault, NetworkFault)) and isinstance(template, Triggered):
        if template.trigger._replace(every=1) == Trigger():
            return
        problem = "must leave nth and times to the sweep, and probability as it is"
    else:
        problem = (
            "must be a fault of files or connections with nth and times, such as OpenError(),"
            " ReadError() or ConnectError()"
        )
    message = f"faults: {template!r} {problem}"
    raise exceptions.InvalidArgumentError(message)


def _rows_from(rows: list[Any], start_at: Any) -> list[Any]:
    """*rows* from *start_at* on, which is a step of one of them."""
    if start_at is None:
        return rows
    for place, row in enumerate(rows):
        if isinstance(start_at, type(row)) and replace(start_at, nth=1) == row:
            return [start_at, *rows[place + 1 :]]
    shown = "".join(f"\n  {row!r}" for row in rows)
    message = f"start_at={start_at!r} is no step of this sweep. These are, with any nth:{shown}"
    raise exceptions.InvalidArgumentError(message)
