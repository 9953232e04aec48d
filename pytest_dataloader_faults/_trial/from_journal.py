"""What the events of a trial describe: its outcome, its timeline, its reference.

Pure, except for the names of libraries, which are those of the distributions installed here.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._engine.protocol import WorkerReports
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
    Batch,
    Crash,
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
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, START
from pytest_dataloader_faults.outcomes.text import (
    crashed_files,
    describe_end,
    describe_exit,
    indent_rest,
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
    delivered: defaultdict[Phase, list[Batch]] = defaultdict(list)
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
    for event in events:
        if isinstance(event, ReferenceTaken):
            return event.reference
    end = next((event for event in events if isinstance(event, TrialEnded)), None)
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
_MOST_FIRINGS = 100
"""Firings of one fault in a timeline: the page lists them, and has many trials."""


def timeline_of(outcome: Outcome, events: Sequence[JournalEvent]) -> tuple[Event, ...]:
    """When passes and faults happened in the trial of *outcome*, and what ended it."""
    began = next((event.began for event in events if isinstance(event, TrialEnded)), None)
    if began is None:  # It is not over.
        return ()
    mains = {event.pid for event in events if isinstance(event, TrialStarted)}
    entries = [
        *_pass_events(events),
        *_fault_events(outcome, mains),
        *_end_events(outcome, began + outcome.duration),
    ]
    return tuple(
        replace(each, time=round(each.time - began, 6), text=shorten(each.text))
        for each in sorted(entries, key=lambda entry: entry.time)
    )


def _pass_events(events: Sequence[JournalEvent]) -> Iterator[Event]:
    for event in events:
        match event:
            case PhaseStarted(phase, at) if phase not in (START, DONE):
                yield Event(at, _LOADER, "epoch", f"{_phase_name(phase)} starts")
            case PassEnded(at, result):
                for death in result.deaths:
                    yield Event(at, f"worker {death.worker}", "exit", str(death))
                if error := result.exception:
                    yield Event(at, _LOADER, "error", error_line(error))
                ending = " with an error" if error else ""
                yield Event(at, _LOADER, "epoch", f"{_phase_name(result.phase)} ends{ending}")


def _fault_events(outcome: Outcome, mains: Collection[int]) -> Iterator[Event]:
    """The first firings of each fault. Without workers, the main process acts as worker 0."""
    for facts in outcome.faults:
        firings = [(each.time, each) for each in facts.firings if each.time is not None]
        for at, firing in sorted(firings, key=lambda pair: pair[0])[:_MOST_FIRINGS]:
            is_main = firing.worker is None or firing.pid in mains
            process = _LOADER if is_main else f"worker {firing.worker}"
            yield Event(at, process, "fault", _occurrence(facts, firing))


def _end_events(outcome: Outcome, end: float) -> Iterator[Event]:
    if outcome.died:
        yield Event(end, _LOADER, "exit", f"the process {describe_end(outcome.end.exitcode)}")
    if outcome.timed_out:
        yield Event(end, _LOADER, "exit", "the deadline ended the trial")


def _phase_name(phase: Phase) -> str:
    return f"the {phase}" if phase == RECOVERY else str(phase)


def _occurrence(facts: FaultFacts, firing: Firing) -> str:
    where = f" of {firing.path}" if firing.path else ""
    sample = "" if firing.sample is None else f", sample {firing.sample}"
    return f"{type(facts.fault).__name__}: {firing.call}{where}{sample}"
