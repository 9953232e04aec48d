"""A lifecycle of loaders, step by step [runs in the disposable process that drives the loader].

The state after each step is written to the journal. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from pytest_dataloader_faults import lifecycle as steps
from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor
from pytest_dataloader_faults._engine.processes import ready
from pytest_dataloader_faults._engine.scope import Injection
from pytest_dataloader_faults._trial import loaders, resources
from pytest_dataloader_faults._trial.driver import LoaderDriver, record_sampler
from pytest_dataloader_faults._trial.job import LifecycleJob
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults.faults import WorkerKilled
from pytest_dataloader_faults.outcomes import FaultFacts, Firing
from pytest_dataloader_faults.outcomes._error_text import explains_fault
from pytest_dataloader_faults.outcomes._fault_facts import occurrences

Armed: TypeAlias = contextlib.AbstractContextManager[tuple[Injection, LoaderMonitor]]
"""The scope of a job's faults."""

_UNTIL_DEAD = 60.0
"""Seconds that a process may take to end after SIGKILL."""
_NO_DATA = ("/dev/", "/proc/", "/memfd:")
_OF_TORCH = ("torch_", "sem.")
"""Segments and semaphores of torch, which a killed worker may leave."""


def run_lifecycle(job: LifecycleJob, journal: Journal, armed: Armed) -> None:
    dataset = loaders.dataset_of(job.make_dataset)
    journal.write(kind=loaders.kind_of(dataset))
    with armed as (injection, watch), record_sampler() as drawn:
        journal.write(supervisor=watch.client.pid)
        driver = LoaderDriver(
            journal=journal,
            comparer=SampleComparer(job.comparison),
            drawn=drawn,
            stepwise=True,
            keep_workers=True,
            wait_until_idle=watch.wait_until_idle,
        )
        _Lifecycle(job, journal, driver, dataset, injection, watch.client.set_active).run()
    journal.write(phase="done")


