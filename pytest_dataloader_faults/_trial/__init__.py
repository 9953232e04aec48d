"""Run a job in a disposable process, and return what it wrote down [runs in pytest]."""

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
from pytest_dataloader_faults._settings import Settings, check, jobs
from pytest_dataloader_faults._trial import from_journal
from pytest_dataloader_faults._trial.factory import DatasetFactory, bind_factory
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
from pytest_dataloader_faults._trial.ranks import (
    combine_outcomes,
    make_only_rank,
    require_ranks,
    split_by_rank,
)
from pytest_dataloader_faults.exceptions import HarnessError, LostProcessError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference, TrialRequest
from pytest_dataloader_faults.outcomes.comparison import (
    DEFAULT_HANDLING,
    EXACT,
    Comparison,
    SampleHandling,
)
from pytest_dataloader_faults.outcomes.stacks import is_user_frame, sort_for_reader
from pytest_dataloader_faults.outcomes.text import to_plain
from pytest_dataloader_faults.steps import Arm, run_epochs

_ORDINARY = Settings()
_Result = TypeVar("_Result")
_STDERR_SHOWN = 4000
_FRAMES_SHOWN = 12
_STDERR_READ = 1 << 20
_OUR_FRAMES = re.compile(
    rf'  File "{re.escape(os.path.dirname(__file__))}/[^\n]*(\n  File [^\n]*)*'
)
"""From the call of the user's or torch's code to the start of its thread."""
_NOISE = re.compile(
    r'  File "[^"\n]*/_trial/child\.py", line \d+ in trial\n(  .*\n)*|\n*Extension modules: .*|\0'
)
"""What is left out of the report of a crash: pytest's own frames, the list of modules, and the NUL
by which torch ends what it writes of a signal."""


_KERNEL_ONLY = (
    "before_init=True needs the kernel engine, but engine={!r} selects the {} engine, which damages"
    " files in workers only. Remove before_init, or pass engine='kernel'"
)
_EXCLUDES_RANKS = (
    "ranks={} and before_init=True exclude each other, because rank faults are armed after the"
    " datasets are created. Remove one of them"
)
_NO_GUARD = (
    "a worker of a trial has imported the main module, which starts another trial. Move the"
    " script's statements below: if __name__ == '__main__':"
)


def run_trial(
    make_dataset: DatasetFactory,
    *faults: Fault,
    loader: Mapping[str, Any] | None = None,
    epochs: int = 1,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    before_init: bool = False,
    copy: str | os.PathLike[str] | None = None,
    ranks: int | None = None,
    on_rank: int | str | None = None,
) -> Outcome:
    """Run a loader over a dataset under *faults*, in a disposable process, and report the facts.

    If there are faults, one more pass over the same dataset object follows without them: the
    recovery pass.

    The faults are armed in the workers, after the dataset has been created. With *before_init* they
    are armed before *make_dataset* is called, and hit that function, the main process and the
    workers. So a file that the constructor maps or reads can already be damaged. The recovery pass
    then uses a new dataset, in a new process.

    With ``num_workers=0``, the disposable process itself is worker 0. Faults that need a worker are
    then refused: worker and connection faults, resource exhaustion, ``HungRead`` and
    ``ClosedDescriptor``.

    With *ranks*, that many processes train together, as under torchrun. Each of them calls
    *make_dataset* with RANK, WORLD_SIZE and related variables in its environment and with a gloo
    process group, and has its own loader and workers. After each batch the ranks synchronize in a
    collective, as under DDP. A map-style dataset gets a ``DistributedSampler``. Everything else is
    used unchanged.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``. If it has
            a required parameter for a folder, each trial passes a new, empty folder.
        *faults: The faults to inject, all in one schedule.
        loader: Options for the ``DataLoader``; by default ``num_workers=2, batch_size=4``.
        epochs: Passes under the faults. The first error ends them.
        deadline: Seconds for each epoch, and for the recovery pass; enforced from outside. Only the
            loader's own time counts. A trial that still makes progress or sleeps at the deadline
            gets up to 120 s more.
        seed: For the samplers, the workers, and faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        before_init: Whether to arm the faults before *make_dataset* is called. Requires the kernel
            engine.
        copy: A folder with data. It is copied before the faults are armed, and *make_dataset* gets
            the copy, which belongs to this trial, instead of an empty folder.
        ranks: How many processes train together, 2 to 8; None for a single process without ranks.
        on_rank: The rank in which the faults are armed, or ``"all"``; by default the last rank.

    Returns:
        Only facts; ``outcome.judge(reference)`` returns the verdict. With *ranks* they are the
        facts of the rank that failed first, or else of the rank with the faults; ``outcome.ranks``
        has all of them.

    Raises:
        InvalidArgumentError: An argument is invalid.
        UnusableDatasetError: *make_dataset* raised an error, or returned nothing that can be
            tested.
        EngineUnavailableError: This machine cannot run the engine.
        UnusableEnvironmentError: This machine lacks resources that every loader needs.
        HarnessError: The harness failed, so the trial proves nothing.

    """
    check(epochs=epochs)
    processes = run_epochs(epochs, before_init=before_init)
    job = jobs.TrialJob(
        make_dataset=make_dataset,
        faults=faults,
        settings=Settings.of(locals()),
        options=jobs.TrialOptions(processes=processes),
        may_take_longer=True,
        recovers_in_workers=True,
    )
    require_ranks(ranks, on_rank)
    if ranks is None:
        return run_trial_job(job)
    if before_init:
        raise exceptions.InvalidArgumentError(_EXCLUDES_RANKS.format(ranks))
    return run_ranks(job, on_rank)


