"""What happens inside a trial [runs in the disposable process that drives the loader].

Facts are written to the journal as they come, so that a process that dies or hangs has told all up
to there. Nothing here judges.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from pytest_dataloader_faults._engine.loader.client import EndedWorkers
from pytest_dataloader_faults._engine.scope import Injection, arm
from pytest_dataloader_faults._engine.worker.fetch_hooks import SeedSamples
from pytest_dataloader_faults._trial import accelerator, resources
from pytest_dataloader_faults._trial.batches import (
    are_alive,
    deaths,
    delivery,
    end_workers,
    impatient,
    places,
    raised_by,
    recorded,
)
from pytest_dataloader_faults._trial.job import Job, LifecycleJob, ReferenceJob, TrialJob
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.lifecycle import live
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    blamed,
    build,
    kind_of,
    limit_descriptors,
    preload_forkserver,
    sampled,
    seed_everything,
)
from pytest_dataloader_faults._trial.process.environment import Room
from pytest_dataloader_faults._trial.process.sigchld import SigchldGuard
from pytest_dataloader_faults._trial.resources import FootprintSampler, GcEachEpoch
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.reference import (
    plain_indices,
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

    from pytest_dataloader_faults._engine.protocol import SupervisorHandle


def run(job: Job, journal: Journal, stacks: str, supervision: SupervisorHandle | None) -> None:
    """Do *job* and write down what happens."""
    room = Room.now()
    limit_descriptors(job.options.descriptors if isinstance(job, TrialJob) else None)
    torch.set_num_threads(1)  # A forked copy of OpenMP's thread pool has no threads.
    seed_everything(job.seed)
    try:
        if isinstance(job, LifecycleJob):
            live(job, journal, stacks, supervision)
            return
        changes = job.changes if isinstance(job, TrialJob) else {}
        loader = build(job.make_dataset, job.loader, changes)
        if isinstance(job, ReferenceJob):
            reference = take_reference(loader, job.seed, job.batches, job.comparison)
            journal.write(reference=asdict(reference))
        else:
            room.require_for(loader.num_workers)
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
        self.death_watch = SigchldGuard()
        self.teller = SampleComparer(job.comparison)
        self.footprints = FootprintSampler(job.deadline) if job.options.footprints else None
        if job.options.footprints:
            loader.worker_init_fn = GcEachEpoch(loader.worker_init_fn)

    def run(self, stacks: str) -> None:
        self._refuse_what_cannot_be()
        self.journal.write(kind=kind_of(self.loader))
        if self.job.options.accelerator:
            accelerator.use()
        if self.job.options.touch:
            self._touch()
        self._probe("before")
        armed = arm(
            *self.job.faults,
            engine=self.job.engine,
            seed=self.job.seed,
            watch_files=self.job.options.watch_files,
            here=True,
            stacks=stacks,
            supervision=self.supervision,
            samples=bool(self.job.faults),
            seeded=self.job.comparison.seeded,
        )
        preload_forkserver(self.loader)
        with armed as (injection, watch):
            self.journal.write(supervisor=watch.link.pid)
            self._epochs(watch.drain)
            # Within the scope: what a worker has just started would not live beyond it, since the
            # supervisor answers the calls by which it loads its libraries.
            self._probe("after")
        self._write_facts(injection)
        if self.job.faults:
            self._phase("recovery")
            if (start := self.job.comparison.seeded) is not None:
                self.loader.worker_init_fn = SeedSamples(start, self.loader.worker_init_fn)
            self._pass(None)
            self._end_persistent_workers()
            self._probe("recovery")
        self.journal.write(phase="done")

    def _epochs(self, settle: Callable[[], EndedWorkers]) -> None:
        """The passes under the faults."""
        for epoch in range(1, self.job.options.epochs + 1):
            self._phase(f"epoch {epoch}")
            if not self._pass(epoch, settle) and not self.job.options.keep_workers:
                break
            if self._has_seen_enough(epoch, settle):
                break
        self._end_persistent_workers()

    def _refuse_what_cannot_be(self) -> None:
        for fault in self.job.faults:
            if isinstance(fault, PinMemoryThreadDeath) and not accelerator.pins(self.loader):
                message = (
                    f"{fault!r} needs a thread that pins batches, and this loader has none: it"
                    f" takes an accelerator, pin_memory=True (here {self.loader.pin_memory}) and"
                    f" workers (here {self.loader.num_workers})"
                )
                raise InvalidArgumentError(message)
        if self.loader.num_workers:
            return
        if self.job.needs_workers:
            message = (
                "the battery needs worker processes, but this loader has num_workers=0."
                " Use num_workers=1 or more"
            )
            raise InvalidArgumentError(message)
        for fault in self.job.faults:
            if isinstance(fault, NEED_A_WORKER):
                message = (
                    f"{fault!r} needs a worker process, but num_workers=0 has none."
                    " Use num_workers=1 or more"
                )
                raise InvalidArgumentError(message)

    def _phase(self, name: str) -> None:
        self.journal.write(phase=name, began=time.monotonic())

    def _rest(self) -> None:
        """The loader has raised or ended: the time that passes now is not its, but ours."""
        self.journal.write(rested=time.monotonic())

    def _go_on(self) -> None:
        """It is the loader's again."""
        self.journal.write(began=time.monotonic())

    def _touch(self) -> None:
        """Read a sample here first, as some scripts do: that opens handles before the fork."""
        if kind_of(self.loader) == "map":
            sample_of(self.loader.dataset, sampled(self.loader)[0][0])
        else:
            with blamed(f"iterating {type(self.loader.dataset).__name__}"):
                next(iter(self.loader.dataset), None)

    def _pass(self, epoch: int | None, settle: Callable[[], EndedWorkers] = EndedWorkers) -> bool:
        """One epoch, up to its first error; whether there was none.

        *settle* waits for the workers to finish what they were asked for, so that what they met
        does not depend on how quickly the loader ends them.
        """
        seed_everything(self.job.seed + (0 if self.job.options.same_order else epoch or 0))
        self.teller.begin()
        iterator = raised = None
        died: list[dict[str, Any]] = []
        with recorded() as drawn:
            try:
                iterator = self._begin(epoch, settle)
                self.death_watch.look_while_waiting(iterator)
                self.journal.write(pids=[each.pid for each in getattr(iterator, "_workers", ())])
                self._iterate(iterator, epoch, drawn)
            except USERS_ERRORS as error:  # The error is the finding.
                self._rest()
                raised = asdict(raised_by(error))
                died = [asdict(each) for each in deaths(iterator, settle())]
                self._go_on()
        what: dict[str, Any] = {
            "drawn": [plain_indices(each) for each in drawn],
            "exception": raised,
            "complete": raised is None,
            "deaths": died,
        }
        lives_on = self.loader.persistent_workers and (
            not raised or (self.job.options.keep_workers and are_alive(iterator))
        )
        if not lives_on:
            end_workers(iterator)
            self.loader._iterator = None
        self.journal.write(epoch=epoch, **{"pass": what})
        return raised is None

    def _has_seen_enough(self, epoch: int, settle: Callable[[], EndedWorkers]) -> bool:
        """Write down what each process has now, if that is asked for; whether that will do."""
        if self.footprints is None:
            return False
        self._rest()
        settle()
        self.journal.write(footprints=self.footprints.look(epoch, self.loader))
        self._go_on()
        return self.footprints.are_enough(epoch)

    def _begin(self, epoch: int | None, settle: Callable[[], EndedWorkers]) -> Any:
        if epoch is None or self.job.options.patience is None:
            return iter(self.loader)
        iterator = impatient(self.loader, self.job.options.patience)
        settle()
        return iterator

    def _iterate(self, iterator: Any, epoch: int | None, drawn: list[Any]) -> None:
        is_map = kind_of(self.loader) == "map"
        place_of = places(iterator)
        for number, batch in enumerate(iterator):
            if self.job.options.accelerator:
                batch = accelerator.copied(batch)  # noqa: PLW2901  # as a training loop does
            indices = plain_indices(drawn[place_of(number)]) if is_map else None
            came = delivery(batch, indices, self.loader, self.teller)
            self.journal.write(epoch=epoch, batch=asdict(came))

    def _end_persistent_workers(self) -> None:
        end_workers(self.loader._iterator)
        self.loader._iterator = None

    def _probe(self, when: str) -> None:
        gc.collect()  # Which ends what the loader and the dataset left.
        self._rest()
        found = {"descriptors": resources.descriptors(), "processes": resources.processes()}
        self.journal.write(resources={"when": when, **found})

    def _write_facts(self, injection: Injection) -> None:
        faults = [{**asdict(each), "fault": to_dict(each.fault)} for each in injection.faults]
        self.journal.write(faults=faults, workers=[asdict(each) for each in injection.workers])