@dataclass
class _Lifecycle:
    _job: LifecycleJob
    _journal: Journal
    _driver: LoaderDriver
    _dataset: Any
    _injection: Injection
    _switch: Callable[[Sequence[int]], None]

    def __post_init__(self) -> None:
        self._options: Mapping[str, Any] = {}
        self._epochs = itertools.count(1)
        self._began = time.monotonic()
        self._armed: list[int] = []
        self._positions = itertools.count()
        self._kills: list[FaultFacts] = []

    def run(self) -> None:
        self._switch(())
        for number, step in enumerate(self._job.steps, start=1):
            self._journal.write(phase=f"step {number}", began=time.monotonic())
            self._do(step)
            self._write_outcome()
        self._journal.write(began=time.monotonic())
        self._delete_loader()
        self._journal.write(rested=time.monotonic())

    def _do(self, step: steps.Step) -> None:  # noqa: C901  # one line for each kind of step
        match step:
            case steps.NewLoader():
                self._make_loader(_options_of(step, self._job.loader or {}))
            case steps.Iterate():
                if self._driver.in_epoch or self._start_epoch():
                    self._driver.take(step.batches)
            case steps.StartEpoch():
                self._start_epoch()
            case steps.BreakEpoch():
                self._driver.break_epoch()
            case steps.PickleDataset():
                self._pickle_dataset()
            case steps.DeleteLoader():
                self._delete_loader()
            case steps.Arm():
                self._arm([*self._armed, next(self._positions)])
            case steps.Disarm():
                self._arm([])
            case steps.KillWorker():
                self._kill(step.worker)

    def _make_loader(self, options: Mapping[str, Any]) -> None:
        self._delete_loader()
        self._options = options
        loader = loaders.loader_for(self._dataset, options)
        loader.worker_init_fn = resources.GcEachEpoch(loader.worker_init_fn)
        loaders.end_stream(loader, self._job.comparison.limit)
        self._journal.write(start_method=loaders.start_method_of(loader))
        self._driver.loader = loader

    def _delete_loader(self) -> None:
        if self._driver.loader is not None:
            self._driver.end_workers()
        self._driver.loader = None

    def _start_epoch(self) -> bool:
        epoch = next(self._epochs)
        return self._driver.start_epoch(epoch, self._job.seed + epoch)

    def _pickle_dataset(self) -> None:
        """Go on with a pickled copy of the dataset, and with a new loader if there was one."""
        try:
            copy = pickle.loads(pickle.dumps(self._dataset))  # noqa: S301  # the user's own
        except loaders.USERS_ERRORS as error:
            self._driver.write_error(next(self._epochs), error)
            return
        has_loader = self._driver.loader is not None
        self._delete_loader()
        self._dataset = copy
        if has_loader:
            self._make_loader(self._options)

    def _arm(self, positions: list[int]) -> None:
        """Let the faults happen that are armed at these positions, and no other."""
        self._armed = positions
        self._switch(positions)

    def _kill(self, worker: int) -> None:
        pids = self._driver.pids
        pid = pids[worker] if worker < len(pids) else None
        fault = WorkerKilled(worker=worker)
        position = len(self._injection.faults) + len(self._kills)
        firings: tuple[Firing, ...] = ()
        killed = {each.pid for facts in self._kills for each in facts.firings}
        if pid is not None and pid not in killed:
            end = os.pidfd_open(pid)  # It may be the child of a fork server.
            os.kill(pid, signal.SIGKILL)
            ready([end], _UNTIL_DEAD)  # torch is left to notice it.
            os.close(end)
            now, call = time.monotonic(), f"signal {fault.signal}"
            firings = (Firing(position, worker, pid, call, None, 0, time=now),)
        self._kills.append(FaultFacts(fault, 1, len(firings), 0, firings))

    def _write_outcome(self) -> None:
        gc.collect()
        self._journal.write(rested=time.monotonic())
        facts = (*self._injection.faults, *map(self._surfaced, self._kills))
        self._journal.write_facts(map(_of_any_epoch, facts), self._injection.workers)
        running = bool(self._driver.pids)
        state = {
            "armed": len(self._armed),
            "iterators_started": self._driver.iterators,
            "running": running,
            "open_files": self._open_files(),
            "processes": {} if running else resources.processes(),
            "leftover_files": [] if running else self._leftover_files(),
        }
        duration = round(time.monotonic() - self._began, 3)
        self._journal.write(step=state, phase="done", duration=duration)

    def _surfaced(self, kill: FaultFacts) -> FaultFacts:
        happened = occurrences([kill])
        surfaced = any(explains_fault(text, happened) for text in self._injection.errors)
        return replace(kill, surfaced=int(surfaced))

    def _open_files(self) -> dict[str, dict[str, int]]:
        """How often each process has each data file open."""
        pids: dict[str, int | str] = {"the loader's process": "self"}
        pids |= {f"worker {number}": pid for number, pid in enumerate(self._driver.pids)}
        found: dict[str, dict[str, int]] = {name: {} for name in pids}
        for name, pid in pids.items():
            with contextlib.suppress(OSError):  # It is dead.
                paths = resources.descriptors(pid).values()
                files = (path for path in paths if path[0] == "/")
                found[name] = Counter(path for path in files if not path.startswith(_NO_DATA))
        return found

    def _leftover_files(self) -> list[str]:
        left = (path for worker in self._injection.workers for path in worker.leftover_files)
        shared = (path for path in left if path.startswith("/dev/shm/"))
        return [path for path in shared if not os.path.basename(path).startswith(_OF_TORCH)]


def _of_any_epoch(facts: FaultFacts) -> FaultFacts:
    """*facts* without epochs: the engine counts those of one iterator, a lifecycle has several."""
    return replace(facts, firings=tuple(replace(each, epoch=None) for each in facts.firings))


def _options_of(step: steps.NewLoader, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the loader that *step* makes, where *given* hold for all of them."""
    own = {each.name: getattr(step, each.name) for each in fields(step)}
    if "batch_sampler" in given:
        del own["batch_size"]
    return {**own, **given}