def run_trial_job(request: jobs.TrialJob) -> Outcome:
    """``run_trial``, with every option that a check or a search can set."""
    job = make_only_rank(_with_engine(request), request.settings.ranks)
    (record,) = _run(job)
    return _outcome(job, record)


def run_ranks(
    request: jobs.TrialJob,
    on_rank: int | str | None = None,
    handlings: Sequence[SampleHandling] = (),
) -> Outcome:
    """Run the job in as many processes at once as its settings have ranks.

    *handlings*: of the samples of each rank, if those differ.
    """
    job = _with_engine(request)
    assert job.settings.ranks is not None
    with split_by_rank(job, job.settings.ranks, on_rank) as rank_jobs:
        for number, handling in enumerate(handlings):
            rank_jobs[number] = replace(rank_jobs[number], handling=handling)
        records = _run(*rank_jobs)
    outcomes = [_outcome(*each) for each in zip(rank_jobs, records, strict=True)]
    return combine_outcomes(
        job, list(zip(outcomes, [each.events for each in records], strict=True))
    )


def _request_of(job: jobs.TrialJob) -> TrialRequest:
    """What an outcome says about the *job*."""
    rank = job.rank_of_several
    return TrialRequest(
        schedule=job.faults,
        loader=to_plain(job.loader),
        epochs=jobs.count_epochs(job.options.processes),
        seed=job.settings.seed,
        deadline=job.deadline,
        engine=job.settings.engine,
        comparison=job.comparison,
        before_init=_is_armed_before_init(job),
        rank=rank.number if rank else None,
        copy=job.settings.copy,
    )


def _is_armed_before_init(job: jobs.TrialJob) -> bool:
    """Whether the faults are armed before the dataset is created."""
    return isinstance(job.options.processes[0][0], Arm)


def _with_engine(request: jobs.TrialJob) -> jobs.TrialJob:
    engine = engine_for(request.settings.engine, request.faults)
    if _is_armed_before_init(request) and engine != "kernel":
        raise exceptions.InvalidArgumentError(_KERNEL_ONLY.format(request.settings.engine, engine))
    return replace(request, settings=replace(request.settings, engine=engine))


def _outcome(job: jobs.TrialJob, record: _Record) -> Outcome:
    outcome = from_journal.outcome_from(_request_of(job), record.events)
    end = replace(outcome.end, stacks=record.stacks)
    return replace(outcome, end=end, stderr=record.stderr)


