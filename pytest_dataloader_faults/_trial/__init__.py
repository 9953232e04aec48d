"""Run a job in a disposable process, and return what it wrote down [runs in pytest]."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pytest_dataloader_faults._engine import unavailable

if sys.platform != "linux":  # Much of what is imported below is not there.
    raise unavailable()

from pytest_dataloader_faults import exceptions, steps
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.scope import require_engine_for
from pytest_dataloader_faults._engine.system.processes import ChildProcess, fork
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults._trial.factory import DatasetFactory, bind_factory
from pytest_dataloader_faults._trial.job import Job, TakeReference, count_epochs
from pytest_dataloader_faults._trial.journal import (
    Failed,
    JournalEvent,
    TrialEnded,
    add_to_history,
    failed,
    outcome_from,
    reference_from,
)
from pytest_dataloader_faults._trial.process import surroundings
from pytest_dataloader_faults._trial.process.clock import (
    BUSY_SECONDS,
    HARNESS_SECONDS,
    MORE_SECONDS,
)
from pytest_dataloader_faults.exceptions import HarnessError, LostProcessError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference, TrialEnd, TrialRequest
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY
from pytest_dataloader_faults.outcomes.text import is_user_frame, sort_for_reader, to_plain

_ORDINARY = Settings()
_Result = TypeVar("_Result")
_STDERR_SHOWN = 4000
_FRAMES_SHOWN = 12
_STDERR_READ = 1 << 20
_OUR_FILE = rf'  File "{re.escape(os.path.dirname(__file__))}/[^"\n]*"'
_OUR_FRAMES = re.compile(rf"{_OUR_FILE}[^\n]*(\n  File [^\n]*)*")
"""From the call of the user's or torch's code to the start of its thread."""
_NOISE = re.compile(rf"{_OUR_FILE}, line \d+ in trial\n(  .*\n)*|\n*Extension modules: .*|\0")
"""What is left out of the report of a crash: pytest's own frames, the list of modules, and the NUL
by which torch ends what it writes of a signal."""


_OF_WAITING = (HarnessError, exceptions.UnusableEnvironmentError)
_REAL_FILES_ONLY = (
    "before_init=True needs real files, but pyfakefs replaces them. Use files in pytest's tmp_path,"
    " or remove before_init"
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
        before_init: Whether to arm the faults before *make_dataset* is called. Not with fake files.
        copy: A folder with data. It is copied before the faults are armed, and *make_dataset* gets
            the copy, which belongs to this trial, instead of an empty folder.
        ranks: How many processes train together, 2 to 8; None for a single process without ranks.
        on_rank: The rank in which the faults are armed, or ``"all"``; by default the last rank.

    Returns:
        Only facts, without a verdict. With *ranks* they are the facts of the rank that failed
        first, or else of the rank with the faults; ``outcome.ranks`` has all of them.

    Raises:
        InvalidArgumentError: An argument is invalid.
        UnusableDatasetError: *make_dataset* raised an error, or returned nothing that can be
            tested.
        EngineUnavailableError: No fault can be injected on this machine.
        UnusableEnvironmentError: This machine lacks resources that every loader needs.
        HarnessError: The harness failed, so the trial proves nothing.

    """
    check(epochs=epochs)
    processes = steps.run_epochs(epochs, before_init=before_init)
    job = Job(
        make_dataset=make_dataset,
        faults=faults,
        settings=Settings.of(locals()),
        options=steps.TrialOptions(processes=processes),
        may_take_longer=True,
        recovers_in_workers=True,
    )
    if ranks is None and on_rank is None:
        return run_trial_job(job)
    if before_init:
        raise exceptions.InvalidArgumentError(_EXCLUDES_RANKS.format(ranks))
    from pytest_dataloader_faults._trial.ranks import run_ranks  # It needs this module.

    return run_ranks(job, on_rank)


def run_trial_job(request: Job) -> Outcome:
    """``run_trial``, with every option that a check or a search can set.

    If a recovery pass without workers fails, the whole trial is run again, with workers in that
    pass. A second pass of the same trial might succeed only because the first one has failed.
    """
    outcome = _run_once(request)
    may_recover = request.may_recover_in_child and outcome.phase in (RECOVERY, DONE)
    if not may_recover or (outcome.recovery and outcome.recovery.complete):
        return outcome
    return _run_once(replace(request, recovers_in_workers=True))


def _run_once(request: Job) -> Outcome:
    require_engine_for_job(request)
    job = _job_for(request)
    (record,) = run_together(job)
    return outcome_of(job, record)


