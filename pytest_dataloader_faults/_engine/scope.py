"""One scope of armed faults, from the start of its supervisor to the last report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults.exceptions import InjectionError, InvalidArgumentError
from pytest_dataloader_faults.faults.base import Effect, Place, why_no_fault
from pytest_dataloader_faults.outcomes import FaultFacts, WorkerFacts
from pytest_dataloader_faults.outcomes.fault_facts import facts_from, unfired

if TYPE_CHECKING:
    from pytest_dataloader_faults._engine.loader.client import SupervisorClient
    from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor
    from pytest_dataloader_faults._engine.plan import Plan
    from pytest_dataloader_faults._engine.protocol import Report, SupervisorHandle


KERNEL_SEES_NO_FAKE_FILES = (
    "the kernel does not see files of pyfakefs. Use engine='python', or real files, as in pytest's"
    " tmp_path"
)
_FAKE_FILES_TAKE_WRITES = (
    "pyfakefs itself takes what is written to its files. Use real files, as in pytest's tmp_path"
)


_UNSEEN_BY_PYTHON = {
    Place.RESERVATION: "torch reserves shared memory in C++",
    Place.ANSWER: "what comes through a socket is the kernel's",
}
"""Where the python engine can make nothing happen, and why."""


class FaultTotals:
    """Sums over ``faults``."""

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        raise NotImplementedError

    @property
    def fired(self) -> int:
        """How often the faults happened, over all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def reached(self) -> int:
        """How many operations matched the faults, whether or not they fired."""
        return sum(each.reached for each in self.faults)

    @property
    def surfaced(self) -> int:
        """How many of the faults an exception of the loader names."""
        return sum(each.surfaced for each in self.faults)


class Injection(FaultTotals):
    """Faults that are armed, and what has become of them so far.

    The supervisor has the counters. While the scope is open, each access asks it for them.
    """

    def __init__(
        self, plan: Plan, engine: str, client: SupervisorClient, monitor: LoaderMonitor
    ) -> None:
        self._faults = tuple(map(FaultFacts, plan.faults))
        self._processes: tuple[WorkerFacts, ...] = ()
        self._engine = engine
        self._client: SupervisorClient | None = client
        self._monitor = monitor

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        self.refresh()
        return self._faults

    @property
    def workers(self) -> tuple[WorkerFacts, ...]:
        """Every worker process that was armed."""
        return tuple(each for each in self.processes if each.worker is not None)

    @property
    def processes(self) -> tuple[WorkerFacts, ...]:
        """The workers, and before them the loader's own process, if that was armed as well."""
        self.refresh()
        return self._processes

    @property
    def errors(self) -> list[str]:
        """The exceptions that the loops over the loaders got, as printed."""
        return self._monitor.errors

    def refresh(self) -> None:
        """Ask for the counters, while the scope is open."""
        if self._client is not None:
            self._take(self._client.report())

    def _take(self, report: Report) -> None:
        armed = (each.fault for each in self._faults)
        loader = self._monitor.reports()
        self._faults, self._processes = facts_from(report.workers, loader, armed, self.errors)

    def unfired(self) -> str | None:
        """What was reached in place of the first fault that did not happen, if there is one."""
        return unfired(self.faults, self.workers, self._engine, self._monitor.not_made)

    def _finish(self) -> None:
        """Disarm, and take the last report. Raises if the harness failed."""
        client, self._client = self._client, None
        assert client is not None
        self._monitor.disarm()
        try:
            report = client.report(finish=True)
        finally:
            client.close()
        self._take(report)
        if report.refused:
            raise InvalidArgumentError(report.refused[0])
        if report.errors:
            raise InjectionError("an injection failed:\n" + "\n".join(report.errors))


@contextlib.contextmanager
def arm(
    *faults: vocabulary.Fault,
    engine: str,
    seed: int = 0,
    watch_files: bool = False,
    may_arm_own_process: bool = False,
    stacks: str | None = None,
    supervisor: SupervisorHandle | None = None,
    samples: bool = False,
    seeded: int | None = None,
    writable_folders: Iterable[str] | None = None,
) -> Iterator[tuple[Injection, LoaderMonitor]]:
    """``inject`` without its requirements, for trials; also yields the iterators' monitor.

    *stacks*: a file for the stacks of threads that hang. *supervisor*: one that is running
    already. *writable_folders*: where faults of writing may happen; None for anywhere.
    *watch_files*, *samples* and *seeded*: see ``Plan``.
    """
    from pytest_dataloader_faults._engine.loader.client import SupervisorClient
    from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor, monitored_by
    from pytest_dataloader_faults._engine.plan import Plan

    folders = writable_folders
    writable = None if folders is None else tuple(map(os.path.realpath, folders))
    plan = Plan(faults, watch_files, seed, samples, seeded, writable=writable)
    client = SupervisorClient(plan, engine, stacks, supervisor)
    monitor = LoaderMonitor(client, plan, may_arm_own_process=may_arm_own_process)
    injection = Injection(plan, engine, client, monitor)
    try:
        with monitored_by(monitor):
            yield injection, monitor
    finally:
        injection._finish()


def engine_for(engine: str, faults: tuple[vocabulary.Fault, ...]) -> str:
    """The engine to take for *engine*; raises where it cannot make *faults* happen."""
    require_faults(faults)
    chosen = choose(engine)
    for fault in faults if fake_files() is not None else ():
        if reason := _beyond_fake_files(chosen, fault):
            raise InvalidArgumentError(f"{fault!r}: {reason}")
    for fault in faults if chosen == "python" else ():
        if reason := _beyond_python(fault):
            raise InvalidArgumentError(
                f"{fault!r}: the python engine cannot make it happen, since {reason}."
                " Use engine='kernel'"
            )
    return chosen


def engine_for_files(engine: str) -> str:
    """The engine to take for *engine*, if it sees the files that there are."""
    chosen = choose(engine)
    if chosen == "kernel" and fake_files() is not None:
        raise InvalidArgumentError(f"engine='kernel': {KERNEL_SEES_NO_FAKE_FILES}")
    return chosen


def require_faults(faults: tuple[vocabulary.Fault, ...]) -> None:
    """Refuse what is no fault."""
    for fault in faults:
        if problem := why_no_fault(fault):
            raise InvalidArgumentError(problem)


def _beyond_fake_files(engine: str, fault: vocabulary.Fault) -> str | None:
    if engine == "kernel" and fault.places & (Place.OF_FILES | Place.ALLOCATION):
        return KERNEL_SEES_NO_FAKE_FILES
    if Place.WRITE in fault.places:
        return _FAKE_FILES_TAKE_WRITES
    if isinstance(fault, vocabulary.ClosedDescriptor) and fault.sample is not None:
        return (
            "a file of pyfakefs has no descriptor that could be closed from outside at a sample."
            " Use nth=, which closes at an open, or real files"
        )
    return None


def _beyond_python(fault: vocabulary.Fault) -> str | None:
    if Effect.DEATH in fault.effects and Place.READ in fault.places:
        return "a read that has begun is the kernel's"
    if Effect.DEATH in fault.effects and Place.WRITE in fault.places:
        return "a write that has begun is the kernel's"
    return next((why for place, why in _UNSEEN_BY_PYTHON.items() if place in fault.places), None)
