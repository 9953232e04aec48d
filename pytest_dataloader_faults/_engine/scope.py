"""Faults that are armed: one scope, from the first loader to the last report."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._engine.python.pyfakefs import fake_files
from pytest_dataloader_faults.exceptions import (
    InjectionError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    Fault,
    SharedMemoryExhaustion,
    WorkerKilled,
    has_files,
)
from pytest_dataloader_faults.outcomes import FaultFacts, WorkerFacts
from pytest_dataloader_faults.outcomes._fault_facts import facts_from, unfired
from pytest_dataloader_faults.outcomes._text import shortened


def refuse_for_fake_files(engine: str, faults: tuple[Fault, ...]) -> None:
    """Raise if *engine* cannot make one of *faults* happen to a fake file."""
    for fault in faults:
        if engine == "kernel" and (has_files(fault) or isinstance(fault, DescriptorExhaustion)):
            message = (
                f"{fault!r}: the kernel never hears of a file of pyfakefs. Use engine='python', or"
                " real files, as in pytest's tmp_path"
            )
            raise InvalidArgumentError(message)
        if isinstance(fault, ClosedDescriptor) and fault.sample is not None:
            message = (
                f"{fault!r}: a file of pyfakefs has no descriptor that could be closed from outside"
                " at a sample. Use nth=, which closes at an open, or real files"
            )
            raise InvalidArgumentError(message)


class Injection:
    """Faults that are armed, and what has become of them so far.

    The counters live in the process that answers the workers; while the scope is open they are
    asked for at each access.
    """

    def __init__(self, faults: tuple[Fault, ...], engine: str) -> None:
        self._faults = tuple(FaultFacts(fault) for fault in faults)
        self._workers: tuple[WorkerFacts, ...] = ()
        self._engine = engine
        self.errors: list[str] = []
        self._link: Any = None
        self._watch: Any = None

    @property
    def faults(self) -> tuple[FaultFacts, ...]:
        """Each fault with its counters and firings."""
        self.refresh()
        return self._faults

    @property
    def workers(self) -> tuple[WorkerFacts, ...]:
        """Every worker process that was armed."""
        self.refresh()
        return self._workers

    @property
    def fired(self) -> int:
        """How often the faults happened, over all workers."""
        return sum(each.fired for each in self.faults)

    @property
    def reached(self) -> int:
        """How often an operation was met that the faults are about, whether or not they fired."""
        return sum(each.reached for each in self.faults)

    @property
    def surfaced(self) -> int:
        """How many of the faults an exception of the loader has told of."""
        return sum(each.surfaced for each in self.faults)

    def refresh(self) -> None:
        """Ask for the counters, while the scope is open."""
        if self._link is not None:
            self._take(self._link.report())

    def _take(self, report: dict[str, Any]) -> None:
        """Fill in what the supervisor reports."""
        report["loader"] = self._watch.told()
        armed = (each.fault for each in self._faults)
        self._faults, self._workers = facts_from(report, armed, self.errors)

    def _note(self, error: BaseException) -> None:
        self.errors.append(shortened("".join(traceback.format_exception(error))))

    def unfired(self) -> str | None:
        """What was reached in place of the first fault that did not happen, if there is one."""
        return unfired(self.faults, self.workers, self._engine)


@contextlib.contextmanager
def arm(
    *faults: Fault,
    engine: str,
    seed: int = 0,
    watch_files: bool = False,
    here: bool = False,
    stacks: str | None = None,
    supervision: Any = None,
    samples: bool = False,
    seeded: int | None = None,
) -> Iterator[tuple[Injection, Any]]:
    """``inject`` without its requirements, for trials; also yields the iterators' watch.

    *here*: this process may be armed itself. *stacks*: a file for stacks of threads that are stuck.
    *supervision*: a supervisor that is there already. *samples* and *seeded*: see ``Plan``.
    """
    from pytest_dataloader_faults._engine.loader.client import SupervisorClient
    from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor, watched
    from pytest_dataloader_faults._engine.plan import Plan

    injection = Injection(faults, engine)
    plan = Plan(faults, watch_files, seed, samples, seeded)
    link = SupervisorClient(plan, engine, stacks, supervision)
    injection._link = link
    watch = LoaderMonitor(link, plan, injection._note, here=here)
    injection._watch = watch
    try:
        with watched(watch):
            yield injection, watch
    finally:
        injection._link = None
        watch.end_failed()
        watch.disarm()
        try:
            report = link.report(finish=True)
        finally:
            link.close()
            watch.forget()
        injection._take(report)
        if report["refused"]:
            raise InvalidArgumentError(report["refused"][0])
        if report["errors"]:
            raise InjectionError("an injection failed:\n" + "\n".join(report["errors"]))


def require_faults(faults: tuple[Fault, ...]) -> None:
    """Refuse what is no fault."""
    for fault in faults:
        if not isinstance(fault, Fault):
            message = f"{fault!r} is no fault. Give faults, such as ReadError('*.jpg')"
            raise InvalidArgumentError(message)


def engine_for(engine: str, faults: tuple[Fault, ...]) -> str:
    """The engine to take for *engine*; raises where it cannot make *faults* happen."""
    chosen = choose(engine)
    if fake_files() is not None:
        refuse_for_fake_files(chosen, faults)
    for fault in faults if chosen == "python" else ():
        if reason := _beyond_python(fault):
            message = (
                f"{fault!r}: the python engine cannot make it happen, since {reason}."
                " Use engine='kernel'"
            )
            raise InvalidArgumentError(message)
    return chosen


def _beyond_python(fault: Fault) -> str | None:
    if isinstance(fault, SharedMemoryExhaustion):
        return "torch reserves shared memory in C++"
    if isinstance(fault, WorkerKilled) and fault.reading is not None:
        return "a read that has begun is the kernel's"
    return None
