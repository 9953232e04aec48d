"""What happens inside a trial [runs in the disposable process that drives the loader].

Facts are written to the journal as they come. So the facts up to its death or hang are there when a
process dies or hangs. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.utils.data

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor, iterators_heard_by
from pytest_dataloader_faults._engine.protocol import SupervisorHandle
from pytest_dataloader_faults._engine.scope import Injection, arm
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.ownership import ClosedByUserError
from pytest_dataloader_faults._engine.worker.arm import EndsWithParent
from pytest_dataloader_faults._engine.worker.fetch_hooks import SeedSamples, seed_everything
from pytest_dataloader_faults._settings.jobs import Job, ReferenceJob, Resume, TrialJob
from pytest_dataloader_faults._trial import accelerator, loaders, resources
from pytest_dataloader_faults._trial.driver import LoaderDriver, idle_at_once, raised_by
from pytest_dataloader_faults._trial.journal import (
    REFUSALS,
    FaultsArmed,
    FaultsCounted,
    FilesLasting,
    HarnessTime,
    Journal,
    LoaderMade,
    LoaderTime,
    Looked,
    Measured,
    PassEnded,
    PhaseStarted,
    ReferenceTaken,
    SeveralLoaders,
    StateLoaded,
    refusal,
)
from pytest_dataloader_faults._trial.loader_state import (
    StateSaver,
    kept_states,
    state_of,
    with_state,
)
from pytest_dataloader_faults._trial.process.environment import FreeResources
from pytest_dataloader_faults._trial.samplers import (
    count_samples,
    draw_again,
    drops_last,
    limit_samples,
)
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.draws import draws_of
from pytest_dataloader_faults._trial.samples.reference import Reader, take_reference
from pytest_dataloader_faults.faults import PinMemoryThreadDeath
from pytest_dataloader_faults.outcomes import Pass, Phase, Resources, Stage
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.process_group import Meetings

_WITHOUT_WORKERS: Mapping[str, Any] = {
    "num_workers": 0,
    "multiprocessing_context": None,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
}
_SEEDS_APART = 7_919
Armed: TypeAlias = AbstractContextManager[tuple[Injection, LoaderMonitor]]
"""The scope of a job's faults."""


def run(
    job: Job,
    journal: Journal,
    stacks: str,
    supervision: SupervisorHandle | None,
    writable_folders: Sequence[str],
    server: tuple[int, int] | None,
    *,
    following: int | None = None,
) -> None:
    """Do *job*. Faults of writing may happen in *writable_folders*, which are this trial's own.

    *server*: the keeper and the fork server that the workers are started by, if there is one.
    *following*: which of the processes this is, from 0, that follow the trial's own; None for that.
    """
    free = FreeResources.now()
    resources.limit_descriptors(job.options.descriptors)
    torch.set_num_threads(1)  # A forked copy of OpenMP's thread pool has no threads.
    seed_everything(job.settings.seed)
    armed = _armed(job, stacks, supervision, writable_folders)
    try:
        meetings = _join(job, journal)
        if isinstance(job, ReferenceJob):
            how = (job.make_dataset, job.settings.loader, job.changes)
            loader = loaders.make_loader(*how, rank=job.rank_of_several)
            journal.write(ReferenceTaken(take_reference(loader, job)))
            if meetings:
                meetings.end()
        elif isinstance(job, TrialJob):
            maker = _TrialMaker(job, journal, server, free, meetings)
            if following is not None:
                maker.follow(following)
            elif job.options.from_start:
                maker.run_from_start(armed)
            else:
                maker.trial().run(armed)
    except exceptions.SeveralLoadersError as error:
        journal.write(SeveralLoaders(str(error), error.parts))
    except tuple(REFUSALS.values()) as error:
        journal.write(refusal(error))
    except ClosedByUserError as error:
        journal.write(refusal(exceptions.UnusableDatasetError(str(error))))


def _join(job: Job, journal: Journal) -> Meetings | None:
    """Make this process the rank that *job* says, if it says one."""
    if job.rank is None:
        return None
    from pytest_dataloader_faults._trial import process_group

    return process_group.join(job.rank, journal)


