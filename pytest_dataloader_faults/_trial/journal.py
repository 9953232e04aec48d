"""What a trial writes down, while it runs, and the outcome in that. Pure but for the file.

The journal is an anonymous file, and each line of it is an event. Every process of a trial writes
to it at once what it knows, so that it is there if a process dies or hangs. The warden reads it
while the trial runs, and pytest makes the outcome of it when the trial is over.

=====================  =============================================  ==========================
Event                  When                                           Who reads it
=====================  =============================================  ==========================
``ProcessesStarted``   first of all; an iterator has started workers  warden
``Turn``               it changes whose time passes                   warden
``FaultsArmed``        a supervisor follows the workers               warden
``PhaseStarted``       the next part of the trial starts              warden, outcome, timeline
``FactsFound``         a part of the outcome is known                 outcome
``Note``               only some trials have such a fact              outcome
``Kept``               a step has something for a later process       that process
``BatchReceived``      the loop has got a batch                       outcome
``PassEnded``          a pass came to its end, was left, or failed    outcome, timeline
``Reference``          the job was a reference                        reference
``Failed``             the job cannot be done, or a process of ours   pytest, which raises it
                       failed, or was ended or stopped
``TrialEnded``         last of all; written by the warden             outcome, timeline
=====================  =============================================  ==========================

The supervisor writes what ``_engine/protocol.py`` lists under "To the journal".
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from pytest_dataloader_faults import exceptions, wire
from pytest_dataloader_faults._engine.protocol import ToJournal, WorkerReports
from pytest_dataloader_faults._engine.system.imports import library_of
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    ClosedByUserError,
    SharedNote,
)
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError, UnusableDatasetError
from pytest_dataloader_faults.outcomes import (
    Batch,
    Crash,
    Event,
    FaultFacts,
    Footprint,
    LoaderFacts,
    Outcome,
    Pass,
    Phase,
    Reference,
    Resources,
    TrialEnd,
    TrialRequest,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.error_text import FROM_OUTSIDE, likely_sender
from pytest_dataloader_faults.outcomes.stages import (
    DONE,
    RECOVERY,
    START,
    FileChanged,
    FileCreated,
    FileHistory,
)
from pytest_dataloader_faults.outcomes.text import (
    crashed_files,
    describe_end,
    describe_exit,
    indent_rest,
    shorten,
    sort_for_reader,
)
from pytest_dataloader_faults.wire import Note

# Some facts about the clock. Python's time.monotonic() reads CLOCK_MONOTONIC, which is one for all
# processes of a machine. So times from several processes can be put in order.


LOADER, HARNESS, OTHERS = "loader", "harness", "others"
"""Whose time passes: the loader's, the trial's own, or that of the other jobs it waits for."""


class ProcessesStarted(NamedTuple):
    """The processes *pids* drive the loader, or are its workers.

    *since*: when armed workers were started, by the clock; None for all others.
    """

    pids: Sequence[int]
    since: float | None = None


class Turn(NamedTuple):
    """The time of *whose* passes from *at* on."""

    whose: str
    at: float


class FaultsArmed(NamedTuple):
    """From now on a supervisor has something to report."""


class PhaseStarted(NamedTuple):
    """*phase* starts, at the time *at* of the clock, as all times are."""

    phase: Phase
    at: float


class FactsFound(NamedTuple):
    """Some fields of an ``Outcome``. Those of several events are put together."""

    loader: LoaderFacts | None = None
    faults: Sequence[FaultFacts] = ()
    processes: Sequence[WorkerFacts] = ()
    lasting_files: Sequence[str] = ()
    resources: Sequence[Resources] = ()
    footprints: Sequence[Footprint] = ()


class Kept(NamedTuple):
    """A *state* that a step keeps for the steps of a later process, and its *number*."""

    number: int
    state: bytes


class BatchReceived(NamedTuple):
    """The loop has received *batch* in *phase*."""

    phase: Phase
    batch: Batch


class PassEnded(NamedTuple):
    """*result*: all of the pass but its batches, which were written when they arrived."""

    at: float
    result: Pass


class Failed(NamedTuple):
    """An error of this *kind*, its message, and what it says is lacking."""

    kind: type[DataLoaderFaultsError]
    why: str
    lacking: str | None
    at: float


class TrialEnded(NamedTuple):
    """How it ended, and how long it took; *began*: when, by the clock."""

    end: TrialEnd
    duration: float
    began: float


REFUSALS = (
    exceptions.InvalidArgumentError,
    UnusableDatasetError,
    exceptions.UnusableEnvironmentError,
)
"""Why a job cannot be done."""
_FAILURES = (exceptions.LostProcessError, exceptions.HarnessError)
"""A process of ours was ended or stopped, or our own code failed."""


def failed(error: DataLoaderFaultsError) -> Failed:
    """The event by which pytest's process raises *error*."""
    kind = next(each for each in (*REFUSALS, *_FAILURES) if isinstance(error, each))
    return Failed(kind, str(error), getattr(error, "lacking", None), time.monotonic())