def _job_for(request: Job) -> Job:
    """*request*, as the only rank if its settings are for several ranks."""
    if request.settings.ranks is None:
        return request
    from pytest_dataloader_faults._trial.ranks import make_only_rank  # It needs this module.

    return make_only_rank(request)


def _request_of(job: Job) -> TrialRequest:
    """What an outcome says about the *job*."""
    rank = job.rank_of_several
    return TrialRequest(
        schedule=job.faults,
        loader=to_plain(job.loader),
        epochs=count_epochs(job.options.processes),
        seed=job.settings.seed,
        deadline=job.deadline,
        comparison=job.comparison,
        before_init=is_armed_before_init(job),
        rank=rank.number if rank else None,
        copy=job.settings.copy,
    )


def is_armed_before_init(job: Job) -> bool:
    """Whether the faults are armed before the dataset is created."""
    return job.options.processes[0][0] is steps.Action.ARM


def require_engine_for_job(request: Job) -> None:
    """Raise an error if the faults of *request* cannot be injected here."""
    require_engine_for(request.faults)
    if is_armed_before_init(request) and fake_files() is not None:
        raise exceptions.InvalidArgumentError(_REAL_FILES_ONLY)


def outcome_of(job: Job, record: Record) -> Outcome:
    """The outcome of *job*, which wrote the *record*."""
    outcome = outcome_from(_request_of(job), record.events, record.all_printed)
    add_to_history(job.history, outcome, record.events)
    return replace(outcome, end=record.end, stderr=record.stderr)


def take_reference(
    make_dataset: DatasetFactory,
    settings: Settings = _ORDINARY,
    step: TakeReference = TakeReference(),  # noqa: B008  # It is frozen.
    **facts: Any,
) -> Reference:
    """Read the dataset sample by sample, without faults and workers; *facts*: of the job."""
    options = steps.TrialOptions(processes=((step,),))
    job = _job_for(Job(make_dataset=make_dataset, settings=settings, options=options, **facts))
    runs = repeat_if_killed(lambda: run_together(job), lambda records: records[0].end.exitcode != 0)
    (record,) = runs[-1]
    if record.end.at_deadline:
        stacks = sort_for_reader(_OUR_FRAMES.sub("", record.end.stacks).strip().split("\n"))
        message = (
            f"no reference after {job.deadline:g} s, without faults or workers. Make the stream"
            " finite (itertools.islice), use fewer samples, or raise the deadline. It was at:\n"
        )
        raise exceptions.UnusableDatasetError(message + "\n".join(stacks))
    return reference_from(record.events, record.end, record.stderr)


def repeat_if_killed(
    run: Callable[[], _Result], was_killed: Callable[[_Result], bool]
) -> list[_Result]:
    """The result of *run*, without a fault, and a second one if a process of it *was_killed*.

    One death may be the work of the OOM killer, or of another program, and shows nothing about the
    dataset. The last result counts: what dies twice does not die by accident.
    """
    result = run()
    return [result, run()] if was_killed(result) else [result]


class Record(NamedTuple):
    """The events of a trial that is over, how it ended, and what its processes printed."""

    events: Sequence[JournalEvent]
    end: TrialEnd
    all_printed: str

    @property
    def stderr(self) -> str:
        """The end of what was printed, with the user's frames of a long stack before it."""
        return _cut_printed(self.all_printed)


class _Started(NamedTuple):
    """A job that runs below its warden."""

    job: Job
    around: surroundings.Surroundings
    warden: ChildProcess


def _prepare_fork() -> None:
    """Do in this process what would otherwise be done again in each trial."""
    import torch.utils.data  # noqa: F401  # once here, not again in every trial

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise HarnessError(_NO_GUARD)

    from pytest_dataloader_faults._engine.system.libc import collapse_after_two_scopes
    from pytest_dataloader_faults._trial import warden

    warden.preload()
    collapse_after_two_scopes()


@surroundings.report_shortages()
def run_together(*requests: Job) -> list[Record]:
    """Do all *requests* at once, each below a warden; if there are several, they form a group."""
    _prepare_fork()
    with contextlib.ExitStack() as scope:
        if (rank := requests[0].rank) and rank.shares_folder:
            _, folders = bind_factory(requests[0].make_dataset, None, requests[0].settings.copy)
            scope.enter_context(surroundings.shared_folders(folders, requests[0].settings.copy))
        running: list[_Started] = []
        fired = SharedCount()
        try:
            for job in requests:
                # In a generator, a fork could not let go of an exception that the caller handles.
                running.append(_start(job, fired, scope))  # noqa: PERF401
            started = tuple(running)
            ends = [_await_warden(running.pop(0)) for _ in started]
        finally:
            for trial in running:
                surroundings.end(trial.warden)
        return _collect_records(started, ends)


