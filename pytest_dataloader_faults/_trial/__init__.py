"""Run a trial in a process that is thrown away, and bring back what was found [runs in pytest]."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import _arguments, exceptions
from pytest_dataloader_faults._engine.processes import fork
from pytest_dataloader_faults._engine.scope import engine_for, require_faults
from pytest_dataloader_faults._trial.clock import OUR_SECONDS
from pytest_dataloader_faults._trial.process.environment import (
    reported_as_shortage,
    require_temporary_room,
)
from pytest_dataloader_faults._trial.process.shortages import require_environment
from pytest_dataloader_faults._trial.process.waiting import how_it_vanished, wait_for
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.faults import Fault, WorkerKilled
from pytest_dataloader_faults.lifecycle import Arm, KillWorker, Step
from pytest_dataloader_faults.outcomes import LifecycleOutcome, Outcome, Reference
from pytest_dataloader_faults.outcomes._reference import EXACT, Comparison
from pytest_dataloader_faults.outcomes._text import plain

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.job import Job


_STDERR_SHOWN = 4000
_STDERR_READ = 1 << 20
_NOISE = re.compile(
    r'  File "[^"\n]*/_trial/_child\.py", line \d+ in trial\n(  .*\n)*|\n*Extension modules: .*'
)


def run_trial(
    make_dataset: Callable[[], Any],
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
) -> Outcome:
    """Run a loader over a dataset under *faults*, in a disposable process, and tell what happened.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        *faults: What is to happen in its workers, all in one schedule.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``.
        epochs: Passes under the faults. The first error ends them.
        deadline: Seconds for all epochs, and as many for the recovery; enforced from outside.
        seed: Of the samplers and workers.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.

    Returns:
        Facts only; ``outcome.judge(reference)`` gives the verdict.

    Raises:
        InvalidArgumentError: An argument cannot be used.
        UnusableDatasetError: The factory raised, or returned nothing that can be tried.
        EngineUnavailableError: This machine cannot run the engine.
        UnusableEnvironmentError: It has too little of what any loader needs.
        InjectionError: The harness failed; nothing was shown.

    """
    how: dict[str, Any] = {"loader": loader, "epochs": epochs, "deadline": deadline, "seed": seed}
    return run_told(make_dataset, *faults, telling=EXACT, engine=engine, **how)


def observe(
    make_dataset: Callable[[], Any],
    *,
    loader: Mapping[str, Any] | None,
    changes: Mapping[str, Any],
    deadline: float,
    seed: int,
    engine: str,
    faults: tuple[Fault, ...] = (),
    epochs: int = 1,
    **how: Any,
) -> Outcome:
    """``run_trial`` as the battery needs it: *changes* overrule even a ready loader's options.

    *how*: what else ``Job`` has, as ``touch=True``.
    """
    asked = _asked(faults, {**(loader or {}), **changes}, epochs, deadline, seed, engine)
    job = _job_for(asked, make_dataset, loader)
    return _outcome(asked, replace(job, changes=changes, needs_workers=True, **how))


def run_told(
    make_dataset: Callable[[], Any],
    *faults: Fault,
    telling: Comparison,
    loader: Mapping[str, Any] | None,
    epochs: int,
    deadline: float,
    seed: int,
    engine: str,
) -> Outcome:
    """``run_trial``, with samples told apart as *telling* says."""
    _arguments.check(make_dataset=make_dataset, loader=loader)
    asked = _asked(faults, loader, epochs, deadline, seed, engine)
    return _outcome(asked, replace(_job_for(asked, make_dataset, loader), telling=telling))


def observe_life(
    make_dataset: Callable[[], Any],
    steps: tuple[Step, ...],
    *,
    loader: Mapping[str, Any] | None,
    deadline: float,
    seed: int,
    engine: str,
    telling: Comparison = EXACT,
) -> LifecycleOutcome:
    """Live through *steps* in a disposable process; *loader*: options of every loader in it."""
    from pytest_dataloader_faults._trial.journal import life_from

    armed = tuple(step.fault for step in steps if isinstance(step, Arm))
    killed = tuple(
        WorkerKilled(worker=step.worker) for step in steps if isinstance(step, KillWorker)
    )
    asked = _asked((*armed, *killed), loader, 1, deadline, seed, engine)
    job = replace(_job_for(asked, make_dataset, loader), faults=(), steps=steps, telling=telling)
    events, stderr, stacks = _run(job, deadline)
    asked = replace(asked, comparison=telling.description)
    return life_from(asked, steps, [*events, {"stderr": stderr, "stacks": stacks}])


def take_reference(
    make_dataset: Callable[[], Any],
    *,
    loader: Mapping[str, Any] | None = None,
    deadline: float = 30.0,
    seed: int = 0,
    asked: Sequence[tuple[Any, ...]] | None = None,
    **how: Any,
) -> Reference:
    """What the dataset gives sample by sample, with no fault and no worker.

    *asked*: the batches of indices to take; by default what the loader's sampler draws. *how*: what
    else ``Job`` has, as ``telling=...``.
    """
    from pytest_dataloader_faults._trial.job import Job
    from pytest_dataloader_faults._trial.journal import reference_from

    job = Job(make_dataset, options=loader, seed=seed, reference=True, asked=asked, **how)
    events, printed, stacks = _run(job, deadline)
    if any(event.get("died") for event in events):  # Once may be by a signal from outside.
        events, printed, stacks = _run(job, deadline)
    if any(event.get("timed_out") for event in events):
        message = (
            f"no reference within {deadline:g} s, with no fault and no worker. Give a stream an end"
            f" (itertools.islice), try fewer samples, or raise deadline. It was here:\n{stacks}"
        )
        raise exceptions.UnusableDatasetError(message)
    return reference_from(events, printed)


def _asked(
    faults: tuple[Fault, ...],
    loader: Mapping[str, Any] | None,
    epochs: int,
    deadline: float,
    seed: int,
    engine: str,
) -> Outcome:
    """The request, checked, as an outcome that has no facts yet."""
    require_faults(faults)
    _arguments.check(epochs=epochs, deadline=deadline, seed=seed)
    chosen = engine_for(engine, faults)
    return Outcome(tuple(faults), plain(loader or {}), epochs, seed, deadline, chosen)


def _job_for(
    asked: Outcome, make_dataset: Callable[[], Any], loader: Mapping[str, Any] | None
) -> Job:
    from pytest_dataloader_faults._trial.job import Job

    return Job(
        make_dataset,
        asked.schedule,
        asked.engine,
        loader,
        epochs=asked.epochs,
        seed=asked.seed,
        deadline=asked.deadline,
    )


def _outcome(asked: Outcome, job: Job) -> Outcome:
    from pytest_dataloader_faults._trial.journal import outcome_from

    events, stderr, stacks = _run(job, asked.deadline)
    asked = replace(asked, comparison=job.telling.description)
    return outcome_from(asked, [*events, {"stderr": stderr, "stacks": stacks}])


@reported_as_shortage()
def _run(job: Job, deadline: float) -> tuple[list[dict[str, Any]], str, str]:
    """Do *job* below a warden; its events, and what its processes printed, stacks apart."""
    import torch.utils.data  # noqa: F401  # once here, not again in every trial

    from pytest_dataloader_faults._trial import child
    from pytest_dataloader_faults._trial.journal import Journal

    folder = tempfile.mkdtemp(prefix="dlf-")  # Short: socket paths end at 107 bytes.
    child.preload(job.engine)
    journals = [Journal(name) for name in ("facts", "stderr", "stacks")]
    try:
        facts, printed, stacks = journals
        require_temporary_room(folder)
        sys.stdout.flush()
        sys.stderr.flush()
        warden = fork()
        if not warden:
            child.main(job, deadline, facts, printed, stacks, folder)
        # The recovery has a deadline of its own, and our own work in the trial some seconds.
        status = wait_for(warden, 2 * deadline + OUR_SECONDS, facts)
        events, stderr = facts.events(), printed.text(_STDERR_READ)
        require_environment(job, events, stderr)
        _raise_what_was_refused(events, stderr)
        if not any("timed_out" in event for event in events):
            raise InjectionError(how_it_vanished(warden, status, _shown(stderr)))
        most = _STDERR_SHOWN * max(1, len(job.steps))
        return events, _end_of(stderr, most), stacks.text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # The warden has done so, if it was let.
        for journal in journals:
            journal.close()


def _end_of(printed: str, most: int) -> str:
    """What is shown of it: of a crash, not pytest's own frames and not the list of modules."""
    return _NOISE.sub("", printed)[-most:]


def _shown(printed: str) -> str:
    return _end_of(printed, _STDERR_SHOWN).strip() or "nothing"


def _raise_what_was_refused(events: list[dict[str, Any]], printed: str) -> None:
    # What befell the harness goes first: whatever else it wrote down may come of that.
    for event in sorted(events, key=lambda event: "hurt" not in event):
        if "hurt" in event:
            message = f"{event['hurt']}. The trial printed:\n{_shown(printed)}"
            raise InjectionError(message)
        if "refused" in event:
            raise getattr(exceptions, event["refused"])(event["why"])
        if "broken" in event:
            message = f"the trial's own code failed:\n{event['broken']}"
            raise InjectionError(message)
