"""The model of a report: a run, its items, and what several of them have in common. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from pytest_dataloader_faults._arguments import ints, one_of
from pytest_dataloader_faults.outcomes import CheckResult, Event, Verdict
from pytest_dataloader_faults.outcomes.plain import (
    Count,
    MisfitError,
    ProcessName,
    Seconds,
    from_json,
)
from pytest_dataloader_faults.outcomes.text import listed

VERSION = 1
"""Of the JSON form. A report of another one is refused."""

PASSED, FAILED, XFAILED = "passed", "failed", "xfailed"
NOT_APPLICABLE, NOT_REPRODUCED = "not_applicable", "not_reproduced"
NOT_ASKED, ERROR = "not_asked", "error"
LEFT_OUT = {NOT_APPLICABLE: "not applicable", NOT_ASKED: "not asked"}
"""The statuses of checks that did not run and did not fail, and the word for each."""
STATUSES = (FAILED, ERROR, NOT_REPRODUCED, XFAILED, PASSED, NOT_ASKED, NOT_APPLICABLE)
"""All of them, the worst first."""
FAILURES = (FAILED, ERROR)
"""What makes a run fail: a check, or the test around it."""
_HARM = "corrupted crashed poisoned hung leaked broken failed_unclearly".split()
"""Verdicts of failures, from the worst: training goes on with wrong samples, or it ends."""
_PASSES = (str(Verdict.SURVIVED), str(Verdict.FAILED_CLEANLY))
_ADDED = {ERROR: "test failed", XFAILED: "expected", NOT_REPRODUCED: "not reproduced"}
_PID = re.compile(r" \(pids? [\d, ]+\)")
NOT_JUDGED = "not judged"
"""In place of a verdict where there is none."""
Number: TypeAlias = Annotated[int, ints(1, (1 << 63) - 1)]


@dataclass(frozen=True)
class Usage:
    """What one process of a loader had after an epoch.

    Attributes:
        epoch: The epoch, from 1.
        process: ``"loader"``, or ``"worker 0"``, ...
        descriptors, threads: How many.
        memory: Bytes of anonymous memory.
    """

    epoch: Number
    process: ProcessName
    descriptors: Count
    memory: Count
    threads: Count


@dataclass(frozen=True, kw_only=True)
class Item:
    """What one check found about one dataset.

    Attributes:
        nodeid: The id of pytest's item.
        test: The same without the check: all items of one test have it.
        file, line: Where the test is, the line from 1.
        check: The name of the check.
        status: ``passed``, ``failed``, ``xfailed`` (it failed, as ``expected_failures`` or a mark
            says), ``not_applicable``, ``not_asked`` (another item says why nothing can be tried),
            ``not_reproduced``, or ``error`` (the check did not fail, and the test around it did).
        verdict: As in ``CheckResult``; None if the check does not apply, or was never asked.
        sentence: What was found, without the verdict.
        explanation: That, the evidence, and how to reproduce it.
        cause: What the dataset is likely to do wrong; "" if it passed.
        fix: What to do about that, in one sentence; "" if that is not known.
        notes: What to know about the dataset.
        faults: The faults of the trial that decided, as source code.
        engine: The one that ran it; "" if nothing was run.
        reproduce: A command, or a call, that repeats it.
        duration: Seconds that the item took.
        trials: Seconds that each of its trials took.
        timeline: What happened when in the trial that decided; empty if it passed.
        omitted_events: How many events were left out from the middle of that.
        usage: What each process of that trial had after each epoch, if that was measured, and it
            did not pass.
    """

    nodeid: str
    test: str
    file: str
    line: Number
    check: str
    status: Annotated[str, one_of(STATUSES)]
    verdict: Annotated[str, one_of(map(str, Verdict))] | None
    sentence: str
    explanation: str
    cause: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    engine: Annotated[str, one_of(("", "kernel", "python"))] = ""
    reproduce: str = ""
    duration: Seconds = 0.0
    trials: tuple[Seconds, ...] = ()
    timeline: tuple[Event, ...] = ()
    omitted_events: Count = 0
    usage: tuple[Usage, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict, or what stands for it, and behind it what else there is to say."""
        if self.status in LEFT_OUT:
            return (LEFT_OUT[self.status],)
        added = "expected to fail" if self.is_unexpected else _ADDED.get(self.status, "")
        return tuple(filter(None, (self.verdict or NOT_JUDGED, added)))

    @property
    def word(self) -> str:
        """The same as one text."""
        first, *others = self.words
        return first + "".join(f" ({each})" for each in others)

    @property
    def could_not_run(self) -> bool:
        """Whether it failed before any trial: in its set-up, or since the dataset is of no use."""
        is_untried = not self.engine and self.verdict in (None, Verdict.NOT_EXERCISED)
        return self.status in FAILURES and is_untried

    @property
    def is_unexpected(self) -> bool:
        """Whether it failed since it passed, although it was expected to fail."""
        return self.status == FAILED and self.verdict in _PASSES

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Item:
        """The item of plain data; what only another version of this plugin knows is left out."""
        item: Item = from_json(cls, data, ignore_unknown=True)
        return item


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of pytest.

    Attributes:
        began: When it began, by ISO 8601, in UTC.
        duration: Seconds that it took.
        command: The command, as a shell reads it.
        seed: Of the trials that had no seed of their own.
        commit: Of git, in the folder where pytest ran; "" if there is none.
    """

    began: str
    duration: Seconds
    command: str
    seed: int
    commit: str = ""

    @property
    def told(self) -> str:
        """All of it but the command."""
        commit = f", commit {self.commit[:_COMMIT]}" if self.commit else ""
        return f"{self.began}, {self.duration:.1f} s, seed {self.seed}{commit}"


_COMMIT = 12
"""So many digits of a commit are shown."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run of pytest, or several that were merged.

    Attributes:
        engine: Which engine ran, and why it is not the kernel's.
        versions: Of Python, torch, this plugin and the system, by name.
        runs: The runs, in the order of the reports that were merged.
        items: The checks, test by test, in the order of the battery.
    """

    engine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    items: tuple[Item, ...] = ()

    @cached_property
    def tests(self) -> dict[str, list[Item]]:
        """The items of each test."""
        found: dict[str, list[Item]] = {}
        for item in self.items:
            found.setdefault(item.test, []).append(item)
        return found

    @property
    def failed(self) -> tuple[Item, ...]:
        """The items that failed, by their check or outside of it."""
        return tuple(item for item in self.items if item.status in FAILURES)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON; see schema.json."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that ``to_dict`` made *data* from."""
        if not isinstance(data, Mapping):
            raise MisfitError(data, "an object")
        if (version := data.get("version")) != VERSION:
            raise MisfitError(version, str(VERSION), "version")
        for name in ("engine", "versions", "items"):
            if name not in data:
                raise MisfitError(data, f"an object with {name!r}")
        report: Report = from_json(cls, data, ignore_unknown=True)
        return report


