"""What happens inside a trial [runs in the disposable process that drives the loader].

Facts are written to the journal at once. So the facts up to its death or hang are there when a
process dies or hangs. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._engine.arm import WorkerSession, start_unarmed
from pytest_dataloader_faults._engine.fetch_hooks import seed_everything, seed_samples
from pytest_dataloader_faults._engine.iterator import (
    LoaderMonitor,
    listen_to_iterators,
    monitor_iterators,
)
from pytest_dataloader_faults._engine.protocol import SupervisorHandle
from pytest_dataloader_faults._engine.scope import Injection, open_scope, protect_files
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.imports import timed_imports
from pytest_dataloader_faults._engine.system.temporary import ClosedByUserError
from pytest_dataloader_faults._trial import loaders, ranks, resources
from pytest_dataloader_faults._trial.connections import SharedConnections
from pytest_dataloader_faults._trial.driver import LoaderDriver, describe_error, idle_at_once
from pytest_dataloader_faults._trial.factory import describe_data_folder
from pytest_dataloader_faults._trial.job import Job, TakeReference
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    LOADER,
    REFUSALS,
    FactsFound,
    FaultsArmed,
    PassEnded,
    PhaseStarted,
    failed,
)
from pytest_dataloader_faults._trial.passes import Reader
from pytest_dataloader_faults._trial.process.fork_server import limit_descriptors
from pytest_dataloader_faults._trial.process.surroundings import FreeResources, Surroundings
from pytest_dataloader_faults._trial.reference import take_reference
from pytest_dataloader_faults._trial.samplers import (
    count_batches_of_worker,
    count_samples,
    drops_last,
    limit_samples,
    sampler_of_epoch,
    state_of,
)
from pytest_dataloader_faults._trial.samples import Draw
from pytest_dataloader_faults.faults import has_files
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes import LoaderFacts, Pass, Phase, Resources, Stage
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY
from pytest_dataloader_faults.steps import (
    Action,
    Epoch,
    FaultFreePass,
    Look,
    Make,
    MeasureEpochs,
    Process,
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

CALLS_USER_CODE = ("read_sample",)


def run(job: Job, around: Surroundings, supervision: SupervisorHandle | None, number: int) -> None:
    """Do process *number* of *job* with what is *around* it."""
    free, journal = FreeResources.now(), around.facts
    limit_descriptors(job.options.descriptors)
    torch.set_num_threads(1)  # A forked copy of OpenMP's thread pool lacks the threads.
    seed_everything(job.settings.seed)
    try:
        meetings = ranks.join(job.rank, journal) if job.rank else None
        TrialProcess(job, around, supervision, free, meetings).run(job.processes[number])
    except REFUSALS as error:
        journal.write(failed(error))
    except ClosedByUserError as error:
        journal.write(failed(exceptions.UnusableDatasetError(str(error))))


@dataclass
class TrialProcess:
    """Does the steps of one process of a trial. An ``Action`` names one of its methods.

    Attributes:
        loader: The ``DataLoader``; None until it is made, and if it could not be made.
        sampler: What would draw an epoch of all samples, of a map-style dataset.
        prepare: Called with the loader before a pass without faults; or None.
    """

    job: Job
    around: Surroundings
    supervision: SupervisorHandle | None
    free: FreeResources
    meetings: ranks.Meetings | None

    def __post_init__(self) -> None:
        self.journal = self.around.facts
        self._scope = self._outer_scope = contextlib.ExitStack()
        """The latest scope, which ends first, and that of the process."""
        self._faults = self._outer_scope.enter_context(contextlib.ExitStack())
        self._protection: WorkerSession | None = None
        self._injection: Injection | None = None
        self._armed: LoaderMonitor
        self._monitor: LoaderMonitor | None = None  # Of the faults that are armed now.
        self.loader: Any = None
        self.sampler: Any = None
        self.prepare: Callable[[Any], None] | None = None
        self._could_make = True
        self._facts = LoaderFacts()
        self._length: int | None = None
        self._driver: LoaderDriver | None = None
        self._use_batch: Callable[[Any], Any] | None = None
        self._draws: Sequence[bytes] = ()
        self._connections = None if self.job.faults else SharedConnections()
        self._epochs = 0
        self._succeeded = True
        """Whether the latest epoch did."""
        self._may_continue = True
        """Whether more epochs follow."""

    def run(self, process: Process) -> None:
        """Do all steps of *process*."""
        with self._outer_scope:
            if Action.ARM in process:
                self._injection, self._armed = self._faults.enter_context(self._open_scope())
                if process[0] is not Action.ARM:
                    self._armed.arm_bystander()
            else:
                if self.supervision and self.job.may_have_faults:
                    self._protection = protect_files(self.supervision)
                self.job = replace(self.job, faults=())
            for step in process:
                if step.harms:  # Nothing is added otherwise, not even 0: the supervisor adds, too.
                    self.around.fired.add(1)
                if self._could_make or step is Action.DISARM or isinstance(step, Look):
                    step.run(self)
        if self.meetings:
            self.meetings.end()
        self.journal.write(PhaseStarted(DONE, time.monotonic()))

    def _open_scope(self) -> AbstractContextManager[tuple[Injection, LoaderMonitor]]:
        job = self.job
        return open_scope(
            *job.faults,
            seed=job.settings.seed,
            watch_files=job.options.watch_files,
            may_arm_own_process=True,
            stacks=True,
            supervisor=self.supervision,
            samples=bool(job.faults),
            seeded=job.comparison.seeded,
            own_folders=self.around.own_folders,
            unprovoked=job.unprovoked,
            protects=job.may_have_faults,
        )

    def take_reference(self, step: TakeReference) -> None:
        """Make the dataset, and read its samples."""
        job = self.job
        try:
            with timed_imports() as seconds:
                reference = take_reference(loaders.make_loader(job), job, step)
            self.journal.write(replace(reference, imports=tuple(seconds.items())))
        except loaders.EmptyDatasetError as error:
            text = f"{error}. {describe_data_folder(self.around.own_folders, job.settings.copy)}"
            raise exceptions.UnusableDatasetError(text) from error.__cause__

    def record_resources(self, step: Look) -> None:
        """Record what is open and what runs, once what the loader and the dataset left is gone."""
        gc.collect()
        self.journal.write_turn(HARNESS)
        commands = resources.running_commands(self.around.server_pids)
        opened = Resources(step.stage, proc.descriptor_links(), commands)
        self.journal.write(FactsFound(resources=(opened,)))

    def use_accelerator(self) -> None:
        """Use the accelerator, and copy each batch to it."""
        resources.use_accelerator()
        self._use_batch = resources.copy_to_device

    def read_sample(self) -> None:
        """Read the first of the samples here before the fork, as some scripts do."""
        dataset = loaders.dataset_of(self.loader)
        with self._watch():
            if loaders.kind_of(dataset) == "iterable":
                with loaders.report_dataset_errors(f"iterating {type(dataset).__name__}"):
                    next(iter(dataset), None)
                return
            batched = bool(self.loader._auto_collation)
            unpickled = map(pickle.loads, self._draws)
            drawn = (Draw.of(each, dataset, batched=batched) for each in unpickled)
            if sample := next((part for each in drawn for part in each.split()), None):
                with contextlib.suppress(loaders.CollateError):
                    Reader(loader=self.loader).fetch(sample)

    def make(self, step: Make) -> None:
        """Make the dataset and its loader, in a process where faults may be armed already."""
        monitor = self._monitor
        if step.phase is None:
            self.loader = self._make_loader(step)
        elif monitor is None:
            self.journal.write(PhaseStarted(step.phase, time.monotonic()))
            self.loader = self._try_to_make(step, step.phase)
        else:
            self.journal.write_turn(LOADER)
            monitor.arm_before_dataset()
            self.loader = self._try_to_make(step, step.phase)
            monitor.client.note_dataset_made()
        if self.loader is not None:
            _refuse_impossible_faults(self.job, self.loader)

    def _try_to_make(self, step: Make, phase: Phase) -> DataLoader[Any] | None:
        """The loader, or None if the dataset is empty or cannot be created, which ends *phase*."""
        try:
            return self._make_loader(step)
        except loaders.EmptyDatasetError:
            result = Pass(phase, complete=True, length=0)
        except exceptions.UnusableDatasetError as error:
            cause = error.__cause__ or error
            if self._monitor is not None:
                self._monitor.record_error(cause)
            result = Pass(phase, exception=describe_error(cause))
        self.journal.write(PassEnded(time.monotonic(), result))
        if self.meetings:
            self.meetings.leave(failed=result.exception is not None)
        self._could_make = False
        return None

    def _make_loader(self, step: Make) -> DataLoader[Any]:
        job = self.job
        with self._watch():
            loader = loaders.make_loader(job)
        if step.adapt is not None:
            loader = step.adapt(loader)
        kind = loaders.kind_of(loaders.dataset_of(loader))
        # A constructor that meets a fault may return a dataset of another length.
        is_intact = step.phase is None or not (self._monitor is None or job.faults)
        if kind == "map":
            is_known = is_intact and not job.rank_of_several
            count = count_samples if is_known else loaders.count_readable
            self._length = count(loader)
            self.sampler = sampler_of_epoch(loader)
            if job.settings.samples is not None:
                keeps, size = step.adapt is not None, job.batch_size
                samples = job.settings.samples
                limit_samples(loader, samples, keeps_sampler=keeps, batch_size=size)
        elif job.rank_of_several:
            self._length = loaders.length_of(loaders.dataset_of(loader))
        if step.adapt is None and (is_intact or self._length == job.length):
            self._draws = job.draws
        if loader.num_workers:
            self.free.require_for(loader.num_workers)
        loaders.end_stream(loader, job.comparison.limit)
        parts = loaders.start_method_of(loader), drops_last(loader), state_of(loader)
        self._facts = LoaderFacts(kind, *parts)
        self.journal.write(FactsFound(self._facts))
        return loader

    def _watch(self) -> AbstractContextManager[None]:
        """Watch which connections the main process opens, if the trial has no faults."""
        return self._connections.watch() if self._connections else contextlib.nullcontext()

    def start_driver(self) -> LoaderDriver:
        """The driver of the loader, which exists from now on."""
        if self._driver is None:
            loaders.preload_forkserver(self.loader)
            if self._connections:
                self._connections.begin(self.loader.num_workers)
            self._driver = LoaderDriver(
                journal=self.journal,
                job=self.job,
                loader=self.loader,
                facts=self._facts,
                length=self._length,
                draws=self._draws,
                use_batch=self._use_batch,
            )
            self._scope.enter_context(listen_to_iterators(self._driver))
        return self._driver

    def arm(self) -> None:
        """Arm the faults. Their scope begins after that of the driver, if there is a loader."""
        if self.loader is not None:
            self.start_driver()
        self._scope = self._outer_scope.enter_context(contextlib.ExitStack())
        self._monitor = self._armed
        self._scope.enter_context(monitor_iterators(self._monitor))
        self.journal.write(FaultsArmed())

    def disarm(self) -> None:
        """End the faults, and record what they did."""
        if self._driver is not None:
            self._driver.meet = self._driver.after_batch = None
        if self.meetings:
            self.meetings.leave(failed=not self._succeeded)
        self._scope.close()
        self._faults.close()
        if self._connections:
            self._connections.end(self.journal)
        self._scope, self._monitor = self._outer_scope, None
        assert self._injection is not None
        faults, processes, lasting = self._injection.faults, self._injection.processes, list[str]()
        if self.job.options.watch_files:
            paths = {path for each in processes for path in each.files}
            lasting = sorted(filter(os.path.lexists, paths))
        self.journal.write(FactsFound(None, faults, processes, lasting))

    def run_epoch(self, step: Epoch) -> None:
        """Run the next epoch, unless an earlier one has failed."""
        if not self._may_continue:
            return
        assert self._monitor is not None
        driver = self.start_driver()
        driver.wait_until_idle = self._monitor.wait_until_idle
        driver.meet = self.meetings.meet if self.meetings else None
        driver.keep_workers = step.keep_workers
        self._epochs += 1
        is_same_seed = step.same_seed or self.job.comparison.in_workers
        seed = self.job.settings.seed + (0 if is_same_seed else self._epochs)
        phase = Phase(Stage.EPOCH, self._epochs)
        is_started = driver.start(phase, seed, self.job.options.patience)
        self._succeeded = is_started and driver.take(step.batches)
        self._may_continue = self._succeeded or step.keep_workers

    def measure_epochs(self, step: MeasureEpochs) -> None:
        """Run epochs, and write down the footprint of each process after each round."""
        footprints = resources.FootprintSampler(self.job.options.measuring)
        batches = count_batches_of_worker(self.loader)
        self.loader.worker_init_fn = resources.GcEachEpoch(self.loader.worker_init_fn, batches)
        driver = self.start_driver()
        for number in range(1, step.rounds + 1):
            for epoch in step.epochs:
                self.run_epoch(epoch)
            if not self._may_continue:
                return
            self.journal.write_turn(HARNESS)
            driver.wait_until_idle()
            measured = footprints.look(number, driver.working)
            self.journal.write(FactsFound(footprints=measured))
            self.journal.write_turn(LOADER)
            if footprints.is_sufficient(number):
                return

    def end_faults(self) -> None:
        """End the faults, in the same workers, unless an epoch has failed."""
        if self._may_continue:
            assert self._monitor is not None
            self._monitor.client.end_faults()
            self.start_driver().drop_batches_in_advance()

    def end_workers(self) -> None:
        """End the workers that are still there."""
        self.start_driver().end_workers()

    def run_without_faults(self, step: FaultFreePass) -> None:
        """Make a pass without faults, in a child without workers if that shows the same."""
        if self.meetings:
            self.meetings.renew()
        driver, seed = self.start_driver(), self.job.settings.seed + step.seed
        only_files = all(
            has_files(fault) and Effect.DEATH not in fault.effects for fault in self.job.faults
        )
        driver.wait_until_idle = idle_at_once
        if step.phase == RECOVERY and only_files and self._may_lack_workers():
            driver.run_in_child(step.phase, seed, self._prepare_pass)
        elif driver.start(step.phase, seed, prepare=self._prepare_pass):
            driver.take()

    def _may_lack_workers(self) -> bool:
        """Whether a process that is no worker may make a pass without faults."""
        loader = self.loader
        return (
            not (self.job.comparison.in_workers or self.job.recovers_in_workers)
            and loaders.kind_of(loaders.dataset_of(loader)) == "map"
            and loaders.is_plain(loader)
            and bool(loader.num_workers)
            and not (loader.pin_memory or self.meetings)
        )

    def _prepare_pass(self, loader: DataLoader[Any]) -> None:
        """Have processes that are not armed make the same samples as workers that are."""
        start = self.job.comparison.seeded
        if start is not None and not loader.num_workers:
            seed_samples(start)
        loader.worker_init_fn = partial(start_unarmed, start, loader.worker_init_fn)
        if self.prepare is not None:
            self.prepare(loader)


def _refuse_impossible_faults(job: Job, loader: DataLoader[Any]) -> None:
    if loader.num_workers and loader.pin_memory:
        resources.require_accelerator()
    users = [repr(fault) for fault in job.faults if fault.needs_worker]
    if users and not loader.num_workers:
        message = (
            f"{users[0]} needs worker processes, but this loader has num_workers=0."
            " Use num_workers=1 or more"
        )
        raise exceptions.InvalidArgumentError(message)