TrialEvent: TypeAlias = (
    ProcessesStarted | Turn | FaultsArmed | PhaseStarted | FactsFound | Note | Kept
    | BatchReceived | PassEnded | Reference | Failed | TrialEnded
)  # fmt: skip
JournalEvent: TypeAlias = TrialEvent | ToJournal
EventT = TypeVar("EventT")

_UNWRITABLE = 71
"""The exit status of a process that has lost its journal; the warden reads ``loss``."""


class Journal(AnonymousFile):
    """An append-only list of events that outlives the processes which write it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._loss = SharedNote()
        self._is_passed_on = False
        self._is_of_user = False
        """Whether this process was forked by user code, which should not return here."""

    @property
    def loss(self) -> str:
        """Why a process could not write any more, and ended; "" if all could."""
        return self._loss.text

    def close_in_worker(self) -> None:
        """Close it in a process that was just forked, unless that continues the trial."""
        if not self._is_passed_on:
            self._is_of_user = True
            self.close()

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """Leave it open in processes that are forked meanwhile."""
        self._is_passed_on = True
        try:
            yield
        finally:
            self._is_passed_on = False

    def write(self, event: TrialEvent) -> None:
        """Append one event on a new line, even after half a line of another one.

        If the user's code has closed the file, its number may be that of a user's file.
        """
        if self._is_of_user:  # An error of the user's code has ended up here.
            os._exit(_UNWRITABLE)
        try:
            self.owned.require()
        except ClosedByUserError as error:
            self._loss.write(str(error))
            os._exit(_UNWRITABLE)
        data = memoryview(wire.encode(event))
        while data:
            data = data[os.write(self.fd, data) :]

    def write_turn(self, whose: str) -> None:
        """Write down that the time of *whose* passes from now on."""
        self.write(Turn(whose, time.monotonic()))

    def events(self) -> list[JournalEvent]:
        """The events in the order written, without half a line of a process that was killed."""
        return list(self.of(*get_args(JournalEvent)))

    def of(self, *kinds: type[EventT]) -> Iterator[EventT]:
        """The events of these *kinds*; the others are not parsed."""
        return wire.decode(self.text(), {kind.__name__ for kind in kinds})


def outcome_from(
    request: TrialRequest, events: Sequence[JournalEvent], printed: str = ""
) -> Outcome:
    """The facts in *events*, and in what was *printed*, about the trial of a *request*."""
    fields: dict[str, Any] = {"passes": _passes_from(events)}
    report: dict[str, Any] = {}
    for event in events:
        match event:
            case FactsFound():
                new = {name: value for name, value in event._asdict().items() if value}
                loader = new.pop("loader", None) or fields.get("loader", LoaderFacts())
                lists = {name: (*fields.get(name, ()), *each) for name, each in new.items()}
                fields |= {"loader": loader, **lists}
            case WorkerReports(faults, processes):
                report = {"faults": tuple(faults), "processes": tuple(processes)}
            case PhaseStarted(phase):
                fields["phase"] = phase
            case TrialEnded(end, duration):
                fields |= {"duration": duration, "end": end}
    if not ("faults" in fields or "processes" in fields):  # The trial's process died or hung.
        fields |= report
    crashes = (Crash(file, library_of(file)) for file in crashed_files(printed))
    fields["notes"] = (*(event for event in events if isinstance(event, Note)), *crashes)
    outcome = Outcome(request, **fields)
    return replace(outcome, timeline=timeline_of(outcome, events))


def _passes_from(events: Iterable[JournalEvent]) -> tuple[Pass, ...]:
    """The passes in order, with those that did not end."""
    passes: dict[Phase, Pass] = {}
    delivered: defaultdict[Phase, list[Batch]] = defaultdict(list)
    for event in events:
        match event:
            case BatchReceived(phase, batch):
                passes.setdefault(phase, Pass(phase))
                delivered[phase].append(batch)
            case PhaseStarted(phase):  # A pass may be made again.
                delivered[phase].clear()
            case PassEnded(_, result):
                if raised := result.exception:
                    raised = replace(raised, library=library_of(raised.file))
                passes[result.phase] = replace(result, exception=raised)
    return tuple(replace(each, delivered=(*delivered[each.phase],)) for each in passes.values())


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


def reference_from(events: Iterable[JournalEvent], end: TrialEnd, printed: str = "") -> Reference:
    """The reference that a reference job wrote, unless the dataset ended its process before."""
    for event in events:
        if isinstance(event, Reference):
            return event
    ending = describe_exit(end.exitcode) + likely_sender(end.exitcode)
    advice = _AFTER_A_FORK if end.exitcode else _WITHOUT_A_WORD
    if end.exitcode in FROM_OUTSIDE:
        advice = _FROM_OUTSIDE
    readable = "\n".join(sort_for_reader(printed.strip().split("\n")))
    raise UnusableDatasetError(
        f"the process that read the dataset died ({ending}), without faults or workers."
        f" {advice}. It printed:\n"
        f"    {indent_rest(readable) or 'nothing'}"
    )


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
_MOST_FIRINGS = 100
"""Firings of one fault in a timeline: the page lists them, and has many trials."""


def timeline_of(outcome: Outcome, events: Sequence[JournalEvent]) -> tuple[Event, ...]:
    """When passes and faults happened in the trial of *outcome*, and what ended it."""
    began = next((event.began for event in events if isinstance(event, TrialEnded)), None)
    if began is None:  # It is not over.
        return ()
    entries = [*_pass_events(events), *_fault_events(outcome)]
    end = began + outcome.duration
    if outcome.died:
        text = f"the process {describe_end(outcome.end.exitcode)}"
        entries.append(Event(end, LOADER, "exit", text))
    if outcome.timed_out:
        entries.append(Event(end, LOADER, "exit", "the deadline ended the trial"))
    return tuple(
        replace(entry, time=round(entry.time - began, 6), text=shorten(entry.text))
        for entry in sorted(entries, key=lambda entry: entry.time)
    )


def _pass_events(events: Sequence[JournalEvent]) -> Iterator[Event]:
    for event in events:
        match event:
            case PhaseStarted(phase, at) if phase not in (START, DONE):
                yield Event(at, LOADER, "epoch", f"{_phase_name(phase)} starts")
            case PassEnded(at, result):
                for death in result.deaths:
                    yield Event(at, f"worker {death.worker}", "exit", str(death))
                if error := result.exception:
                    yield Event(at, LOADER, "error", error_line(error))
                ending = " with an error" if error else ""
                yield Event(at, LOADER, "epoch", f"{_phase_name(result.phase)} ends{ending}")


def _phase_name(phase: Phase) -> str:
    return f"the {phase}" if phase == RECOVERY else str(phase)


def _fault_events(outcome: Outcome) -> Iterator[Event]:
    """The first firings of each fault. Without workers, the main process acts as worker 0."""
    for facts in outcome.faults:
        timed = [(each.time, each) for each in facts.firings if each.time is not None]
        for at, firing in sorted(timed, key=lambda pair: pair[0])[:_MOST_FIRINGS]:
            process = LOADER if firing.worker is None else f"worker {firing.worker}"
            text = f"{type(facts.fault).__name__}: {firing.call}"
            text += f" of {firing.path}" if firing.path else ""
            text += "" if firing.sample is None else f", sample {firing.sample}"
            yield Event(at, process, "fault", text)
