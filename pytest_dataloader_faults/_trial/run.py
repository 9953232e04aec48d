"""What happens inside a trial [runs in the disposable process that drives the loader].

Facts are written to the journal as they come. So the facts up to its death or hang are there when a
process dies or hangs. Nothing here judges.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor
from pytest_dataloader_faults._engine.protocol import Idle
from pytest_dataloader_faults._engine.scope import Injection, arm
from pytest_dataloader_faults._engine.worker.fetch_hooks import SeedSamples
from pytest_dataloader_faults._trial import accelerator, resources
from pytest_dataloader_faults._trial.driver import LoaderDriver, record_sampler
from pytest_dataloader_faults._trial.job import Job, LifecycleJob, ReferenceJob, TrialJob
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.lifecycle import run_lifecycle
from pytest_dataloader_faults._trial.loaders import (
    errors_of_dataset,
    kind_of,
    limit_descriptors,
    make_loader,
    preload_forkserver,
    sampled,
    seed_everything,
)
from pytest_dataloader_faults._trial.process.environment import FreeResources
from pytest_dataloader_faults._trial.resources import FootprintSampler, GcEachEpoch
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.reference import (
    sample_of,
    take_reference,
)
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    UnusableDatasetError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.faults import NEED_A_WORKER, PinMemoryThreadDeath, to_dict

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from pytest_dataloader_faults._engine.channel import SupervisorHandle


def run(job: Job, journal: Journal, stacks: str, supervision: SupervisorHandle | None) -> None:
    """Do *job* and write down what happens."""
    free = FreeResources.now()
    limit_descriptors(job.options.descriptors if isinstance(job, TrialJob) else None)
    torch.set_num_threads(1)  # A forked copy of OpenMP's thread pool has no threads.
    seed_everything(job.seed)
    try:
        if isinstance(job, LifecycleJob):
            run_lifecycle(job, journal, stacks, supervision)
            return
        changes = job.changes if isinstance(job, TrialJob) else {}
        loader = make_loader(job.make_dataset, job.loader, changes)
        if isinstance(job, ReferenceJob):
            reference = take_reference(loader, job.seed, job.batches, job.comparison)
            journal.write(reference=asdict(reference))
        else:
            free.require_for(loader.num_workers)
            _Trial(job, journal, loader, supervision).run(stacks)
    except (InvalidArgumentError, UnusableDatasetError, UnusableEnvironmentError) as error:
        journal.write(refused=type(error).__name__, why=str(error))


class _Trial:
    def __init__(
        self,
        job: TrialJob,
        journal: Journal,
        loader: DataLoader[Any],
        supervision: SupervisorHandle | None,
    ) -> None:
        self.job = job
        self.journal = journal
        self.loader = loader
        self.supervision = supervision
        self.footprints = FootprintSampler(job.deadline) if job.options.footprints else None
        if job.options.footprints:
            loader.worker_init_fn = GcEachEpoch(loader.worker_init_fn)

    def run(self, stacks: str) -> None:
        self._refuse_impossible_faults()
        self.journal.write(kind=kind_of(self.loader))
        if self.job.options.accelerator:
            accelerator.use()
        if self.job.options.touch:
            self._touch()
        self._write_resources("before")
        armed = arm(
            *self.job.faults,
            engine=self.job.engine,
            seed=self.job.seed,
            watch_files=self.job.options.watch_files,
            may_arm_own_process=True,
            stacks=stacks,
            supervisor=self.supervision,
            samples=bool(self.job.faults),
            seeded=self.job.comparison.seeded,
        )
        preload_forkserver(self.loader)
        with record_sampler() as drawn:
            driver = self._driver(drawn)
            with armed as (injection, watch):
                self._run_epochs(driver, watch)
            self._write_facts(injection)
            if self.job.faults:
                self._recover(driver)
        self.journal.write(phase="done")

    def _driver(self, drawn: list[Any]) -> LoaderDriver:
        driver = LoaderDriver(
            self.journal,
            SampleComparer(self.job.comparison),
            drawn,
            keep_workers=self.job.options.keep_workers,
            use_batch=accelerator.copied if self.job.options.accelerator else None,
        )
        driver.loader = self.loader
        return driver

    def _run_epochs(self, driver: LoaderDriver, watch: LoaderMonitor) -> None:
        """The epochs under the faults."""
        self.journal.write(supervisor=watch.client.pid)
        driver.wait_until_idle = watch.wait_until_idle
        for epoch in range(1, self.job.options.epochs + 1):
            self._phase(f"epoch {epoch}")
            seed = self.job.seed + (0 if self.job.options.same_order else epoch)
            completed = driver.start_epoch(epoch, seed, self.job.options.patience) and driver.take()
            if not completed and not self.job.options.keep_workers:
                break
            if self._has_enough_footprints(epoch, driver):
                break
        driver.end_workers()
        # Within the scope: what a worker has just started would not live beyond it, since the
        # supervisor answers the calls by which it loads its libraries.
        self._write_resources("after")

    def _recover(self, driver: LoaderDriver) -> None:
        """One more epoch, when the faults are over."""
        self._phase("recovery")
        driver.wait_until_idle = Idle
        if (start := self.job.comparison.seeded) is not None:
            self.loader.worker_init_fn = SeedSamples(start, self.loader.worker_init_fn)
        if driver.start_epoch(None, self.job.seed):
            driver.take()
        driver.end_workers()
        self._write_resources("recovery")

    def _refuse_impossible_faults(self) -> None:
        for fault in self.job.faults:
            if isinstance(fault, PinMemoryThreadDeath) and not accelerator.pins(self.loader):
                message = (
                    f"{fault!r} needs a thread that pins batches, and this loader has none. Such a"
                    f" thread needs an accelerator, pin_memory=True (here"
                    f" {self.loader.pin_memory}) and workers (here {self.loader.num_workers})"
                )
                raise InvalidArgumentError(message)
        if self.loader.num_workers:
            return
        users = [repr(fault) for fault in self.job.faults if isinstance(fault, NEED_A_WORKER)]
        if self.job.needs_workers:
            users.insert(0, "the battery")
        if users:
            message = (
                f"{users[0]} needs worker processes, but this loader has num_workers=0."
                " Use num_workers=1 or more"
            )
            raise InvalidArgumentError(message)

    def _phase(self, name: str) -> None:
        self.journal.write(phase=name, began=time.monotonic())

    def _touch(self) -> None:
        """Read a sample here before the fork, as some scripts do: that opens files."""
        if kind_of(self.loader) == "map":
            sample_of(self.loader.dataset, sampled(self.loader)[0][0])
        else:
            with errors_of_dataset(f"iterating {type(self.loader.dataset).__name__}"):
                next(iter(self.loader.dataset), None)

    def _has_enough_footprints(self, epoch: int, driver: LoaderDriver) -> bool:
        """Write down the footprint of each process, if the job asks for it; whether to stop."""
        if self.footprints is None:
            return False
        self.journal.write(rested=time.monotonic())
        driver.wait_until_idle()
        self.journal.write(footprints=self.footprints.look(epoch, self.loader))
        self.journal.write(began=time.monotonic())
        return self.footprints.are_enough(epoch)

    def _write_resources(self, phase: str) -> None:
        gc.collect()  # Ends what the loader and the dataset left.
        self.journal.write(rested=time.monotonic())
        found = {"descriptors": resources.descriptors(), "processes": resources.processes()}
        self.journal.write(resources={"phase": phase, **found})

    def _write_facts(self, injection: Injection) -> None:
        faults = [{**asdict(each), "fault": to_dict(each.fault)} for each in injection.faults]
        self.journal.write(faults=faults, workers=[asdict(each) for each in injection.workers])
