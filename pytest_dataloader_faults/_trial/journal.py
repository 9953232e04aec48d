"""What a trial writes down, and how that becomes an Outcome. Pure but for the file.

The journal is an anonymous file. Each line is an event, as JSON that names its type. Every process
of a trial writes to it at once what it knows, so that it is there if a process dies or hangs. The
warden reads it while the trial runs, and pytest when it is over.

===================  ==============================================  ==========================
The loader's process  When                                            Who reads it
===================  ==============================================  ==========================
``TrialStarted``     first of all                                    warden, timeline
``LoaderMade``       the factory has returned                        outcome
``FaultsArmed``      a supervisor follows the workers                warden
``PhaseStarted``     the next part of the trial begins               warden, outcome, timeline
``LoaderTime``       from now on the loader's time passes            warden
``HarnessTime``      from now on the trial's own time passes         warden
``WorkersStarting``  an iterator has started workers                 warden
``EpochLength``      the sampler says how many batches there are     outcome
``BatchReceived``    the loop has got a batch                        outcome, timeline
``PassEnded``        a pass came to its end, was left, or failed     outcome, timeline
``Measured``         each process was measured after an epoch        outcome
``Looked``           what is open and runs was looked at             outcome
``FaultsCounted``    the faults' scope has ended                     outcome
``FilesLasting``     where every file was watched: after the epochs  outcome
``ReferenceTaken``   the job was a reference                         reference
``Refused``          the job cannot be done                          pytest, which raises it
``SeveralLoaders``   it was handed several loaders or datasets       pytest, which raises it
``InternalError``    our own code failed; the warden's as well       pytest, which raises it
===================  ==============================================  ==========================

===================  ==============================================  ==========================
The warden           When                                            Who reads it
===================  ==============================================  ==========================
``DeadlineReached``  the loader's time is up                         outcome
``HarnessFailed``    a process of ours was ended or stopped; pytest
                     writes it where that is the warden              pytest, which raises it
``TrialEnded``       last of all                                     outcome, timeline
===================  ==============================================  ==========================

The supervisor writes what ``_engine/protocol.py`` lists under "To the journal".
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from pytest_dataloader_faults._engine.policy import MOST
from pytest_dataloader_faults._engine.protocol import (
    Course,
    Courses,
    Report,
    ToJournal,
    UnknownMessageError,
)
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    InvalidArgumentError,
    UnusableDatasetError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.outcomes import (
    AtDeadline,
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
)
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.error_text import likely_sender
from pytest_dataloader_faults.outcomes.fault_facts import facts_from
from pytest_dataloader_faults.outcomes.plain import from_json, to_json
from pytest_dataloader_faults.outcomes.records import (
    DONE,
    RECOVERY,
    TrialRequest,
)
from pytest_dataloader_faults.outcomes.results import bounded, gap
from pytest_dataloader_faults.outcomes.text import continued, cut, exit_in_words, listed


class TrialStarted(NamedTuple):
    """The process that drives the loader is *pid*."""

    pid: int


class LoaderMade(NamedTuple):
    """What the dataset is, and how workers start: fields of an ``Outcome``."""

    kind: str
    start_method: str
    length: int | None


class FaultsArmed(NamedTuple):
    """From now on a supervisor has something to report."""


class PhaseStarted(NamedTuple):
    """*phase* begins, at the time *at* of the clock, as all times are."""

    phase: Phase
    at: float


class LoaderTime(NamedTuple):
    """It is the loader that is at work."""

    at: float


class HarnessTime(NamedTuple):
    """It is the trial's own code that is at work."""

    at: float


class WorkersStarting(NamedTuple):
    """The workers *pids*, since *at*; None in a recovery, whose workers are not armed."""

    pids: Sequence[int]
    at: float | None


class EpochLength(NamedTuple):
    """How many batches an epoch has."""

    batches: int


class BatchReceived(NamedTuple):
    """*packed*: what the sampler drew, if that is not the list of its indices."""

    phase: Phase
    at: float
    batch: Delivery
    packed: str | None


class PassEnded(NamedTuple):
    """*found*: all of the pass but its batches, which were written as they came."""

    phase: Phase
    at: float
    found: Pass


class Measured(NamedTuple):
    """One footprint for each process of the loader."""

    footprints: Sequence[Footprint]


class Looked(NamedTuple):
    """What the loader's process has open, and what runs below it."""

    resources: Resources


