"""Run a job in a disposable process, and bring back what was found [runs in pytest]."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pytest_dataloader_faults._engine import not_linux

if sys.platform != "linux":  # Much of what is imported below is not there.
    raise not_linux()

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._engine.scope import engine_for
from pytest_dataloader_faults._engine.system.children import ChildProcess
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
from pytest_dataloader_faults._trial.process.surroundings import Surroundings, surroundings_for
from pytest_dataloader_faults._trial.ranks import alone, combined, jobs_of, require_ranks
from pytest_dataloader_faults.exceptions import InjectionError, LostProcessError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import (
    DEFAULT_HANDLING,
    EXACT,
    Comparison,
    SampleHandling,
)
from pytest_dataloader_faults.outcomes.stacks import for_reader, is_users

_ORDINARY = Settings()
_Result = TypeVar("_Result")
_STDERR_SHOWN = 4000
_FRAMES_SHOWN = 12
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
    copy: str | os.PathLike[str] | None = None,
    ranks: int | None = None,
    on_rank: int | str | None = None,
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

    With *ranks*, so many processes train together, as under torchrun. Each calls *make_dataset*,
    with RANK, WORLD_SIZE and the like in its environment and with a process group of gloo, and has
    a loader with workers of its own. After each batch the ranks meet in a collective, as DDP has
    them do. A map-style dataset gets a ``DistributedSampler``. All else is taken as it is.

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
        copy: A folder with data. It is copied before the faults are there, and *make_dataset* gets
            the copy, for that trial alone, in place of an empty folder.
        ranks: How many processes train together, 2 to 8; None for one that is no rank.
        on_rank: In which rank the faults are armed, or ``"all"``; by default in the last one.

    Returns:
        Facts only; ``outcome.judge(reference)`` gives the verdict. With *ranks* they are those of
        the rank that failed first, or else of the one with the faults; ``outcome.ranks`` has all.

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
    require_ranks(ranks, on_rank, from_start=from_start)
    return run_trial_job(job) if ranks is None else run_ranks(job, on_rank)


def run_trial_job(asked: jobs.TrialJob) -> Outcome:
    """``run_trial``, with all that a check or a search can ask for."""
    job = alone(_with_engine(asked), asked.settings.ranks)
    (found,) = _run(job)
    return _outcome(job, found)


def run_ranks(
    asked: jobs.TrialJob,
    on_rank: int | str | None = None,
    handlings: Sequence[SampleHandling] = (),
) -> Outcome:
    """Likewise, as many times at once as its settings have ranks.

    *handlings*: of the samples of each rank, where those differ.
    """
    job = _with_engine(asked)
    assert job.settings.ranks is not None
    with jobs_of(job, job.settings.ranks, on_rank) as every:
        for number, handling in enumerate(handlings):
            every[number] = replace(every[number], handling=handling)
        found = _run(*every)
    outcomes = [_outcome(*each) for each in zip(every, found, strict=True)]
    return combined(job, list(zip(outcomes, [each.events for each in found], strict=True)))


def _with_engine(asked: jobs.TrialJob) -> jobs.TrialJob:
    engine = engine_for(asked.settings.engine, asked.faults)
    if asked.options.from_start and engine != "kernel":
        raise exceptions.InvalidArgumentError(_KERNEL_ONLY.format(asked.settings.engine, engine))
    return replace(asked, settings=replace(asked.settings, engine=engine))


def _outcome(job: jobs.TrialJob, found: _Found) -> Outcome:
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
    asked = jobs.ReferenceJob(
        make_dataset=make_dataset,
        settings=settings,
        comparison=comparison,
        handling=handling,
        batches=batches,
        seconds=seconds,
    )
    job = alone(asked, settings.ranks)
    (found,) = repeat_if_killed(lambda: _run(job), _has_died)[-1]
    return _reference(job, found)


def take_references(
    asked: jobs.ReferenceJob, batches: Sequence[Sequence[jobs.Drawn] | None]
) -> list[Reference]:
    """What the dataset gives each rank; *batches*: what to ask for in each of them."""
    ranks = asked.settings.ranks
    assert ranks is not None

    def run() -> list[_Found]:
        with jobs_of(asked, ranks, None) as every:  # A store is used up by the ranks that met.
            return _run(*map(_with_batches, every, batches))

    found = repeat_if_killed(run, _has_died)[-1]
    return [_reference(asked, each, rank=number) for number, each in enumerate(found)]


def _with_batches(
    job: jobs.ReferenceJob, batches: Sequence[jobs.Drawn] | None
) -> jobs.ReferenceJob:
    return replace(job, batches=batches)


def repeat_if_killed(
    run: Callable[[], _Result], was_killed: Callable[[_Result], bool]
) -> list[_Result]:
    """The result of *run*, which has no fault, and a second one if a process of it *was_killed*.

    One death may be the work of the OOM killer, or of another program, and shows nothing about the
    dataset. The last result counts: what dies twice does not die by accident.
    """
    first = run()
    return [first, run()] if was_killed(first) else [first]


def _has_died(found: Sequence[_Found]) -> bool:
    return any(each.end.exitcode for each in found)


def _reference(job: jobs.ReferenceJob, found: _Found, rank: int | None = None) -> Reference:
    who = "" if rank is None else f"rank {rank}: "
    if found.end.timed_out:
        message = (
            f"{who}no reference within {job.deadline:g} s, with no fault and no worker. Give a"
            " stream an end (itertools.islice), try fewer samples, or raise deadline. It was"
            " here:\n"
            f"{_readable(found.stacks)}"
        )
        raise exceptions.UnusableDatasetError(message)
    try:
        return from_journal.reference_from(found.events, found.stderr)
    except exceptions.UnusableDatasetError as error:
        raise exceptions.UnusableDatasetError(f"{who}{error}") from None


def _readable(stacks: str) -> str:
    """*stacks* without the frames of this package, and of what called it."""
    return "\n".join(for_reader(_OUR_FRAMES.sub("", stacks).strip().split("\n")))


class _Found(NamedTuple):
    """The events of a trial that is over, what its processes printed, and their stacks."""

    events: Sequence[JournalEvent]
    end: TrialEnded
    stderr: str
    stacks: str


class _Started(NamedTuple):
    """A job that runs below its warden."""

    job: jobs.Job
    around: Surroundings
    warden: ChildProcess


@environment.reported_as_shortage()
def _run(*asked: jobs.Job) -> list[_Found]:
    """Do all that was *asked* at once, each job below a warden; they are ranks if several."""
    import torch.utils.data  # noqa: F401  # once here, not again in every trial

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InjectionError(_NO_GUARD)

    from pytest_dataloader_faults._trial import child

    child.preload(asked[0].settings.engine)
    child.collapse_after_some_trials()
    with contextlib.ExitStack() as scope:
        running: list[_Started] = []
        try:
            for job in asked:
                # In a generator, a fork could not let go of an exception that the caller handles.
                running.append(_start(job, scope))  # noqa: PERF401
            started = tuple(running)
            ends = [_await(running.pop(0)) for _ in started]
        finally:
            for each in running:
                harness.end(each.warden)
        return _checked(started, ends)


def _start(asked: jobs.Job, scope: contextlib.ExitStack) -> _Started:
    """Start a warden for *asked*; what is around it lasts as long as *scope*."""
    from pytest_dataloader_faults._trial import child

    rank = asked.rank_of_several
    number = rank.number if rank else None
    make_dataset, private = bound(asked.make_dataset, number, asked.settings.copy)
    job = replace(asked, make_dataset=make_dataset)
    around = scope.enter_context(surroundings_for(job, private))
    sys.stdout.flush()
    sys.stderr.flush()
    warden = fork()
    if not warden:
        child.main(job, around)
    return _Started(job, around, ChildProcess(warden))


def _await(started: _Started) -> int | None:
    """Wait until the warden has ended; its exit code, if that is known."""
    job, around, warden = started
    # Our own work in the trial has some seconds, too; and a rank may wait for another one.
    longest = job.longest(BUSY_SECONDS + MORE_SECONDS) + HARNESS_SECONDS
    return harness.wait_for(warden, longest * (2 if job.rank_of_several else 1), around.facts)


def _checked(started: Sequence[_Started], ends: Sequence[int | None]) -> list[_Found]:
    """What each job found, unless one of them could not be done, whose error is raised then."""
    found, printed = [], []
    for job, around, _ in started:
        found.append(around.facts.events())
        printed.append(_NOISE.sub("", around.printed.text(_STDERR_READ)))
        environment.require_environment(job, found[-1], printed[-1])
    _raise_what_was_refused(found, printed)
    return [_found(*each) for each in zip(started, ends, found, printed, strict=True)]


def _found(started: _Started, code: int | None, events: list[JournalEvent], printed: str) -> _Found:
    _, around, warden = started
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
    if end is None:
        around.await_deaths()
        around.remove_shared_memory()
        raise LostProcessError(harness.how_it_vanished(warden.pid, code, _shown(printed)))
    return _Found(events, end, _end_of(printed), around.stacks.text())


def _end_of(printed: str) -> str:
    """The end of what was *printed*, with the user's frames of a long stack that begins before."""
    cut, end = printed[:-_STDERR_SHOWN], printed[-_STDERR_SHOWN:]
    before = [each for each in cut.split("\n") if is_users(each) or each.startswith("Fatal ")]
    return "\n".join([*before[-_FRAMES_SHOWN:], end])