def take_reference(
    make_dataset: DatasetFactory,
    settings: Settings = _ORDINARY,
    *,
    comparison: Comparison = EXACT,
    handling: SampleHandling = DEFAULT_HANDLING,
    batches: Sequence[jobs.Drawn] | None = None,
    seconds: float | None = None,
) -> Reference:
    """Read the dataset sample by sample, without faults and workers."""
    request = jobs.ReferenceJob(
        make_dataset=make_dataset,
        settings=settings,
        comparison=comparison,
        handling=handling,
        batches=batches,
        seconds=seconds,
    )
    job = make_only_rank(request, settings.ranks)
    (record,) = repeat_if_killed(lambda: _run(job), _has_died)[-1]
    return _reference(job, record)


def take_references(
    request: jobs.ReferenceJob, batches: Sequence[Sequence[jobs.Drawn] | None]
) -> list[Reference]:
    """Read the samples of each rank; *batches*: what to request in each of them."""
    ranks = request.settings.ranks
    assert ranks is not None

    def run() -> list[_Record]:
        # A store cannot be used again by other ranks.
        with split_by_rank(request, ranks, None) as rank_jobs:
            return _run(*map(_limit_batches, rank_jobs, batches))

    records = repeat_if_killed(run, _has_died)[-1]
    return [_reference(request, each, rank=number) for number, each in enumerate(records)]


def _limit_batches(
    job: jobs.ReferenceJob, batches: Sequence[jobs.Drawn] | None
) -> jobs.ReferenceJob:
    return replace(job, batches=batches)


def repeat_if_killed(
    run: Callable[[], _Result], was_killed: Callable[[_Result], bool]
) -> list[_Result]:
    """The result of *run*, without a fault, and a second one if a process of it *was_killed*.

    One death may be the work of the OOM killer, or of another program, and shows nothing about the
    dataset. The last result counts: what dies twice does not die by accident.
    """
    result = run()
    return [result, run()] if was_killed(result) else [result]


def _has_died(records: Sequence[_Record]) -> bool:
    return any(each.end.exitcode for each in records)


def _reference(job: jobs.ReferenceJob, record: _Record, rank: int | None = None) -> Reference:
    prefix = "" if rank is None else f"rank {rank}: "
    if record.end.timed_out:
        message = (
            f"{prefix}no reference after {job.deadline:g} s, without faults or workers. Make the"
            " stream finite (itertools.islice), use fewer samples, or raise the deadline. It was"
            f" at:\n{_readable(record.stacks)}"
        )
        raise exceptions.UnusableDatasetError(message)
    try:
        return from_journal.reference_from(record.events, record.stderr)
    except exceptions.UnusableDatasetError as error:
        raise exceptions.UnusableDatasetError(f"{prefix}{error}") from None


def _readable(stacks: str) -> str:
    """*stacks* without the frames of this package, and of what called it."""
    return "\n".join(sort_for_reader(_OUR_FRAMES.sub("", stacks).strip().split("\n")))


class _Record(NamedTuple):
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


@environment.report_shortages()
def _run(*requests: jobs.Job) -> list[_Record]:
    """Do all *requests* at once, each below a warden; if there are several, they are ranks."""
    import torch.utils.data  # noqa: F401  # once here, not again in every trial

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise HarnessError(_NO_GUARD)

    from pytest_dataloader_faults._trial import child

    child.preload(requests[0].settings.engine)
    child.collapse_after_two_trials()
    with contextlib.ExitStack() as scope:
        running: list[_Started] = []
        try:
            for job in requests:
                # In a generator, a fork could not let go of an exception that the caller handles.
                running.append(_start(job, scope))  # noqa: PERF401
            started = tuple(running)
            ends = [_await_warden(running.pop(0)) for _ in started]
        finally:
            for trial in running:
                harness.end(trial.warden)
        return _collect_records(started, ends)


def _start(request: jobs.Job, scope: contextlib.ExitStack) -> _Started:
    """Start a warden for *request*; what is around it lasts as long as *scope*."""
    from pytest_dataloader_faults._trial import child

    rank = request.rank_of_several
    number = rank.number if rank else None
    make_dataset, private = bind_factory(request.make_dataset, number, request.settings.copy)
    job = replace(request, make_dataset=make_dataset)
    around = scope.enter_context(surroundings_for(job, private))
    sys.stdout.flush()
    sys.stderr.flush()
    warden = fork()
    if not warden:
        child.main(job, around)
    return _Started(job, around, ChildProcess(warden))