def _armed(
    job: Job, stacks: str, supervision: SupervisorHandle | None, writable_folders: Sequence[str]
) -> Armed:
    return arm(
        *job.faults,
        engine=job.settings.engine,
        seed=job.settings.seed,
        watch_files=job.options.watch_files,
        may_arm_own_process=True,
        stacks=stacks,
        supervisor=supervision,
        samples=bool(job.faults),
        seeded=job.comparison.seeded,
        writable_folders=writable_folders,
    )


@dataclass
class _TrialMaker:
    """Makes the dataset, in a process where faults may be armed already."""

    job: TrialJob
    journal: Journal
    server: tuple[int, int] | None
    free: FreeResources
    meetings: Meetings | None

    def trial(self) -> _Trial:
        """The trial of a loader that is made now."""
        job = self.job
        loader = loaders.make_loader(
            job.make_dataset,
            job.settings.loader,
            job.changes,
            needs_workers=job.needs_workers,
            rank=job.rank_of_several,
        )
        if job.options.resume is not None:
            loader = with_state(loader)
        length, samples, reduced_from = None, job.settings.samples, None
        if loaders.kind_of(loader.dataset) == "map":
            length = count_samples(loader)
            if samples is not None:
                reduced_from = limit_samples(
                    loader,
                    loaders.outer_of(loader),
                    samples,
                    keeps_sampler=job.options.resume is not None,
                    whole_batches=job.options.whole_batches,
                )
        elif job.rank_of_several:
            length = loaders.length_of(loader.dataset)
        if loader.num_workers:
            self.free.require_for(loader.num_workers)
        how = (self.server, length, self.meetings, reduced_from)
        return _Trial(job, self.journal, loader, *how)

    def run_from_start(self, armed: Armed) -> None:
        """Make the dataset under the faults, and make the epochs of a trial with it."""
        with armed as (injection, monitor):
            self.journal.write(FaultsArmed())
            _write_resources(self.journal, Stage.START, self.server)
            self.journal.write(LoaderTime(time.monotonic()))
            monitor.arm_before_dataset()
            trial = self._try_to_make(Phase(Stage.EPOCH, 1), monitor.record_error)
            monitor.client.note_dataset_made()
            if trial is not None:
                trial.run_armed(monitor)
            else:
                _write_resources(self.journal, Stage.EPOCH, self.server)
        _write_counts(self.job, self.journal, injection)
        self.journal.write(PhaseStarted(DONE, time.monotonic()))

    def follow(self, number: int) -> None:
        """Do what the process *number* does, from 0, of those that follow the trial's own."""
        if self.job.options.resume is None:
            self.recover_anew()
        else:
            self._go_on(number, self.job.options.resume)

    def _go_on(self, number: int, resume: Resume) -> None:
        """Make the dataset and its loader anew, and go on from a saved state, or from none."""
        kept = kept_states(self.journal, resume)
        goes_on = number < len(kept)
        phase = Phase(Stage.RESUMED, number + 1) if goes_on else Phase(Stage.UNINTERRUPTED)
        self.journal.write(PhaseStarted(phase, time.monotonic()))
        trial = replace(self, job=replace(self.job, faults=()))._try_to_make(phase, _forget)
        state = None
        if goes_on:
            place, state = kept[number]
            self.journal.write(StateLoaded(place))
        if trial is not None:
            trial.go_on(phase, state)
        self.journal.write(PhaseStarted(DONE, time.monotonic()))

    def recover_anew(self) -> None:
        """Make the dataset in this process, which knows nothing of the faults, and read it here.

        Workers would have nothing to add, unless only they can read the dataset, or get the same
        samples: what they meet is what this process makes of the files.
        """
        self.journal.write(PhaseStarted(RECOVERY, time.monotonic()))
        job = replace(self.job, faults=())
        if not (job.comparison.in_workers or job.in_workers_only):
            changes = {**job.changes, **_WITHOUT_WORKERS}
            job = replace(job, changes=changes, needs_workers=False)
        trial = replace(self, job=job)._try_to_make(RECOVERY, _forget)
        if trial is not None:
            trial.recover()
        self.journal.write(PhaseStarted(DONE, time.monotonic()))

    def _try_to_make(
        self, phase: Phase, record_error: Callable[[BaseException], None]
    ) -> _Trial | None:
        """The trial, or None where its dataset cannot be made, which is what *phase* came to."""
        try:
            return self.trial()
        except loaders.EmptyDatasetError:
            self.journal.write(LoaderMade("map", ""))
            found = Pass(complete=True, length=0)
        except exceptions.UnusableDatasetError as error:
            cause = error.__cause__ or error
            record_error(cause)
            found = Pass(exception=raised_by(cause))
        self.journal.write(PassEnded(phase, time.monotonic(), found))
        return None


