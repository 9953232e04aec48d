"""One scope of armed faults, from the start of its supervisor to the last report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine import require_engine
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults.exceptions import HarnessError, InvalidArgumentError
from pytest_dataloader_faults.faults.base import explain_invalid_fault
from pytest_dataloader_faults.outcomes import FaultFacts, WorkerFacts
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired, note_mentions
from pytest_dataloader_faults.outcomes.stages import Refusal

if TYPE_CHECKING:
    from pytest_dataloader_faults._engine.arm import WorkerSession
    from pytest_dataloader_faults._engine.client import SupervisorClient
    from pytest_dataloader_faults._engine.iterator import LoaderMonitor
    from pytest_dataloader_faults._engine.plan import FaultPlan
    from pytest_dataloader_faults._engine.protocol import SupervisorHandle


class FaultTotals:
    """Sums over ``faults``."""

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        raise NotImplementedError

    @property
    def fired(self) -> int:
        """How often the faults fired, over all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def matched(self) -> int:
        """How many operations matched the faults, whether or not they fired."""
        return sum(each.matched for each in self.faults)

    @property
    def mentioned(self) -> int:
        """How many of the faults an exception from the loader mentions."""
        return sum(each.mentioned for each in self.faults)


class Injection(FaultTotals):
    """Faults that are armed, and what they have done so far.

    The supervisor has the counters. While the scope is open, each access requests them.
    """

    def __init__(self, plan: FaultPlan, client: SupervisorClient, monitor: LoaderMonitor) -> None:
        from pytest_dataloader_faults._engine.protocol import WorkerReports

        self._report = WorkerReports((*map(FaultFacts, plan.faults),), (), (), ())
        self._client: SupervisorClient | None = client
        self._monitor = monitor

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        self.refresh()
        return note_mentions(self._report.faults, self.errors)

    @property
    def workers(self) -> tuple[WorkerFacts, ...]:
        """Every worker process that was armed."""
        return tuple(each for each in self.processes if each.worker is not None)

    @property
    def processes(self) -> tuple[WorkerFacts, ...]:
        """The main process, if it was armed as well, and the workers."""
        self.refresh()
        return tuple(self._report.processes)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The changes of files that were refused because a fault had fired."""
        self.refresh()
        return tuple(self._report.kept)

    @property
    def errors(self) -> list[str]:
        """The exceptions that the loops over the loaders received, as printed."""
        return self._monitor.errors

    def refresh(self) -> None:
        """Ask for the counters, while the scope is open."""
        if self._client is not None:
            self._report = self._client.report()

    def explain_unfired(self) -> str | None:
        """Why the first fault that did not fire matched nothing, if there is one."""
        return explain_unfired(self.faults, self.workers, self._monitor.not_made)

    def _finish(self) -> None:
        """Disarm, and take the last report. Raises if the harness failed."""
        client, self._client = self._client, None
        assert client is not None
        try:
            self._report = client.report(finish=True)
        finally:
            client.close()
        if self._report.refused:
            raise InvalidArgumentError(self._report.refused[0])
        if self._report.errors:
            raise HarnessError("an injection failed:\n" + "\n".join(self._report.errors))


@contextlib.contextmanager
def arm_faults(*faults: vocabulary.Fault, **options: Any) -> Iterator[Injection]:
    """``inject`` without its requirements; *options* are those of ``open_scope``."""
    from pytest_dataloader_faults._engine.iterator import monitor_iterators

    with open_scope(*faults, **options) as (injection, monitor), monitor_iterators(monitor):
        yield injection


@contextlib.contextmanager
def open_scope(
    *faults: vocabulary.Fault,
    seed: int = 0,
    watch_files: bool = False,
    may_arm_own_process: bool = False,
    stacks: bool = False,
    supervisor: SupervisorHandle | None = None,
    samples: bool = False,
    seeded: int | None = None,
    own_folders: Iterable[str] | None = None,
    unprovoked: tuple[str, ...] = (),
    protects: bool = True,
    spared: Iterable[str] = (),
    has_folder: bool = True,
) -> Iterator[tuple[Injection, LoaderMonitor]]:
    """Have a supervisor serve *faults*. Iterators are not followed before *monitor_iterators*.

    *stacks*: whether workers write their stacks when they get a signal. *supervisor*: one that is
    running already. *own_folders*: where faults may change files for good; None for anywhere.
    *spared*: other folders whose files may be changed once a fault has fired. *has_folder*: whether
    the supervisor makes and removes a folder for its workers. *watch_files*,
    *samples*, *seeded*, *unprovoked* and *protects*: see ``FaultPlan``.
    """
    from pytest_dataloader_faults._engine.client import SupervisorClient
    from pytest_dataloader_faults._engine.iterator import LoaderMonitor
    from pytest_dataloader_faults._engine.plan import FaultPlan

    folders = None if own_folders is None else tuple(map(os.path.realpath, own_folders))
    spared = (*(folders or ()), *map(os.path.realpath, spared))
    observed = faults, watch_files, seed, samples, seeded
    plan = FaultPlan(*observed, folders, unprovoked, protects, spared)
    client = SupervisorClient(plan, stacks, supervisor, has_folder=has_folder)
    monitor = LoaderMonitor(client, plan, may_arm_own_process=may_arm_own_process)
    injection = Injection(plan, client, monitor)
    try:
        yield injection, monitor
    finally:
        injection._finish()


def protect_files(supervisor: SupervisorHandle) -> WorkerSession | None:
    """Filter this process of a trial, which follows one whose faults may have fired.

    It ends with the returned connection. Fake files need no protection.
    """
    if fake_files() is not None:
        return None
    from pytest_dataloader_faults._engine.arm import arm_kernel_session
    from pytest_dataloader_faults._engine.plan import FaultPlan
    from pytest_dataloader_faults._engine.protocol import WorkerConfig

    plan = FaultPlan((), protects=True)
    config = WorkerConfig(supervisor.door, supervisor.pid, plan)
    return arm_kernel_session(config, None, 0, bystander=True)


def require_engine_for(faults: tuple[vocabulary.Fault, ...]) -> None:
    """Raise an error if the engine cannot run here, or cannot inject one of *faults*."""
    require_faults(faults)
    require_engine()
    for fault in faults if fake_files() is not None else ():
        if isinstance(fault, vocabulary.StrayEntry):
            raise InvalidArgumentError(
                f"{fault!r} cannot happen while pyfakefs replaces the files: it copies a file next"
                " to it. Use real files, for example in pytest's tmp_path"
            )


def require_faults(faults: tuple[vocabulary.Fault, ...]) -> None:
    """Refuse other objects than faults."""
    for fault in faults:
        if problem := explain_invalid_fault(fault):
            raise InvalidArgumentError(problem)