def item_of(
    result: CheckResult,
    *,
    nodeid: str,
    test: str,
    where: tuple[str, int],
    duration: float,
    status: str = "",
) -> Item:
    """The item for *result*. *where*: the file, and the line from 1.

    *status*: as in ``Item``, where it is another one than *result* says.
    """
    outcome = result.outcome
    status = status or _status_of(result)
    return Item(
        nodeid=nodeid,
        test=test,
        file=where[0],
        line=where[1],
        check=result.check,
        status=status,
        verdict=str(result.verdict) if result.applies else None,
        sentence=result.sentence,
        explanation=result.explanation,
        cause=result.cause,
        fix=result.fix,
        notes=result.notes,
        faults=tuple(map(repr, outcome.schedule)) if outcome else (),
        engine=outcome.engine if outcome else "",
        reproduce=result.reproduce,
        duration=round(duration, 3),
        trials=tuple(each.duration for each in result.trials),
        **({} if status == PASSED else _course(result)),
    )


def _course(result: CheckResult) -> dict[str, Any]:
    """The course of the trial that decided."""
    outcome = result.outcome
    if outcome is None:
        return {}
    names = [each.name for each in fields(Usage)]
    usage = (Usage(*(getattr(each, name) for name in names)) for each in outcome.footprints)
    return {
        "timeline": outcome.timeline,
        "omitted_events": outcome.omitted_events,
        "usage": tuple(usage),
    }


def _status_of(result: CheckResult) -> str:
    """What pytest makes of *result*."""
    if not result.applies:
        return NOT_APPLICABLE
    if result.failed:
        return FAILED
    if not result.reproduced:
        return NOT_REPRODUCED
    return XFAILED if result.expected else PASSED


def place_and_name(test: str) -> tuple[str, str]:
    """The file and the class of the id *test*, and its name; "::" may be in its parameters."""
    name, bracket, parameters = test.partition("[")
    place, _, name = name.rpartition("::")
    return place, f"{name}{bracket}{parameters}"


def counts(items: Iterable[Item]) -> dict[str, int]:
    """How many of *items* have each verdict, the most frequent first, but for those left out."""
    kept = (item for item in items if item.status not in LEFT_OUT)
    found = Counter(item.verdict or NOT_JUDGED for item in kept)
    return dict(found.most_common())


def by_cause(items: Iterable[Item]) -> dict[str, list[Item]]:
    """The failed ones of *items* by likely cause: by the harm it does, and how often it does it."""
    found: dict[str, list[Item]] = {}
    for item in items:
        if item.status in FAILURES:
            found.setdefault(item.cause or in_common(item.sentence), []).append(item)
    return dict(sorted(found.items(), key=lambda each: (_harm(each[1]), -len(each[1]))))


def in_common(sentence: str) -> str:
    """*sentence* without the ids of processes, which differ where all else is the same."""
    return _PID.sub("", sentence)


def _harm(items: Iterable[Item]) -> int:
    """The place of the worst verdict of *items* among all, from 0."""
    ranks = {verdict: rank for rank, verdict in enumerate(_HARM)}
    return min(ranks.get(item.verdict or "", len(_HARM)) for item in items)


def by_reason(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Those of *items* that do not apply although the dataset has what they are about, by why."""
    found: dict[str, list[Item]] = {}
    for item in items:
        if item.status == NOT_APPLICABLE and item.cause:
            found.setdefault(item.cause, []).append(item)
    return found


def notes_of(items: Iterable[Item]) -> list[str]:
    """Each note of *items* once."""
    return list(dict.fromkeys(note for item in items for note in item.notes))


def named_notes_of(items: Sequence[Item]) -> list[str]:
    """Each note of *items* once, with the tests that it is about where there are others."""
    found: dict[str, dict[str, None]] = {}
    for item in items:
        for note in item.notes:
            found.setdefault(note, {})[item.test] = None
    every = len({item.test for item in items})
    return [
        note if len(tests) == every else f"{listed(tests)}: {note}" for note, tests in found.items()
    ]