def _await_warden(started: _Started) -> int | None:
    """Wait until the warden has ended; its exit code, if that is known."""
    job, around, warden = started
    # The harness's work in the trial also has some seconds; and a rank may wait for another one.
    longest = job.longest(BUSY_SECONDS + MORE_SECONDS) + HARNESS_SECONDS
    return harness.wait_for(warden, longest * (2 if job.rank_of_several else 1), around.facts)


def _collect_records(started: Sequence[_Started], ends: Sequence[int | None]) -> list[_Record]:
    """The result of each job. Raises the error of a job that could not be done."""
    journals, printed = [], []
    for job, around, _ in started:
        journals.append(around.facts.events())
        printed.append(_NOISE.sub("", around.printed.text(_STDERR_READ)))
        environment.require_environment(job, journals[-1], printed[-1])
    _raise_refusals(journals, printed)
    return [_make_record(*each) for each in zip(started, ends, journals, printed, strict=True)]


def _make_record(
    started: _Started, code: int | None, events: list[JournalEvent], printed: str
) -> _Record:
    _, around, warden = started
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
    if end is None:
        around.await_deaths()
        around.remove_shared_memory()
        raise LostProcessError(
            harness.lost_warden_message(warden.pid, code, _format_printed(printed))
        )
    return _Record(events, end, _cut_printed(printed), around.stacks.text())


def _cut_printed(printed: str) -> str:
    """The end of what was *printed*, with the user's frames of a long stack that starts before."""
    cut, end = printed[:-_STDERR_SHOWN], printed[-_STDERR_SHOWN:]
    earlier = [each for each in cut.split("\n") if is_user_frame(each) or each.startswith("Fatal ")]
    return "\n".join([*earlier[-_FRAMES_SHOWN:], end])


def _format_printed(printed: str) -> str:
    return printed[-_STDERR_SHOWN:].strip() or "nothing"


def _raise_refusals(journals: Sequence[Sequence[JournalEvent]], printed: Sequence[str]) -> None:
    """Raise the error of the job that was refused first, if one was."""
    failures = [
        (event, number)
        for number, events in enumerate(journals)
        for event in events
        if isinstance(event, HarnessFailed | Refused | SeveralLoaders | InternalError)
        and not _waited_for_dead_rank(number, event, journals)
    ]
    for event, number in sorted(failures, key=lambda each: _order(each[0])):
        match event:
            case HarnessFailed():
                why = f"{event.why}.{event.supervisor_printed}"
                raise LostProcessError(
                    f"{why} The trial printed:\n{_format_printed(printed[number])}"
                )
            case Refused():
                lacking = [] if event.lacking is None else [event.lacking]
                is_of_dataset = REFUSALS[event.error] is exceptions.UnusableDatasetError
                rank = f"rank {number}: " if len(journals) > 1 and is_of_dataset else ""
                raise REFUSALS[event.error](f"{rank}{event.why}", *lacking)
            case SeveralLoaders():
                raise exceptions.MultipleLoadersError(event.why, event.parts)
            case InternalError():
                raise HarnessError(f"the trial's own code failed:\n{event.text}")


def _waited_for_dead_rank(
    rank: int, event: object, journals: Sequence[Sequence[JournalEvent]]
) -> bool:
    """Whether *rank* failed in our own code, waiting for a rank that was killed."""
    other_journals = (events for number, events in enumerate(journals) if number != rank)
    ends = (event for events in other_journals for event in events if isinstance(event, TrialEnded))
    environment = exceptions.UnusableEnvironmentError.__name__
    waits = isinstance(event, InternalError) or getattr(event, "error", None) == environment
    return waits and any(end.exitcode < 0 for end in ends)


def _order(event: object) -> tuple[bool, float]:
    """Failures of the harness are raised first, because they may cause other errors.

    A rank may be refused, or fail, because another one was: that one's process has exited.
    """
    at = math.inf if isinstance(event, InternalError) else getattr(event, "at", 0.0)
    return not isinstance(event, HarnessFailed), at
