"""What the events of a trial describe: its outcome, its timeline, its reference.

Pure, except for the names of libraries, which are those of the distributions installed here.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._engine.policy import MOST
from pytest_dataloader_faults._engine.protocol import Course, Courses, WorkerReports
from pytest_dataloader_faults._engine.system.imports import library_of
from pytest_dataloader_faults._trial.journal import (
    BatchReceived,
    DeadlineReached,
    EpochLength,
    FaultsCounted,
    FilesLasting,
    JournalEvent,
    LoaderMade,
    Looked,
    Measured,
    Noted,
    PassEnded,
    PhaseStarted,
    ReferenceTaken,
    TrialEnded,
    TrialStarted,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import (
    Crash,
    Delivery,
    Event,
    FaultFacts,
    Firing,
    LoaderFacts,
    Outcome,
    Pass,
    Phase,
    Reference,
    TrialEnd,
    TrialRequest,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.error_text import FROM_OUTSIDE, likely_sender
from pytest_dataloader_faults.outcomes.refusals import (
    ChangeRefused,
    FileChanged,
    FileCreated,
    FileHistory,
)
from pytest_dataloader_faults.outcomes.results import gap, limit_events
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, START
from pytest_dataloader_faults.outcomes.text import (
    crashed_files,
    describe_end,
    describe_exit,
    indent_rest,
    join_some,
    shorten,
    sort_for_reader,
)


def outcome_from(
    request: TrialRequest, events: Sequence[JournalEvent], printed: str = ""
) -> Outcome:
    """The facts in *events*, and in what was *printed*, about the trial of a *request*."""
    fields: dict[str, Any] = {}
    loader, end = LoaderFacts(), TrialEnd()
    for event in events:
        match event:
            case LoaderMade() | EpochLength():
                loader = replace(loader, **event._asdict())
            case FilesLasting():
                fields |= event._asdict()
            case PhaseStarted():
                fields |= {"phase": event.phase}
            case DeadlineReached():
                end = replace(end, **event._asdict())
            case TrialEnded(timed_out, exitcode, duration):
                end = replace(end, timed_out=timed_out, exitcode=exitcode)
                fields |= {"duration": duration}
    parts = (_passes_from(events), *_counts_from(events))
    notes = (event.note for event in events if isinstance(event, Noted | ChangeRefused))
    crashes = (Crash(file, library_of(file)) for file in crashed_files(printed))
    fields |= {**_measures_from(events), "notes": (*notes, *crashes)}
    outcome = Outcome(request, loader, *parts, end=end, **fields)
    return replace(outcome, timeline=timeline_of(outcome, events))


def add_to_history(history: FileHistory, outcome: Outcome, events: Iterable[JournalEvent]) -> None:
    """Add to *history* what the *events* of a trial say about files."""
    for event in events:
        if isinstance(event, FileCreated):
            history.created.add(event)
        elif isinstance(event, FileChanged):
            history.changed.add(event)
    if outcome.schedule:
        return
    files = (item for process in outcome.processes for item in process.files.items())
    history.read |= {os.path.realpath(path) for path, counts in files if counts.reads}


def _counts_from(
    events: Sequence[JournalEvent],
) -> tuple[tuple[FaultFacts, ...], tuple[WorkerFacts, ...]]:
    """The facts about faults and processes; the supervisor's if the trial's process has died."""
    counts: tuple[tuple[FaultFacts, ...], tuple[WorkerFacts, ...]] = (), ()
    for event in events:
        match event:
            case FaultsCounted(faults, processes):
                return tuple(faults), tuple(processes)
            case WorkerReports(faults, processes):
                counts = tuple(faults), tuple(processes)
    return counts


def _measures_from(events: Sequence[JournalEvent]) -> dict[str, Any]:
    measured = (event.footprints for event in events if isinstance(event, Measured))
    looked = (event.resources for event in events if isinstance(event, Looked))
    return {"resources": (*looked,), "footprints": (*itertools.chain.from_iterable(measured),)}


def _passes_from(events: Iterable[JournalEvent]) -> tuple[Pass, ...]:
    """The passes in order, with those that did not end."""
    passes: dict[Phase, Pass] = {}
    delivered: defaultdict[Phase, list[Delivery]] = defaultdict(list)
    for event in events:
        match event:
            case BatchReceived(phase, _, batch):
                passes.setdefault(phase, Pass(phase))
                delivered[phase].append(batch)
            case PhaseStarted():  # A pass may be made again.
                delivered[event.phase].clear()
            case PassEnded():
                passes[event.result.phase] = _with_library(event.result)
    return tuple(replace(each, delivered=(*delivered[each.phase],)) for each in passes.values())


def _with_library(result: Pass) -> Pass:
    """*result*, with the library that raised the error that ended it."""
    raised = result.exception
    named = raised and replace(raised, library=library_of(raised.file))
    return replace(result, exception=named)


def reference_from(events: Sequence[JournalEvent], printed: str) -> Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
    for event in events:
        if isinstance(event, ReferenceTaken):
            return replace(event.reference, duration=end.duration if end else 0.0)
    code = end.exitcode if end else 0
    ending = describe_exit(code) + likely_sender(code)
    advice = _FROM_OUTSIDE if code in FROM_OUTSIDE else _AFTER_A_FORK if code else _WITHOUT_A_WORD
    message = (
        f"the process that read the dataset died ({ending}), without faults or workers."
        f" {advice}. It printed:\n"
        f"    {indent_rest(_readable(printed)) or 'nothing'}"
    )
    raise UnusableDatasetError(message)


def _readable(printed: str) -> str:
    return "\n".join(sort_for_reader(printed.strip().split("\n")))


_AFTER_A_FORK = (
    "It was forked from pytest's process, and a library with its own threads or locks may not"
    " survive a fork: create the data in another process, and do not use the library before"
)
_FROM_OUTSIDE = (
    "A second one died too. Unless the dataset sends that signal, find out what kills processes on"
    " this machine"
)
_WITHOUT_A_WORD = (
    "This is not a crash: the dataset, or a library that it uses, ended the process, as os._exit(0)"
    " does, or replaced it with another program, as os.exec* does. Remove that call"
)


# Some facts about the clock. Python's time.monotonic() reads CLOCK_MONOTONIC, which is one for all
# processes of a machine. So times from several processes can be put in order.


_LOADER = "loader"
_SAMPLES = 16
"""Samples of a batch that are named."""


def timeline_of(outcome: Outcome, events: Sequence[JournalEvent]) -> tuple[Event, ...]:
    """What happened when in the trial of *outcome*."""
    began = next((event.began for event in events if isinstance(event, TrialEnded)), None)
    if began is None:  # It is not over.
        return ()
    timeline = _Timeline(outcome, events)
    entries = limit_events(sorted(timeline.all(began), key=lambda entry: entry.time), MOST)
    return tuple(
        replace(each, time=round(each.time - began, 6), text=shorten(each.text)) for each in entries
    )


class _Timeline:
    """The timeline of one trial, with the times of the clock."""

    def __init__(self, outcome: Outcome, events: Sequence[JournalEvent]) -> None:
        self._outcome = outcome
        self._events = events
        self._courses: Sequence[Course] = ()
        self._roots: set[int] = set()
        for event in events:
            match event:
                case Courses():
                    self._courses = event.workers
                case TrialStarted():
                    self._roots.add(event.pid)
        self._gone = {each.pid: each.ended_at for each in self._courses if each.ended_at}

    def all(self, began: float) -> Iterator[Event]:
        """All that are known; events of one time are in their order."""
        yield from self._loop_events()
        for course in self._courses:
            name = self._process(course.worker, course.pid)
            yield from self._course_events(name, course)
        for facts in self._outcome.faults:
            yield from self._fault_events(facts)
        yield from self._unnoted_events()
        yield from self._end_events(began + self._outcome.duration)

    def _process(self, worker: int | None, pid: int) -> str:
        """The name of a process. Without workers, the loader's own acts as worker 0."""
        return _LOADER if worker is None or pid in self._roots else f"worker {worker}"

    def _course_events(self, name: str, course: Course) -> Iterator[Event]:
        """Of one process: fetches and opened files, and where some were not noted."""
        for time, kind, text in course.events:
            yield Event(time, name, kind, text)
        for kind, (count, time) in course.omitted.items():
            yield gap(time, name, kind, count)

    def _unnoted_events(self) -> Iterator[Event]:
        """Faults of each process that were only counted: they fired after the others."""
        times: dict[int, float] = {}
        for facts in self._outcome.faults:
            for firing in facts.firings:
                times[firing.pid] = max(firing.time or 0.0, times.get(firing.pid, 0.0))
        for course in self._courses:
            if course.unnoted:
                name = self._process(course.worker, course.pid)
                yield gap(times.get(course.pid, 0.0), name, "fault", course.unnoted)

    def _loop_events(self) -> Iterator[Event]:
        received: Counter[Phase] = Counter()
        for event in self._events:
            match event:
                case PhaseStarted(phase, at) if phase not in (START, DONE):
                    yield Event(at, _LOADER, "epoch", f"{_phase_name(phase)} starts")
                case BatchReceived(phase, at, batch):
                    text = f"batch {received[phase]} of {_phase_name(phase)}{_contents(batch)}"
                    yield Event(at, _LOADER, "batch", text)
                    received[phase] += 1
                case PassEnded():
                    yield from self._pass_end_events(event)

    def _pass_end_events(self, event: PassEnded) -> Iterator[Event]:
        at, error = event.at, event.result.exception
        for death in event.result.deaths:
            ended_at = self._gone.get(death.pid, at)
            if error and str(death.pid) in error.message:  # The supervisor may see it later.
                ended_at = min(ended_at, at)
            yield Event(ended_at, f"worker {death.worker}", "exit", str(death))
        if error:
            yield Event(at, _LOADER, "error", error_line(error))
        ending = " with an error" if error else ""
        yield Event(at, _LOADER, "epoch", f"{_phase_name(event.result.phase)} ends{ending}")

    def _fault_events(self, facts: FaultFacts) -> Iterator[Event]:
        for firing in facts.firings:
            if firing.time is not None:
                name = self._process(firing.worker, firing.pid)
                yield Event(firing.time, name, "fault", _occurrence(facts, firing))

    def _end_events(self, end: float) -> Iterator[Event]:
        if self._outcome.died:
            text = f"the process {describe_end(self._outcome.end.exitcode)}"
            yield Event(end, _LOADER, "exit", text)
        if self._outcome.timed_out:
            for course in self._courses:
                if course.early and course.ended_at and course.pid not in self._roots:
                    yield Event(
                        course.ended_at, f"worker {course.worker}", "exit", "the worker exited"
                    )
            yield Event(end, _LOADER, "exit", "the deadline ended the trial")


def _phase_name(phase: Phase) -> str:
    return f"the {phase}" if phase == RECOVERY else str(phase)


def _contents(batch: Delivery) -> str:
    maker = "" if batch.worker is None else f" from worker {batch.worker}"
    samples = join_some(batch.indices or (), limit=_SAMPLES)
    return f"{maker}: samples {samples}" if samples else maker


def _occurrence(facts: FaultFacts, firing: Firing) -> str:
    where = f" of {firing.path}" if firing.path else ""
    sample = "" if firing.sample is None else f", sample {firing.sample}"
    return f"{type(facts.fault).__name__}: {firing.call}{where}{sample}"