def _start(request: Job, fired: SharedCount, scope: contextlib.ExitStack) -> _Started:
    """Start a warden for *request* with *scope*; *fired* counts the faults of its group."""
    from pytest_dataloader_faults._trial.warden import main

    rank = request.rank_of_several
    number = rank.number if rank and not rank.shares_folder else None
    make_dataset, private = bind_factory(request.make_dataset, number, request.settings.copy)
    job = replace(request, make_dataset=make_dataset)
    around = scope.enter_context(surroundings.surroundings_for(job, private, fired))
    sys.stdout.flush()
    sys.stderr.flush()
    warden = fork()
    if not warden:
        main(job, around)
    return _Started(job, around, ChildProcess(warden))


def _await_warden(started: _Started) -> int | None:
    """Wait until the warden has ended; its exit code, if that is known."""
    job, around, warden = started
    # The harness's work in the trial also has some seconds; and it may wait for another job.
    longest = job.passes * (job.deadline + BUSY_SECONDS + MORE_SECONDS) + HARNESS_SECONDS
    deadline = longest * (2 if job.rank_of_several else 1)
    return surroundings.wait_for(warden, deadline, around.facts)


def _collect_records(started: Sequence[_Started], ends: Sequence[int | None]) -> list[Record]:
    """The result of each job. Raises the error of a job that could not be done."""
    records = []
    for (job, around, warden), code in zip(started, ends, strict=True):
        if not any(around.facts.of(TrialEnded)):
            if not any(around.facts.of(Failed)):
                around.facts.write(failed(surroundings.lost_warden_error(warden.pid, code)))
            around.end_processes(warden.pid)
        events, printed = around.facts.events(), _NOISE.sub("", around.printed.text(_STDERR_READ))
        surroundings.require_environment(job, events, printed)
        end = next((event.end for event in events if isinstance(event, TrialEnded)), TrialEnd())
        records.append(Record(events, replace(end, stacks=around.stacks.text()), printed))
    _raise_refusals([each.job for each in started], records)
    return records


def _cut_printed(printed: str) -> str:
    """The end of what was *printed*, and of long stacks before it what is the user's.

    That is what preceded a crash, and the user's frames: workers that crash together print over
    one another, and long stacks.
    """
    cut, end = printed[:-_STDERR_SHOWN].split("\n"), printed[-_STDERR_SHOWN:]
    crash = next((place for place, line in enumerate(cut) if line.startswith("Fatal ")), 0)
    earlier = [each for each in cut[crash:] if is_user_frame(each) or each.startswith("Fatal ")]
    return "\n".join([*cut[:crash][-_FRAMES_SHOWN:], *earlier[-_FRAMES_SHOWN:], end])


def _raise_refusals(jobs: Sequence[Job], records: Sequence[Record]) -> None:
    """Raise the error of the job that was refused first, if one was.

    Our own code may fail in a job because it waits for another one, which was killed.
    """
    events = [(event, number) for number, each in enumerate(records) for event in each.events]
    ended = {number for event, number in events if isinstance(event, TrialEnded)}
    killed = {number for number in ended if records[number].end.exitcode < 0}
    waiting = {number for number in ended if killed - {number}}
    failures = [
        (event, number)
        for event, number in events
        if isinstance(event, Failed) and not (event.kind in _OF_WAITING and number in waiting)
    ]
    if not failures:
        return
    failure, number = min(failures, key=lambda each: _order(each[0]))
    kind, why = failure.kind, failure.why
    if kind is HarnessError:
        why = f"the trial's own code failed:\n{why}"
    elif kind is LostProcessError:
        printed = records[number].all_printed[-_STDERR_SHOWN:].strip()
        why = f"{why} The trial printed:\n{printed or 'nothing'}"
    elif kind is exceptions.UnusableDatasetError:
        why = f"rank {number}: {why}" if jobs[number].rank_of_several else why
    raise kind(why, *[failure.lacking] if failure.lacking is not None else [])


def _order(failure: Failed) -> tuple[bool, bool, float]:
    """Failures of the harness are raised first, because they may cause other errors.

    A job may be refused, or fail, because another one was: that one's process has exited.
    """
    return failure.kind is not LostProcessError, failure.kind is HarnessError, failure.at
