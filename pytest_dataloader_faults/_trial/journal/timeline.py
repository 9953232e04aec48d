"""When things happened in a trial, from the times in its journal. Pure.

Some facts about the clock. Python's time.monotonic() reads CLOCK_MONOTONIC, which is one for all
processes of a machine. So times from several processes can be put in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._engine.policy.moments import MOST
from pytest_dataloader_faults.outcomes import (
    Event,
    FaultFacts,
    Firing,
    Outcome,
    Raised,
    WorkerDeath,
)
from pytest_dataloader_faults.outcomes._courses import bounded, gap
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.text import cut, listed

_LOADER = "loader"
_SAMPLES = 16
"""Samples of a batch that are named."""


def timeline_of(
    outcome: Outcome, journal: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Event, ...], int]:
    """What happened when in the trial of *outcome*, and how many events are left out."""
    began = next((event["started"] for event in journal if "started" in event), None)
    if began is None:  # It is not over.
        return (), 0
    found = _Events(outcome, journal)
    kept = bounded(sorted(found.all(began), key=lambda each: each.time), MOST)
    shown = (replace(each, time=round(each.time - began, 6), text=cut(each.text)) for each in kept)
    return tuple(shown), sum(each.omitted for each in kept)


class _Events:
    """The events of one trial, with the times of the clock."""

    def __init__(self, outcome: Outcome, journal: Sequence[Mapping[str, Any]]) -> None:
        self._outcome = outcome
        self._journal = journal
        courses = [event["course"] for event in journal if "course" in event]
        self._course: list[Mapping[str, Any]] = courses[-1] if courses else []
        self._root = next((event["pids"][0] for event in journal if "pids" in event), None)
        self._gone = {each["pid"]: each["gone"] for each in self._course if each["gone"]}

    def all(self, began: float) -> Iterator[Event]:
        """All that are known; events of one time are in their order."""
        yield from self._of_loop()
        for each in self._course:
            name = self._process(each["worker"], each["pid"])
            yield from self._of_course(name, each)
        for facts in self._outcome.faults:
            yield from self._of_fault(facts)
        yield from self._unnoted()
        yield from self._of_end(began + self._outcome.duration)

    def _process(self, worker: int | None, pid: int) -> str:
        """The name of a process. Without workers, the loader's own acts as worker 0."""
        return _LOADER if worker is None or pid == self._root else f"worker {worker}"

    def _of_course(self, name: str, course: Mapping[str, Any]) -> Iterator[Event]:
        """Of one process: fetches and opened files, and where some were not noted."""
        for time, kind, text in course["moments"]:
            yield Event(time, name, kind, text)
        for kind, (count, time) in course["omitted"].items():
            yield gap(time, name, kind, count)

    def _unnoted(self) -> Iterator[Event]:
        """Faults of each process that were counted only: they came after the others."""
        times: dict[int, float] = {}
        for facts in self._outcome.faults:
            for each in facts.firings:
                times[each.pid] = max(each.time or 0.0, times.get(each.pid, 0.0))
        for course in self._course:
            if course["unnoted"]:
                name = self._process(course["worker"], course["pid"])
                yield gap(times.get(course["pid"], 0.0), name, "fault", course["unnoted"])

    def _of_loop(self) -> Iterator[Event]:
        received: Counter[int | None] = Counter()
        for event in self._journal:
            epoch = event.get("epoch")
            name = "the recovery" if epoch is None else f"epoch {epoch}"
            if "starts" in event:
                yield Event(event["starts"], _LOADER, "epoch", f"{name} begins")
            elif "batch" in event:
                text = f"batch {received[epoch]} of {name}{_contents(event['batch'])}"
                yield Event(event["at"], _LOADER, "batch", text)
                received[epoch] += 1
            elif event.get("at") and "pass" in event:
                yield from self._of_pass(event["at"], name, event["pass"])

    def _of_pass(self, at: float, name: str, found: Mapping[str, Any]) -> Iterator[Event]:
        error = Raised(**found["exception"]) if found["exception"] else None
        for death in (WorkerDeath(**each) for each in found.get("deaths", ())):
            gone = self._gone.get(death.pid, at)
            if error and str(death.pid) in error.message:  # The supervisor may see it later.
                gone = min(gone, at)
            yield Event(gone, f"worker {death.worker}", "exit", str(death))
        if error:
            yield Event(at, _LOADER, "error", error_line(error))
        yield Event(at, _LOADER, "epoch", f"{name} ends{' with an error' if error else ''}")

    def _of_fault(self, facts: FaultFacts) -> Iterator[Event]:
        for each in facts.firings:
            if each.time is not None:
                name = self._process(each.worker, each.pid)
                yield Event(each.time, name, "fault", _occurrence(facts, each))

    def _of_end(self, end: float) -> Iterator[Event]:
        if self._outcome.died:
            yield Event(end, _LOADER, "exit", f"the process ended: {self._outcome.died}")
        if self._outcome.timed_out:
            early = [each for each in self._course if each["early"] and each["pid"] != self._root]
            for each in early:
                yield Event(each["gone"], f"worker {each['worker']}", "exit", "the worker ended")
            yield Event(end, _LOADER, "exit", "the deadline ended the trial")


def _contents(batch: Mapping[str, Any]) -> str:
    maker = "" if batch["worker"] is None else f" from worker {batch['worker']}"
    samples = listed(batch["indices"] or (), most=_SAMPLES)
    return f"{maker}: samples {samples}" if samples else maker


def _occurrence(facts: FaultFacts, firing: Firing) -> str:
    where = f" of {firing.path}" if firing.path else ""
    sample = "" if firing.sample is None else f", sample {firing.sample}"
    return f"{type(facts.fault).__name__}: {firing.call}{where}{sample}"
