"""What the events of a trial tell: its outcome, its timeline, its reference. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._engine.policy import MOST
from pytest_dataloader_faults._engine.protocol import Course, Courses, Report
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
    PassEnded,
    PhaseStarted,
    RankAbsent,
    RanksApart,
    ReferenceTaken,
    StateChanged,
    StateLoaded,
    StateSaved,
    TrialEnded,
    TrialStarted,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import (
    Delivery,
    Event,
    FaultFacts,
    Firing,
    Footprint,
    Outcome,
    Pass,
    Phase,
    Reference,
    Resources,
    WorkerFacts,
    stacks,
)
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.error_text import FROM_OUTSIDE, likely_sender
from pytest_dataloader_faults.outcomes.fault_facts import facts_from
from pytest_dataloader_faults.outcomes.records import TrialRequest
from pytest_dataloader_faults.outcomes.results import bounded, gap
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, SavedState, Stage
from pytest_dataloader_faults.outcomes.text import continued, cut, exit_in_words, listed


def outcome_from(request: TrialRequest, events: Sequence[JournalEvent]) -> Outcome:
    """The facts that *events* tell of the trial that was asked for by *request*."""
    outcome = replace(_facts_from(request, events), **_passes_from(events))
    timeline, omitted = timeline_of(outcome, events)
    return replace(outcome, timeline=timeline, omitted_events=omitted)


def _facts_from(request: TrialRequest, events: Iterable[JournalEvent]) -> Outcome:
    """All of them but the passes and the timeline."""
    found: dict[str, Any] = {**vars(request)}
    resources, footprints = list[Resources](), list[Footprint]()
    for event in events:
        match event:
            case LoaderMade() | EpochLength() | FilesLasting() | DeadlineReached():
                found |= event._asdict()
            case RankAbsent() | RanksApart():
                found |= event._asdict()
            case FaultsCounted():
                found |= _counted(event.faults, event.processes)
            case PhaseStarted():
                found |= {"phase": event.phase}
            case Measured():
                footprints += event.footprints
            case Looked():
                resources.append(event.resources)
            case Report() if "faults" not in found:  # The trial's process has died.
                found |= _counted(*facts_from(event.workers, {}, request.schedule, ()))
            case TrialEnded(timed_out, exitcode, duration):
                found |= {"timed_out": timed_out, "exitcode": exitcode, "duration": duration}
    found |= {"footprints": tuple(footprints), "states": tuple(_states_from(events))}
    return Outcome(**found, resources=tuple(resources))


def _states_from(events: Iterable[JournalEvent]) -> list[SavedState]:
    states = list[SavedState]()
    for event in events:
        match event:
            case StateSaved():
                states.append(event.state)
            case StateChanged():
                states[-1] = replace(states[-1], changed=True)
            case StateLoaded(number):
                states[number] = replace(states[number], resumed=True)
    return states


def _counted(faults: Sequence[FaultFacts], processes: Sequence[WorkerFacts]) -> dict[str, Any]:
    workers = tuple(each for each in processes if each.worker is not None)
    main = next((each for each in processes if each.worker is None), None)
    return {"faults": tuple(faults), "workers": workers, "main": main}


def _passes_from(events: Iterable[JournalEvent]) -> dict[str, Any]:
    """The passes, the recovery, and what the sampler drew for them."""
    passes: defaultdict[Phase, Pass] = defaultdict(Pass)
    delivered: defaultdict[Phase, list[Delivery]] = defaultdict(list)
    packed: dict[tuple[Any, ...], str | None] = {}
    for event in events:
        match event:
            case BatchReceived(phase, _, batch):
                passes[phase]
                delivered[phase].append(batch)
                packed[batch.indices or ()] = event.packed
            case PassEnded():
                passes[event.phase] = event.found
    made = {phase: replace(one, delivered=(*delivered[phase],)) for phase, one in passes.items()}
    draws = tuple((indices, draw) for indices, draw in packed.items() if draw is not None)
    recovery = made.pop(RECOVERY, None)
    resumed = tuple(made.pop(each) for each in list(made) if each.stage is Stage.RESUMED)
    uninterrupted = made.pop(Phase(Stage.UNINTERRUPTED), None)
    others = {"recovery": recovery, "resumed": resumed, "uninterrupted": uninterrupted}
    return {**others, "passes": (*made.values(),), "packed_draws": draws}


def reference_from(events: Sequence[JournalEvent], printed: str) -> Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
    for event in events:
        if isinstance(event, ReferenceTaken):
            return replace(event.reference, duration=end.duration if end else 0.0)
    code = end.exitcode if end else 0
    how = exit_in_words(code) + likely_sender(code)
    advice = _FROM_OUTSIDE if code in FROM_OUTSIDE else _AFTER_A_FORK if code else _WITHOUT_A_WORD
    message = (
        f"the process that read the dataset died ({how}), with no fault armed and no worker."
        f" {advice}. It printed:\n"
        f"    {continued(_readable(printed)) or 'nothing'}"
    )
    raise UnusableDatasetError(message)


def _readable(printed: str) -> str:
    return "\n".join(stacks.for_reader(printed.strip().split("\n")))


_AFTER_A_FORK = (
    "It was forked from pytest's process, and a library that has threads or locks of its own may"
    " not survive that: make the data in another process, and do not use the library before"
)
_FROM_OUTSIDE = (
    "So did a second one. Unless the dataset sends that signal, find out what ends processes on"
    " this machine"
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


def timeline_of(outcome: Outcome, events: Sequence[JournalEvent]) -> tuple[tuple[Event, ...], int]:
    """What happened when in the trial of *outcome*, and how many events are left out."""
    began = next((event.began for event in events if isinstance(event, TrialEnded)), None)
    if began is None:  # It is not over.
        return (), 0
    found = _Timeline(outcome, events)
    kept = bounded(sorted(found.all(began), key=lambda each: each.time), MOST)
    shown = (replace(each, time=round(each.time - began, 6), text=cut(each.text)) for each in kept)
    return tuple(shown), sum(each.omitted for each in kept)


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
        self._gone = {each.pid: each.gone for each in self._courses if each.gone}

    def all(self, began: float) -> Iterator[Event]:
        """All that are known; events of one time are in their order."""
        yield from self._of_loop()
        for each in self._courses:
            name = self._process(each.worker, each.pid)
            yield from self._of_course(name, each)
        for facts in self._outcome.faults:
            yield from self._of_fault(facts)
        yield from self._unnoted()
        yield from self._of_end(began + self._outcome.duration)

    def _process(self, worker: int | None, pid: int) -> str:
        """The name of a process. Without workers, the loader's own acts as worker 0."""
        return _LOADER if worker is None or pid in self._roots else f"worker {worker}"

    def _of_course(self, name: str, course: Course) -> Iterator[Event]:
        """Of one process: fetches and opened files, and where some were not noted."""
        for time, kind, text in course.moments:
            yield Event(time, name, kind, text)
        for kind, (count, time) in course.omitted.items():
            yield gap(time, name, kind, count)

    def _unnoted(self) -> Iterator[Event]:
        """Faults of each process that were counted only: they came after the others."""
        times: dict[int, float] = {}
        for facts in self._outcome.faults:
            for each in facts.firings:
                times[each.pid] = max(each.time or 0.0, times.get(each.pid, 0.0))
        for course in self._courses:
            if course.unnoted:
                name = self._process(course.worker, course.pid)
                yield gap(times.get(course.pid, 0.0), name, "fault", course.unnoted)

    def _of_loop(self) -> Iterator[Event]:
        received: Counter[Phase] = Counter()
        for event in self._events:
            match event:
                case PhaseStarted(phase, at) if phase != DONE:
                    yield Event(at, _LOADER, "epoch", f"{_name(phase)} begins")
                case BatchReceived(phase, at, batch):
                    text = f"batch {received[phase]} of {_name(phase)}{_contents(batch)}"
                    yield Event(at, _LOADER, "batch", text)
                    received[phase] += 1
                case PassEnded():
                    yield from self._of_end_of_pass(event)

    def _of_end_of_pass(self, event: PassEnded) -> Iterator[Event]:
        at, error = event.at, event.found.exception
        for death in event.found.deaths:
            gone = self._gone.get(death.pid, at)
            if error and str(death.pid) in error.message:  # The supervisor may see it later.
                gone = min(gone, at)
            yield Event(gone, f"worker {death.worker}", "exit", str(death))
        if error:
            yield Event(at, _LOADER, "error", error_line(error))
        ending = " with an error" if error else ""
        yield Event(at, _LOADER, "epoch", f"{_name(event.phase)} ends{ending}")

    def _of_fault(self, facts: FaultFacts) -> Iterator[Event]:
        for each in facts.firings:
            if each.time is not None:
                name = self._process(each.worker, each.pid)
                yield Event(each.time, name, "fault", _occurrence(facts, each))

    def _of_end(self, end: float) -> Iterator[Event]:
        if self._outcome.died:
            yield Event(end, _LOADER, "exit", f"the process ended: {self._outcome.died}")
        if self._outcome.timed_out:
            for each in self._courses:
                if each.early and each.gone and each.pid not in self._roots:
                    yield Event(each.gone, f"worker {each.worker}", "exit", "the worker ended")
            yield Event(end, _LOADER, "exit", "the deadline ended the trial")


def _name(phase: Phase) -> str:
    return f"the {phase}" if phase == RECOVERY else str(phase)


def _contents(batch: Delivery) -> str:
    maker = "" if batch.worker is None else f" from worker {batch.worker}"
    samples = listed(batch.indices or (), most=_SAMPLES)
    return f"{maker}: samples {samples}" if samples else maker


def _occurrence(facts: FaultFacts, firing: Firing) -> str:
    where = f" of {firing.path}" if firing.path else ""
    sample = "" if firing.sample is None else f", sample {firing.sample}"
    return f"{type(facts.fault).__name__}: {firing.call}{where}{sample}"
