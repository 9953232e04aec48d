"""What a trial writes down, and how that becomes an Outcome. Pure but for the file.

The journal is an anonymous file. One JSON object per line.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pytest_dataloader_faults import outcomes
from pytest_dataloader_faults._engine.policy import MOST
from pytest_dataloader_faults._engine.system.shared import AnonymousFile
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import to_dict
from pytest_dataloader_faults.outcomes import (
    Event,
    FaultFacts,
    Firing,
    Outcome,
    Raised,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.error_text import with_likely_sender
from pytest_dataloader_faults.outcomes.fault_facts import facts_from
from pytest_dataloader_faults.outcomes.records import TrialRequest
from pytest_dataloader_faults.outcomes.results import bounded, gap
from pytest_dataloader_faults.outcomes.text import continued, cut, listed


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def write(self, **event: Any) -> None:
        """Append one event. It starts a line of its own, also after half a line of another."""
        data = memoryview(b"\n" + json.dumps(event).encode() + b"\n")
        while data:
            data = data[os.write(self.fd, data) :]

    def write_facts(self, faults: Iterable[FaultFacts], workers: Iterable[WorkerFacts]) -> None:
        written = [{**asdict(each), "fault": to_dict(each.fault)} for each in faults]
        self.write(faults=written, workers=[asdict(each) for each in workers])

    def events(self) -> list[dict[str, Any]]:
        """The events in the order written, without half a line of a process that was killed."""
        found = []
        for line in self.text().split("\n"):
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


def outcome_from(request: TrialRequest, events: list[dict[str, Any]]) -> outcomes.Outcome:
    outcome = _facts_from(request, events)
    timeline, omitted = timeline_of(outcome, events)
    return replace(outcome, timeline=timeline, omitted_events=omitted)


def _facts_from(request: TrialRequest, events: list[dict[str, Any]]) -> outcomes.Outcome:
    data = outcomes.Outcome(**vars(request)).to_dict()
    report = None
    packed: dict[tuple[Any, ...], str | None] = {}
    passes: dict[int | None, dict[str, Any]] = defaultdict(
        lambda: {"drawn": [], "delivered": [], "exception": None, "complete": False}
    )
    for event in events:
        if "batch" in event:
            passes[event["epoch"]]["delivered"].append(event["batch"])
            packed[tuple(event["batch"]["indices"] or ())] = event.get("packed")
        elif "pass" in event:
            passes[event["epoch"]].update(event["pass"])
        elif "report" in event:
            report = event["report"]
        elif "resources" in event:
            data["resources"] = [*data["resources"], event["resources"]]
        elif "footprints" in event:
            data["footprints"] = [*data["footprints"], *event["footprints"]]
        else:
            data.update({name: event[name] for name in event if name in data})
    data["packed_draws"] = [item for item in packed.items() if item[1] is not None]
    data["recovery"] = passes.pop(None, None)
    data["passes"] = list(passes.values())
    outcome = outcomes.Outcome.from_dict(data)
    if report is None or any("faults" in event for event in events):
        return outcome
    # The supervisor reported, since the trial's process had died.
    faults, workers = facts_from(report["workers"], {}, request.schedule, ())
    return replace(outcome, faults=faults, workers=workers)


def reference_from(events: list[dict[str, Any]], printed: str) -> outcomes.Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    duration = next((event["duration"] for event in events if "duration" in event), 0.0)
    for event in events:
        if "reference" in event:
            return outcomes.Reference.from_dict({**event["reference"], "duration": duration})
    died = next((event["died"] for event in events if event.get("died")), "")
    how = with_likely_sender(died) if died else "exit status 0"
    message = (
        f"the process that read the dataset died ({how}), with no fault armed and no worker."
        f" {_AFTER_A_FORK if died else _WITHOUT_A_WORD}. It printed:\n"
        f"    {continued(printed.strip()) or 'nothing'}"
    )
    raise UnusableDatasetError(message)


_AFTER_A_FORK = (
    "It was forked from pytest's process, and a library that has threads or locks of its own may"
    " not survive that: make the data in another process, and do not use the library before"
)
_WITHOUT_A_WORD = (
    "That is no crash: the dataset, or a library that it uses, ended the process, as os._exit(0)"
    " does, or put another program in its place, as os.exec* does. Remove that call"
)


# Some facts about the clock. Python's time.monotonic() reads CLOCK_MONOTONIC, which is one for all
# processes of a machine. So times from several processes can be put in order.


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
