"""Run a job in a disposable process, and bring back what was found [runs in pytest]."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine import not_linux

if sys.platform != "linux":  # Much of what is imported below is not there.
    raise not_linux()

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._engine.scope import engine_for
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._settings import Settings, jobs
from pytest_dataloader_faults._trial import from_journal
from pytest_dataloader_faults._trial.factory import DatasetFactory, bound
from pytest_dataloader_faults._trial.journal import (
    REFUSALS,
    HarnessFailed,
    InternalError,
    JournalEvent,
    Refused,
    SeveralLoaders,
    TrialEnded,
)
from pytest_dataloader_faults._trial.process import environment, harness
from pytest_dataloader_faults._trial.process.deadline import (
    BUSY_SECONDS,
    HARNESS_SECONDS,
    MORE_SECONDS,
)
from pytest_dataloader_faults._trial.process.surroundings import surroundings_for
from pytest_dataloader_faults.exceptions import InjectionError, LostProcessError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import (
    DEFAULT_HANDLING,
    EXACT,
    Comparison,
    SampleHandling,
)

_ORDINARY = Settings()
_STDERR_SHOWN = 4000
_STDERR_READ = 1 << 20
_OUR_FRAMES = re.compile(
    rf'  File "{re.escape(os.path.dirname(__file__))}/[^\n]*(\n  File [^\n]*)*'
)
"""From the call of the user's code, or of torch's, to where its thread began."""
_NOISE = re.compile(
    r'  File "[^"\n]*/_trial/child\.py", line \d+ in trial\n(  .*\n)*|\n*Extension modules: .*|\0'
)
"""What is left out of the report of a crash: pytest's own frames, the list of modules, and the NUL
by which torch ends what it writes of a signal."""


_KERNEL_ONLY = (
    "from_start=True takes the kernel engine, and engine={!r} gives the {} engine, which can damage"
    " files in workers only. Leave from_start out, or use engine='kernel'"
)
_NO_GUARD = (
    "a worker of a trial has imported the main module, and that runs a trial of its own. Put what"
    " the script does below: if __name__ == '__main__':"
)


def run_trial(
    make_dataset: DatasetFactory,
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    from_start: bool = False,
) -> Outcome:
    """Run a loader over a dataset under *faults*, in a disposable process, and report the facts.

    If there are faults, one more pass over the same dataset object follows without them: the
    recovery.

    The faults begin in the workers, once the dataset was made. With *from_start* they are there
    before: what *make_dataset* calls meets them, the loader's process, and the workers. So a file
    that is mapped or read in a constructor can be one that was damaged before. The recovery is then
    made with a new dataset, by a new process.

    With ``num_workers=0`` the disposable process itself is worker 0. Faults that need a worker are
    refused there: those of workers, of connections and of what runs out, ``HungRead`` and
    ``ClosedDescriptor``.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``. If it has
            a required parameter for a folder, it gets an empty one, for that trial alone.
        *faults: What happens in its workers, all in one schedule.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``.
        epochs: Passes under the faults. The first error ends them.
        deadline: Seconds for each epoch, and as many for the recovery; enforced from outside. Only
            the loader's own time counts. A trial that goes on then, or sleeps, gets up to 120 more.
        seed: Of the samplers, the workers, and the faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        from_start: Whether the faults are there before *make_dataset* is called. It takes the
            kernel engine.

    Returns:
        Facts only; ``outcome.judge(reference)`` gives the verdict.

    Raises:
        InvalidArgumentError: An argument cannot be used.
        UnusableDatasetError: The factory raised, or returned nothing that can be tried.
        EngineUnavailableError: This machine cannot run the engine.
        UnusableEnvironmentError: It has too little of what any loader needs.
        InjectionError: The harness failed; nothing was shown.

    """
    job = jobs.TrialJob(
        make_dataset=make_dataset,
        faults=faults,
        settings=Settings.of(locals()),
        options=jobs.TrialOptions(epochs=epochs, from_start=from_start),
        may_take_longer=True,
    )
    return run_trial_job(job)


def run_trial_job(asked: jobs.TrialJob) -> Outcome:
    """``run_trial``, with all that a check or a search can ask for."""
    engine = engine_for(asked.settings.engine, asked.faults)
    if asked.options.from_start and engine != "kernel":
        raise exceptions.InvalidArgumentError(_KERNEL_ONLY.format(asked.settings.engine, engine))
    job = replace(asked, settings=replace(asked.settings, engine=engine))
    found = _run(job)
    outcome = from_journal.outcome_from(job.request, found.events)
    return replace(outcome, stderr=found.stderr, stacks=found.stacks)


def take_reference(
    make_dataset: DatasetFactory,
    settings: Settings = _ORDINARY,
    *,
    comparison: Comparison = EXACT,
    handling: SampleHandling = DEFAULT_HANDLING,
    batches: Sequence[jobs.Drawn] | None = None,
    seconds: float | None = None,
) -> Reference:
    """What the dataset gives sample by sample, with no fault and no worker."""
    job = jobs.ReferenceJob(
        make_dataset=make_dataset,
        settings=settings,
        comparison=comparison,
        handling=handling,
        batches=batches,
        seconds=seconds,
    )
    found = _run(job)
    if found.end.exitcode:  # Once may be by a signal from outside.
        found = _run(job)
    if found.end.timed_out:
        message = (
            f"no reference within {job.deadline:g} s, with no fault and no worker. Give a stream an"
            " end (itertools.islice), try fewer samples, or raise deadline. It was here:\n"
            f"{_OUR_FRAMES.sub('', found.stacks).strip()}"
        )
        raise exceptions.UnusableDatasetError(message)
    return from_journal.reference_from(found.events, found.stderr)


class _Found(NamedTuple):
    """The events of a trial that is over, what its processes printed, and their stacks."""

    events: Sequence[JournalEvent]
    end: TrialEnded
    stderr: str
    stacks: str


@environment.reported_as_shortage()
def _run(job: jobs.Job) -> _Found:
    """Do *job* below a warden."""
    import torch.utils.data  # noqa: F401  # once here, not again in every trial

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InjectionError(_NO_GUARD)

    from pytest_dataloader_faults._trial import child

    make_dataset, private = bound(job.make_dataset)
    job = replace(job, make_dataset=make_dataset)
    child.preload(job.settings.engine)
    child.collapse_after_some_trials()
    with surroundings_for(job, private) as around:
        sys.stdout.flush()
        sys.stderr.flush()
        warden = fork()
        if not warden:
            child.main(job, around)
        # Our own work in the trial has some seconds, too.
        longest = job.longest(BUSY_SECONDS + MORE_SECONDS) + HARNESS_SECONDS
        status = harness.wait_for(warden, longest, around.facts)
        events, stderr = around.facts.events(), _NOISE.sub("", around.printed.text(_STDERR_READ))
        environment.require_environment(job, events, stderr)
        _raise_what_was_refused(events, stderr)
        end = next((event for event in events if isinstance(event, TrialEnded)), None)
        if end is None:
            around.await_deaths()
            around.remove_shared_memory()
            raise LostProcessError(harness.how_it_vanished(warden, status, _shown(stderr)))
        return _Found(events, end, stderr[-_STDERR_SHOWN:], around.stacks.text())


def _shown(printed: str) -> str:
    return printed[-_STDERR_SHOWN:].strip() or "nothing"


def _raise_what_was_refused(events: Sequence[JournalEvent], printed: str) -> None:
    # What went wrong with the harness goes first: other errors may come of that.
    for event in sorted(events, key=lambda event: not isinstance(event, HarnessFailed)):
        match event:
            case HarnessFailed():
                why = f"{event.why}.{event.supervisor_printed}"
                raise LostProcessError(f"{why} The trial printed:\n{_shown(printed)}")
            case Refused():
                more = [] if event.lacking is None else [event.lacking]
                raise REFUSALS[event.error](event.why, *more)
            case SeveralLoaders():
                raise exceptions.SeveralLoadersError(event.why, event.parts)
            case InternalError():
                raise InjectionError(f"the trial's own code failed:\n{event.text}")