def _forget(_error: BaseException) -> None:
    """Keep no error: no fault could have caused it."""


def _write_counts(job: TrialJob, journal: Journal, injection: Injection) -> None:
    processes = injection.processes
    journal.write(FaultsCounted(injection.faults, processes))
    if job.options.watch_files:
        used = {path for each in processes for path in each.files}
        journal.write(FilesLasting(sorted(filter(os.path.lexists, used))))


@dataclass
class _Trial:
    job: TrialJob
    journal: Journal
    loader: torch.utils.data.DataLoader[Any]
    server: tuple[int, int] | None
    length: int | None
    meetings: Meetings | None
    reduced_from: int | None

    def __post_init__(self) -> None:
        self.options = self.job.options
        self.footprints: resources.FootprintSampler | None = None
        if self.options.footprints is not None:
            self.footprints = resources.FootprintSampler(self.options.footprints)
            self.loader.worker_init_fn = resources.GcEachEpoch(self.loader.worker_init_fn)
        loaders.end_stream(self.loader, self.job.comparison.limit)

    def run(self, armed: Armed) -> None:
        with self._driven() as driver:
            with armed as (injection, monitor):
                self.journal.write(FaultsArmed())
                self._run_epochs(driver, monitor)
            _write_counts(self.job, self.journal, injection)
            if self.job.recovers:
                if self.meetings:
                    self.meetings.renew()
                self._recover(driver)
                self._write_resources(Stage.RECOVERY)
        if self.meetings:
            self.meetings.end()
        self.journal.write(PhaseStarted(DONE, time.monotonic()))

    def run_armed(self, monitor: LoaderMonitor) -> None:
        """Make the epochs in a process that is armed already."""
        with self._driven() as driver:
            self._run_epochs(driver, monitor)

    def recover(self) -> None:
        """Make the recovery, in a process without faults."""
        with self._driven(follows=True) as driver:
            self._recover(driver)

    def go_on(self, phase: Phase, state: str | None) -> None:
        """Make the rest of an epoch, in a process that knows its *state* only; or all of it."""
        with self._driven(follows=True) as driver:
            self._have_no_faults(driver)
            # Where it goes on, its random numbers are those of another run.
            seed = self.job.settings.seed + 1 + _SEEDS_APART * (phase.epoch or 0)
            if driver.start(phase, seed, state=state):
                driver.take()
            driver.end_workers()

    @contextlib.contextmanager
    def _driven(self, *, follows: bool = False) -> Iterator[LoaderDriver]:
        """A driver of the loader; *follows*: in a process after the one whose leaks are asked."""
        self._refuse_impossible_faults()
        kind, method = loaders.kind_of(self.loader.dataset), loaders.start_method_of(self.loader)
        how = drops_last(self.loader), state_of(self.loader), self.reduced_from
        self.journal.write(LoaderMade(kind, method, *how))
        if self.options.accelerator:
            accelerator.use()
        if self.options.touch:
            self._touch()
        if not follows:
            self._write_resources(Stage.START)
        loaders.preload_forkserver(self.loader)
        driver = LoaderDriver(
            journal=self.journal,
            comparer=SampleComparer(self.job.comparison, self.job.handling),
            loader=self.loader,
            length=self.length,
            keep_workers=self.options.keep_workers,
            use_batch=accelerator.copied if self.options.accelerator else None,
        )
        with iterators_heard_by(driver):
            yield driver

    def _run_epochs(self, driver: LoaderDriver, watch: LoaderMonitor) -> None:
        driver.wait_until_idle = watch.wait_until_idle
        driver.meet = self.meetings.meet if self.meetings else None
        if self.options.resume is not None:
            driver.saver = StateSaver(self.journal, self.loader, self.options.resume)
        for epoch in range(1, self.options.epochs + 1):
            is_over = self._run_epoch(driver, epoch)
            if not is_over and not self.options.keep_workers:
                break
            if epoch == 1 and self.options.same_draws:
                draw_again(self.loader, driver.drawn_so_far)
            if epoch == self.options.faulty_epochs:
                watch.client.end_faults()
                driver.drop_batches_in_advance()
            if self.footprints is not None:
                self._take_footprints(self.footprints, epoch, driver)
                if self.footprints.are_enough(epoch):
                    break
        driver.end_workers()
        # Within the scope: what a worker has just started would not live beyond it, since the
        # supervisor answers the calls by which it loads its libraries.
        self._write_resources(Stage.EPOCH)
        driver.meet = None
        if self.meetings:
            self.meetings.leave(failed=not is_over)

    def _run_epoch(self, driver: LoaderDriver, number: int) -> bool:
        """Make epoch *number*, after one that is left if asked; whether there was no error."""
        if not self.options.leave_early:
            return self._iterate(driver, number)
        left = self._iterate(driver, 2 * number - 1, batches=1)
        return left and self._iterate(driver, 2 * number)

    def _iterate(self, driver: LoaderDriver, epoch: int, batches: int | None = None) -> bool:
        phase, seed = Phase(Stage.EPOCH, epoch), self.job.settings.seed
        seed += 0 if self.options.same_order else epoch
        return driver.start(phase, seed, self.options.patience) and driver.take(batches)

    def _recover(self, driver: LoaderDriver) -> None:
        self._have_no_faults(driver)
        if driver.start(RECOVERY, self.job.settings.seed):
            driver.take()
        driver.end_workers()

    def _have_no_faults(self, driver: LoaderDriver) -> None:
        """Have workers that are not armed make the same samples as those that are."""
        driver.wait_until_idle = idle_at_once
        if (start := self.job.comparison.seeded) is not None:
            seeds = SeedSamples(start, self.loader.worker_init_fn)
            self.loader.worker_init_fn = seeds
            if self.options.from_start:
                seeds.install()
        self.loader.worker_init_fn = EndsWithParent(self.loader.worker_init_fn)

    def _refuse_impossible_faults(self) -> None:
        workers, pin_memory = self.loader.num_workers, self.loader.pin_memory
        for fault in self.job.faults:
            needs_pins = isinstance(fault, PinMemoryThreadDeath)
            if needs_pins and not (workers and pin_memory and accelerator.is_there()):
                message = (
                    f"{fault!r} needs a thread that pins batches, and this loader has none. Such a"
                    f" thread needs an accelerator, pin_memory=True (here {pin_memory}) and workers"
                    f" (here {workers})"
                )
                raise exceptions.InvalidArgumentError(message)
        if workers:
            return
        users = [repr(fault) for fault in self.job.faults if fault.needs_worker]
        if self.job.needs_workers:
            users.insert(0, "the battery")
        if users:
            message = (
                f"{users[0]} needs worker processes, but this loader has num_workers=0."
                " Use num_workers=1 or more"
            )
            raise exceptions.InvalidArgumentError(message)

    def _touch(self) -> None:
        """Read a sample here before the fork, as some scripts do: that opens files."""
        dataset = self.loader.dataset
        if loaders.kind_of(dataset) == "map":
            if first := next((one for draw in draws_of(self.loader) for one in draw.each()), None):
                Reader(self.loader, SampleComparer()).fetch(first)
        else:
            with loaders.errors_of_dataset(f"iterating {type(dataset).__name__}"):
                next(iter(dataset), None)

    def _take_footprints(
        self, footprints: resources.FootprintSampler, epoch: int, driver: LoaderDriver
    ) -> None:
        """Write down the footprint of each process."""
        self.journal.write(HarnessTime(time.monotonic()))
        driver.wait_until_idle()
        workers = getattr(self.loader._iterator, "_workers", ())
        self.journal.write(Measured(footprints.look(epoch, workers)))
        self.journal.write(LoaderTime(time.monotonic()))

    def _write_resources(self, stage: Stage) -> None:
        _write_resources(self.journal, stage, self.server)


def _write_resources(journal: Journal, stage: Stage, server: tuple[int, int] | None) -> None:
    gc.collect()  # Ends what the loader and the dataset left.
    journal.write(HarnessTime(time.monotonic()))
    journal.write(Looked(Resources(stage, proc.descriptor_links(), resources.processes(server))))