def _shown(printed: str) -> str:
    return printed[-_STDERR_SHOWN:].strip() or "nothing"


def _raise_what_was_refused(
    found: Sequence[Sequence[JournalEvent]], printed: Sequence[str]
) -> None:
    """Raise the error of the job that was refused first, if one was."""
    every = [
        (event, number)
        for number, events in enumerate(found)
        for event in events
        if isinstance(event, HarnessFailed | Refused | SeveralLoaders | InternalError)
    ]
    for event, number in sorted(every, key=lambda each: _order(each[0])):
        match event:
            case HarnessFailed():
                why = f"{event.why}.{event.supervisor_printed}"
                raise LostProcessError(f"{why} The trial printed:\n{_shown(printed[number])}")
            case Refused():
                more = [] if event.lacking is None else [event.lacking]
                is_of_dataset = REFUSALS[event.error] is exceptions.UnusableDatasetError
                rank = f"rank {number}: " if len(found) > 1 and is_of_dataset else ""
                raise REFUSALS[event.error](f"{rank}{event.why}", *more)
            case SeveralLoaders():
                raise exceptions.SeveralLoadersError(event.why, event.parts)
            case InternalError():
                raise InjectionError(f"the trial's own code failed:\n{event.text}")


def _order(event: object) -> tuple[bool, float]:
    """What went wrong with the harness goes first, since other errors may come of that.

    A rank may be refused, or fail, since another one was: the process of that one is gone then.
    """
    at = math.inf if isinstance(event, InternalError) else getattr(event, "at", 0.0)
    return not isinstance(event, HarnessFailed), at
