"""The life of a loader, step by step [runs in the disposable process that drives the loader].

After each step what is there is written to the journal. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.scope import Injection, arm
from pytest_dataloader_faults._trial import resources
from pytest_dataloader_faults._trial.batches import recorded
from pytest_dataloader_faults._trial.driver import LoaderDriver
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.loaders import dataset_of, kind_of_dataset
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults.faults import WorkerKilled, to_dict
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Disarm,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
    Step,
)
from pytest_dataloader_faults.outcomes import FaultFacts, Firing
from pytest_dataloader_faults.outcomes._error_text import tells_any

if TYPE_CHECKING:
    from pytest_dataloader_faults._engine.protocol import SupervisorHandle
    from pytest_dataloader_faults._trial.job import LifecycleJob


_NO_DATA = ("/dev/", "/proc/", "/memfd:")
_SHARED_MEMORY = "/dev/shm/"
_OF_OTHERS = ("torch_", "sem.")
"""torch's segments and semaphores, which a worker that is killed may leave."""


def live(
    job: LifecycleJob, journal: Journal, stacks: str, supervision: SupervisorHandle | None
) -> None:
    """Do the steps of *job*."""
    dataset = dataset_of(job.make_dataset)
    journal.write(kind=kind_of_dataset(dataset))
    armed = arm(
        *job.faults,
        engine=job.engine,
        seed=job.seed,
        here=True,
        stacks=stacks,
        supervision=supervision,
        samples=True,
        seeded=job.comparison.seeded,
    )
    with armed as (injection, watch), recorded() as drawn:
        journal.write(supervisor=watch.link.pid)
        drive = LoaderDriver(
            dataset, journal, SampleComparer(job.comparison), job.seed, drawn, watch.drain
        )
        _Life(job, journal, drive, injection, watch.link.switch).run()
    journal.write(phase="done")


class _Life:
    def __init__(
        self,
        job: LifecycleJob,
        journal: Journal,
        drive: LoaderDriver,
        injection: Injection,
        switch: Callable[[Sequence[int]], None],
    ) -> None:
        self._job = job
        self._journal = journal
        self._drive = drive
        self._injection = injection
        self._switch = switch
        self._began = time.monotonic()
        self._armed: list[int] = []
        self._places = itertools.count()
        self._kills: list[FaultFacts] = []

    def run(self) -> None:
        self._switch(())
        for number, step in enumerate(self._job.steps, start=1):
            self._journal.write(phase=f"step {number}", began=time.monotonic())
            self._do(step)
            self._look()
        self._journal.write(began=time.monotonic())
        self._drive.delete()
        self._journal.write(rested=time.monotonic())

    def _do(self, step: Step) -> None:
        if isinstance(step, NewLoader):
            self._drive.make(options_of(step, self._job.loader or {}))
        elif isinstance(step, Iterate):
            self._drive.take(step.batches)
        elif isinstance(step, Arm):
            self._arm([*self._armed, next(self._places)])
        elif isinstance(step, Disarm):
            self._arm([])
        elif isinstance(step, KillWorker):
            self._kill(step.worker)
        else:
            acts = {
                BreakEpoch: "break_off",
                StartEpoch: "restart",
                PickleDataset: "copy",
                DeleteLoader: "delete",
            }
            getattr(self._drive, acts[type(step)])()

    def _arm(self, places: list[int]) -> None:
        self._armed = places
        self._switch(places)

    def _kill(self, worker: int) -> None:
        pid = self._drive.kill(worker)
        fault = WorkerKilled(worker=worker)
        place = len(self._injection.faults) + len(self._kills)
        call = f"signal {fault.signal}"
        fired = (Firing(place, worker, pid, call, None, 0),) if pid else ()
        self._kills.append(FaultFacts(fault, 1, len(fired), 0, fired))

    def _look(self) -> None:
        """Write down what is there now."""
        gc.collect()
        self._journal.write(rested=time.monotonic())
        self._write_facts()
        running = bool(self._drive.pids)
        moment = {
            "armed": len(self._armed),
            "loaders": self._drive.loaders,
            "running": running,
            "opened": self._opened(),
            "processes": {} if running else resources.processes(),
            "left": [] if running else self._left(),
        }
        duration = round(time.monotonic() - self._began, 3)
        self._journal.write(moment=moment, phase="done", duration=duration)

    def _write_facts(self) -> None:
        told = (*self._injection.faults, *map(self._surfaced, self._kills))
        faults = [{**asdict(_of_any_epoch(each)), "fault": to_dict(each.fault)} for each in told]
        workers = [asdict(each) for each in self._injection.workers]
        self._journal.write(faults=faults, workers=workers)

    def _surfaced(self, kill: FaultFacts) -> FaultFacts:
        met = [(kill.fault, None, each.call) for each in kill.firings]
        told = any(tells_any(text, met) for text in self._injection.errors)
        return replace(kill, surfaced=int(told))

    def _opened(self) -> dict[str, dict[str, int]]:
        pids: dict[str, int | str] = {"the loader's process": "self"}
        pids |= {f"worker {place}": pid for place, pid in enumerate(self._drive.pids)}
        return {name: _data_files(pid) for name, pid in pids.items()}

    def _left(self) -> list[str]:
        left = (path for worker in self._injection.workers for path in worker.leftover_files)
        ours = (path for path in left if path.startswith(_SHARED_MEMORY))
        return [path for path in ours if not os.path.basename(path).startswith(_OF_OTHERS)]


def _of_any_epoch(facts: FaultFacts) -> FaultFacts:
    """The engine counts the epochs of an iterator, and a life those of several."""
    return replace(facts, firings=tuple(replace(each, epoch=None) for each in facts.firings))


def options_of(step: NewLoader, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the loader that *step* makes, where *given* hold for all of them."""
    own = {each.name: getattr(step, each.name) for each in fields(step)}
    if "batch_sampler" in given:
        del own["batch_size"]
    return {**own, **given}


def _data_files(pid: int | str) -> dict[str, int]:
    """How often *pid* has each file of data open; nothing of one that is dead."""
    with contextlib.suppress(OSError):
        paths = resources.descriptors(pid).values()
        return Counter(path for path in paths if path[0] == "/" and not path.startswith(_NO_DATA))
    return {}
