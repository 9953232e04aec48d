"""The clock of one trial: when its time is up, by what the warden sees of it [in the warden]."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.channel import SupervisorHandle
from pytest_dataloader_faults._engine.processes import is_stopped
from pytest_dataloader_faults._trial.job import Limits
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.process.activity import Observer
from pytest_dataloader_faults._trial.process.deadline import (
    HARNESS,
    LOADER,
    SLICE,
    Pauses,
    activity_of,
    deadline_after,
    extended,
)


class TrialClock:
    """Says when to look next, until the time is up.

    *waited* gives the seconds that the trial's processes had to wait for a processor.

    Attributes:
        whose: Whose time passes.
        until: When that time will be up, as far as is known.

    """

    def __init__(
        self,
        facts: Journal,
        limits: Limits,
        supervisor: SupervisorHandle | None,
        waited: Callable[[], float],
    ) -> None:
        self._facts, self._limits, self._waited = facts, limits, waited
        self._supervisor = supervisor
        self._began = time.monotonic()
        self._pauses = Pauses(self._began)
        self._observer = Observer(supervisor.given if supervisor else None, limits.most_bytes)
        self._size, self._events = 0, list[dict[str, Any]]()
        self._more = 0.0
        self.whose, self.until = LOADER, self._began + limits.deadline

    @property
    def next_look(self) -> float:
        return min(self.until, time.monotonic() + SLICE)

    def is_up(self) -> bool:
        """Look whether the time is up."""
        now = time.monotonic()
        self._pauses.look(now, stopped=bool(self._supervisor and is_stopped(self._supervisor.pid)))
        self._read_journal()
        self._observer.look(self._size, self._events)
        found, seen = self._pauses.found, self._observer.seen
        whose, until = deadline_after(self._events, self._began, self._limits.deadline, found)
        if until <= now and whose != HARNESS:
            until += self._waited()
        if whose == LOADER and until <= now and self._limits.may_take_longer:
            self._more = now - until
            until = extended(until, self._limits.deadline, seen)
        self.whose, self.until = whose, until
        return until <= now

    def write_activity(self) -> None:
        """Write down what the processes do, now that the time is up."""
        seen, now = self._observer.seen, time.monotonic()
        activity = activity_of(seen, now, self._limits.deadline)
        more = round(self._more) if self._more > SLICE else 0.0
        at_deadline = {"activity": activity, "more": more, "asleep": seen.asleep}
        self._facts.write(at_deadline=at_deadline)

    def _read_journal(self) -> None:
        size = os.fstat(self._facts.fd).st_size
        if size != self._size:
            self._size, self._events = size, self._facts.events()