class FaultsCounted(NamedTuple):
    """What the supervisor's report says of the faults, and of each process that was armed."""

    faults: Sequence[FaultFacts]
    processes: Sequence[WorkerFacts]


class FilesLasting(NamedTuple):
    """Those that workers used and that are still there: a field of an ``Outcome``."""

    lasting_files: Sequence[str]


class ReferenceTaken(NamedTuple):
    """What the dataset gives sample by sample."""

    reference: Reference


class Refused(NamedTuple):
    """Which of ``REFUSALS`` it is, by its name, its message, and what it says is lacking."""

    error: str
    why: str
    lacking: str | None


REFUSALS: Mapping[str, type[DataLoaderFaultsError]] = {
    kind.__name__: kind
    for kind in (InvalidArgumentError, UnusableDatasetError, UnusableEnvironmentError)
}


class SeveralLoaders(NamedTuple):
    """The message, and the names of the parts."""

    why: str
    parts: Sequence[str]


class InternalError(NamedTuple):
    """A traceback, or a sentence."""

    text: str


class DeadlineReached(NamedTuple):
    """What the trial did when its time was up: a field of an ``Outcome``."""

    at_deadline: AtDeadline


class HarnessFailed(NamedTuple):
    """What happened to which process of ours, and what the supervisor had printed by then."""

    why: str
    supervisor_printed: str = ""


class TrialEnded(NamedTuple):
    """How it ended: fields of an ``Outcome``; *began*: when it began, by the clock."""

    timed_out: bool
    exitcode: int
    duration: float
    began: float


OfLoader: TypeAlias = (
    TrialStarted | LoaderMade | FaultsArmed | PhaseStarted | LoaderTime | HarnessTime
    | WorkersStarting | EpochLength | BatchReceived | PassEnded | Measured | Looked | FaultsCounted
    | FilesLasting | ReferenceTaken | Refused | SeveralLoaders | InternalError
)  # fmt: skip
OfWarden: TypeAlias = DeadlineReached | HarnessFailed | TrialEnded
JournalEvent: TypeAlias = OfLoader | OfWarden | ToJournal
AnEvent = TypeVar("AnEvent")
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(JournalEvent)}


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def write(self, event: OfLoader | OfWarden) -> None:
        """Append one event. It starts a line of its own, also after half a line of another."""
        fields = {name: to_json(value) for name, value in event._asdict().items()}
        line = json.dumps({"type": type(event).__name__, **fields})
        data = memoryview(f"\n{line}\n".encode())
        while data:
            data = data[os.write(self.fd, data) :]

    def events(self) -> list[JournalEvent]:
        """The events in the order written, without half a line of a process that was killed.

        Raises:
            UnknownMessageError: A line is no event.
        """
        return list(self.of(*_KINDS.values()))

    def of(self, *kinds: type[AnEvent]) -> Iterator[AnEvent]:
        """Those of these *kinds*; the others are not looked into."""
        for line in self.text().split("\n"):
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                continue
            if issubclass(_kind_of(data), kinds):
                yield _decoded(data)


def _kind_of(data: Any) -> type[Any]:
    try:
        return _KINDS[data["type"]]
    except (KeyError, TypeError) as error:
        raise UnknownMessageError(f"{str(data)[:200]!r} is no event of a trial") from error


def _decoded(data: dict[str, Any]) -> Any:
    try:
        return from_json(_kind_of(data), {name: data[name] for name in data if name != "type"})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnknownMessageError(f"{str(data)[:200]!r} is no event: {error!r}") from error


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
            case LoaderMade():
                # A recovery may make a dataset of its own, of which only the kind says something.
                of_recovery = {"length": None} if found.get("phase") == RECOVERY else {}
                found = {**event._asdict(), **of_recovery, **found}
            case EpochLength():
                found = {**event._asdict(), **found}
            case FilesLasting() | DeadlineReached():
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
    return Outcome(**found, resources=tuple(resources), footprints=tuple(footprints))


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
    return {"recovery": recovery, "passes": (*made.values(),), "packed_draws": draws}


def reference_from(events: Sequence[JournalEvent], printed: str) -> Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
    for event in events:
        if isinstance(event, ReferenceTaken):
            return replace(event.reference, duration=end.duration if end else 0.0)
    code = end.exitcode if end else 0
    how = exit_in_words(code) + likely_sender(code)
    message = (
        f"the process that read the dataset died ({how}), with no fault armed and no worker."
        f" {_AFTER_A_FORK if code else _WITHOUT_A_WORD}. It printed:\n"
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
