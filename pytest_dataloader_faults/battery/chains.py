"""Trials that share a process, because most of what a trial costs is not its epoch.

Some facts about trials in one process. Each epoch has new workers, so that what a fault leaves in
these is gone by the next epoch. It may leave more elsewhere: in memory or files that processes
share, in another program, or in the main process, as in a sampler. Then the next trial is not the
one that its check alone would have: a cache hides files from its faults, or the order differs. So
trials share a process only if nothing of that kind is known, and such a trial only counts if the
dataset passes in it, if all others in its process ended well, too, and if it drew the same samples
and used the files as often as the fault-free run. If not, the check is run alone, and that decides.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults._engine.system.proc import descriptor_links, shared_memory
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_chain
from pytest_dataloader_faults.battery.ahead import may_disturb_others
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError
from pytest_dataloader_faults.faults.base import Effect, Fault, Place
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome, Stage
from pytest_dataloader_faults.outcomes.comparison import EXACT
from pytest_dataloader_faults.outcomes.stages import DONE, StateOf
from pytest_dataloader_faults.steps import (
    Arm,
    Disarm,
    FaultFreePass,
    Make,
    OwnStep,
    Process,
    Step,
    run_epochs,
)

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

_PLACES = Place.OPEN | Place.STAT | Place.LISTING | Place.READ | Place.DESCRIPTOR
_EFFECTS = Effect.ERROR | Effect.BAD_DATA | Effect.LASTING
(_ALONE,) = run_epochs()
"""The process of a trial that may share it."""


class TrialChain:
    """The trials of a battery that share a process, which runs when the first one is needed.

    *plan_jobs* returns the trials of each of the checks *names*.
    """

    def __init__(
        self,
        run: FaultFreeRun,
        plan_jobs: Callable[[str], Iterable[TrialJob]],
        names: Sequence[str],
    ) -> None:
        self._run = run
        self._plan_jobs = plan_jobs
        self._names = [name for name in names if _may_share(CHECKS[name].scenario)]
        self._trials: list[tuple[TrialJob, Outcome]] | None = None
        """The trials that count; None before the process runs."""

    def run(self, request: TrialJob) -> Outcome | None:
        """The outcome of *request*; None if its trial does not count, or shares no process."""
        if not _is_of_files(request):
            return None
        if self._trials is None:
            self._trials = list(self._run_trials(request)) if may_chain(self._run) else []
        return next((outcome for job, outcome in self._trials if job == request), None)

    def _run_trials(self, first_job: TrialJob) -> Iterable[tuple[TrialJob, Outcome]]:
        planned = (job for name in self._names for job in self._plan_jobs(name))
        following = itertools.dropwhile(lambda job: job != first_job, planned)
        common = replace(first_job, faults=())
        jobs = [job for job in following if _is_of_files(job) and replace(job, faults=()) == common]
        if len(jobs) == 1:
            return ()
        try:
            outcomes = run_chain(_chain(jobs), jobs)
        except DataLoaderFaultsError:  # A trial alone raises it again, if it has to.
            return ()
        if len(outcomes) < len(jobs) or not all(map(_ended_well, outcomes)):
            return ()
        trials = zip(jobs, outcomes, strict=True)
        return ((job, each) for job, each in trials if self._is_like_alone(each))

    def _is_like_alone(self, outcome: Outcome) -> bool:
        """Whether the trial of *outcome* drew what the fault-free run did, and used the files."""
        (epoch,), (fault_free,) = outcome.epochs, self._run.working.epochs
        if epoch.drawn != fault_free.drawn[: len(epoch.drawn)]:
            return False
        working = self._run.working
        return not epoch.complete or all(
            _count_uses(fault, outcome) >= _count_uses(fault, working) for fault in outcome.schedule
        )


def _count_uses(fault: Fault, outcome: Outcome) -> int:
    """How often the files of *fault* were read or, if it is not about reads, opened."""
    is_target, is_read = GlobMatcher(fault.globs), Place.READ in fault.places
    return sum(
        counts.reads if is_read else counts.opens
        for process in outcome.processes
        for path, counts in process.files.items()
        if is_target(path)
    )


def may_chain(run: FaultFreeRun) -> bool:
    """Whether trials of the dataset of *run* may share a process."""
    working = run.working
    is_plain = (
        working.kind == "map"
        and working.request.engine == "kernel"
        and working.loader.start_method == "fork"
        and working.loader.state_of is StateOf.NONE
        and run.comparison == EXACT
        and not run.draws_global_numbers
    )
    shares = shared_memory() or multiprocessing.active_children() or _is_opened_before(working)
    return is_plain and not shares and not may_disturb_others(run)


def _is_opened_before(outcome: Outcome) -> bool:
    """Whether the main process opens files that its workers use."""
    opened = {path for each in outcome.resources for path in each.descriptors.values()}
    return not all(opened.isdisjoint(process.files) for process in outcome.processes)


def _may_share(options: TrialOptions) -> bool:
    """Whether a trial with *options* may share a process, by what it does there."""
    return options.processes == (_ALONE,) and options.descriptors is None


def _is_of_files(job: TrialJob) -> bool:
    """Whether the trial of *job* is an epoch of new workers with faults of files."""
    is_kept = job.recovers_in_workers or job.loader.get("persistent_workers")
    is_passing = bool(job.faults) and all(map(_ends_with_worker, job.faults))
    return _may_share(job.options) and is_passing and not is_kept


def _ends_with_worker(fault: Fault) -> bool:
    """Whether *fault* is about reading files, and ends with the worker."""
    is_of_reading = not fault.places & ~_PLACES and bool(fault.places & Place.OF_FILES)
    return is_of_reading and not fault.effects & ~_EFFECTS


def _chain(jobs: Sequence[TrialJob]) -> TrialJob:
    """The trial that arms the faults of one of *jobs* after the other."""
    arm, disarm = (_find(kind) for kind in (Arm, Disarm))
    armed = [(Arm(job.faults), *_ALONE[arm + 1 : disarm + 1]) for job in jobs]
    guard = _RequireNothingShared()
    begin = [step for each in _ALONE[:arm] for step in _guard(each, guard)]
    process = (*begin, *itertools.chain(*armed), *_ALONE[disarm + 1 :])
    faults = tuple(fault for job in jobs for fault in job.faults)
    options = replace(jobs[0].options, processes=(process,))
    return replace(jobs[0], faults=faults, options=options, may_take_longer=False)


def _find(kind: type) -> int:
    return next(number for number, step in enumerate(_ALONE) if isinstance(step, kind))


def _guard(step: Step, guard: _RequireNothingShared) -> Process:
    return (guard, step, guard) if isinstance(step, Make) else (step,)


@dataclass(frozen=True)
class _RequireNothingShared(OwnStep):
    """Run no epoch if the dataset has what workers share, or its loader is not an ordinary one.

    It comes before the dataset is created, and thereafter: each worker has its own copy of all that
    is created in between, but for shared memory, and for descriptors with their offsets.
    """

    known: set[object] = field(default_factory=set)

    def run(self, process: TrialProcess) -> None:
        loader, pass_in_child = process.loader, FaultFreePass(in_child=True)
        shared = {*shared_memory(), *descriptor_links().items()}
        if loader is None:
            self.known.update(shared)
            return
        is_plain = not loader.persistent_workers
        if shared - self.known or not (
            is_plain and process.needs_no_workers(pass_in_child, loader)
        ):
            process.loader = None


def _ended_well(outcome: Outcome) -> bool:
    """Whether the process of *outcome* is over, and no other one of it died or was left."""
    passes = (*outcome.epochs, *outcome.passes_in(Stage.RECOVERY))
    is_over = outcome.phase == DONE and not (outcome.timed_out or outcome.died)
    started = any(each.processes for each in outcome.resources)
    is_recovered = outcome.recovery is not None and outcome.recovery.complete
    has_deaths = any(each.deaths for each in passes)
    return is_over and len(outcome.epochs) == 1 and is_recovered and not (has_deaths or started)
