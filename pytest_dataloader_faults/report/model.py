"""The model of a report: runs and items, and groups of items. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, NamedTuple

from pytest_dataloader_faults._arguments import one_of
from pytest_dataloader_faults.battery.checks import WORKERS_AGREE
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import CheckResult, Event, Verdict
from pytest_dataloader_faults.outcomes.text import join_some, pluralize, printable, shorten
from pytest_dataloader_faults.wire import MisfitError, Number, Seconds, from_json

VERSION = 1
"""The version of the JSON format. Reports of other versions are rejected."""

PASSED, FAILED, XFAILED = "passed", "failed", "xfailed"
NOT_APPLICABLE, FLAKY, WARNED = "not_applicable", "flaky", "warned"
NOT_RUN, ERROR = "not_run", "error"
LEFT_OUT = {NOT_APPLICABLE: "not applicable", NOT_RUN: "not run"}
"""The statuses of checks that did not run and did not fail, and how each is displayed."""
STATUSES = (FAILED, ERROR, FLAKY, WARNED, XFAILED, PASSED, NOT_RUN, NOT_APPLICABLE)
"""All statuses, the worst first."""
FAILURES = (FAILED, ERROR)
"""The statuses that fail a run: those of a failed check, and of an error in its test."""
_PASSES = {str(each) for each in Verdict if each.passes}
_SEVERITY = {str(each): each.severity for each in Verdict}
_REMARKS = {ERROR: "error in the test", XFAILED: "expected", WARNED: "warning"}
FLAKY_TRIALS = "1 of 3 trials failed"
_PID = re.compile(r" \(pids? [\d, ]+\)")
NOT_JUDGED = "not judged"
"""The substitute for a missing verdict."""


class Failure(NamedTuple):
    """The identity of a failure in a baseline, and in the reports that are compared.

    If a dataset fails without a fault, *check* is ``workers-agree``, whichever check ran first.
    """

    test: str
    check: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """The result of one check of one dataset; schema.json says what each field contains."""

    nodeid: str
    test: str
    file: str = ""
    line: Number = 1
    check: str
    status: Annotated[str, one_of(STATUSES)]
    verdict: Annotated[str, one_of(map(str, Verdict))] | None
    without_fault: bool = False
    reason: str | None = None
    sentence: str = ""
    explanation: str = ""
    cause: str = ""
    fix: str = ""
    library: str = ""
    samples: str = ""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reproduce: str = ""
    duration: Seconds = 0.0
    trials: tuple[Seconds, ...] = ()
    timeline: tuple[Event, ...] = ()

    @property
    def failure(self) -> Failure:
        """The identity of its failure."""
        return Failure(self.test, WORKERS_AGREE if self.without_fault else self.check)

    @property
    def name(self) -> str:
        """The item as text, on one line; the test if its dataset fails without a fault."""
        return printable(f"{self.test}, without a fault" if self.without_fault else self.nodeid)

    @property
    def word(self) -> str:
        """The verdict or its substitute, and a remark."""
        if self.status in LEFT_OUT:
            return LEFT_OUT[self.status]
        if self.status == FLAKY:
            return f"{FLAKY} ({FLAKY_TRIALS})"
        remark = "expected to fail" if self.is_unexpected else _REMARKS.get(self.status)
        verdict = self.verdict or NOT_JUDGED
        return f"{verdict} ({remark})" if remark else verdict

    @property
    def was_tried(self) -> bool:
        """Whether a trial decided."""
        return bool(self.trials) or self.verdict not in (None, Verdict.NOT_EXERCISED)

    @property
    def could_not_run(self) -> bool:
        """Whether it failed before any trial: in its setup, or because the dataset is unusable."""
        return self.status in FAILURES and not self.was_tried

    @property
    def is_unexpected(self) -> bool:
        """Whether it failed because it passed, although it was expected to fail."""
        return self.status == FAILED and self.verdict in _PASSES

    @property
    def fails_check(self) -> bool:
        """Whether its check failed in a trial, and not only the test around it."""
        return self.status == FAILED and self.was_tried and not self.is_unexpected


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of pytest; not complete if pytest was killed after the report was last written."""

    began: str
    duration: Seconds
    command: str
    seed: int
    is_complete: bool = True

    @property
    def summary(self) -> str:
        """Everything except the command, on one line."""
        early = "" if self.is_complete else ", ended early"
        return f"{self.began}, {self.duration:.1f} s, seed {self.seed}{early}"


class Group(NamedTuple):
    """Failures with the same likely cause and the same fix."""

    cause: str
    fix: str
    items: list[Item]

    @property
    def checks(self) -> str:
        """How many checks fail."""
        return pluralize(len(self.items), "check")

    @property
    def names(self) -> str:
        """The names of the checks."""
        return ", ".join(item.check for item in self.items)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a run of pytest, or of several that were merged."""

    versions: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    items: tuple[Item, ...] = ()

    @cached_property
    def tests(self) -> dict[str, list[Item]]:
        """The items of each test."""
        items_by_test: dict[str, list[Item]] = {}
        for item in self.items:
            items_by_test.setdefault(item.test, []).append(item)
        return items_by_test

    @property
    def failed(self) -> tuple[Item, ...]:
        """The failed items, whether the check or the test around it failed."""
        return tuple(item for item in self.items if item.status in FAILURES)

    @cached_property
    def states(self) -> dict[Failure, Item]:
        """The items by the identity of their failure; the worst if several have the same."""
        worst_last = sorted(self.items, key=lambda item: -STATUSES.index(item.status))
        return {item.failure: item for item in worst_last}

    @property
    def failures(self) -> dict[Failure, Item]:
        """The failed items among them."""
        return {key: item for key, item in self.states.items() if item.status in FAILURES}

    @property
    def headline(self) -> tuple[str, str]:
        """How many checks failed, in how many datasets; the first part should stand out."""
        statuses = [item.status for item in self.items if item.status not in LEFT_OUT]
        run = pluralize(len(statuses), "check")
        datasets = pluralize(len(self.tests), "dataset")
        if self.failed:
            failing = len({item.test for item in self.failed})
            of_run = f"{len(self.failed)} of " if len(self.failed) < len(statuses) else ""
            of_datasets = f"{failing} of " if failing < len(self.tests) else ""
            return f"{of_run}{run} failed", f", in {of_datasets}{datasets}"
        if not statuses:
            return "No check was run", ""
        if set(statuses) == {PASSED}:
            return f"{'All ' if len(statuses) > 1 else ''}{run} passed", f" for {datasets}"
        return "No check failed unexpectedly", f": {run} of {datasets}"

    @property
    def notes(self) -> list[str]:
        """The distinct notes, with their tests unless they are about all tests."""
        tests_by_note: dict[str, dict[str, None]] = {}
        for item in self.items:
            for note in item.notes:
                tests_by_note.setdefault(note, {})[item.test] = None
        return [
            note if len(tests) == len(self.tests) else f"{join_some(tests)}: {note}"
            for note, tests in tests_by_note.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON; see schema.json."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Read a report from *data*, which another program may have written.

        Raises:
            InvalidArgumentError: *data* is not a report.
        """
        if not isinstance(data, Mapping):
            raise MisfitError(data, "an object")
        if (version := data.get("version")) != VERSION:
            raise MisfitError(version, str(VERSION), "version")
        if "items" not in data:
            raise MisfitError(data, "an object with 'items'")
        report: Report = from_json(cls, data)
        places: dict[str, int] = {}
        for place, item in enumerate(report.items):
            if (first := places.setdefault(item.nodeid, place)) != place:
                pair = f"items[{first}] and items[{place}] are both about {shorten(item.name)}"
                raise InvalidArgumentError(f"{pair}. Remove one of them")
        return report


def item_of(result: CheckResult, **facts: Any) -> Item:
    """Convert *result* to an item. *facts*: more fields of the item, or others."""
    outcome = result.outcome
    if not result.applies:
        status = NOT_APPLICABLE
    elif result.failed:
        status = FAILED
    elif not result.reproduced:
        status = FLAKY
    elif result.warns:
        status = WARNED
    else:
        status = XFAILED if result.expected else PASSED
    names = "check sentence explanation cause fix notes reproduce".split()
    fields = {
        **{name: getattr(result, name) for name in names},
        "status": status,
        "verdict": str(result.verdict) if result.applies else None,
        "library": result.finding.library,
        "faults": tuple(map(repr, outcome.schedule)) if outcome else (),
        "trials": tuple(each.duration for each in result.trials),
        "timeline": outcome.timeline if outcome and status != PASSED else (),
        **facts,
    }
    return Item(**fields, reason=result.expected if fields["status"] == XFAILED else None)


def count_failures(items: Iterable[Item]) -> int:
    """Count the failed *items*."""
    return sum(item.status in FAILURES for item in items)


def group_by_cause(items: Iterable[Item]) -> list[Group]:
    """Group the failed *items* by likely cause and fix: the worst and the most frequent first."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if item.status in FAILURES:
            cause = item.cause or without_pids(item.sentence) or item.word
            groups.setdefault((cause, item.fix), []).append(item)
    found = [Group(*key, failures) for key, failures in groups.items()]
    return sorted(found, key=lambda group: (-_severity(group.items), -len(group.items)))


def without_pids(sentence: str) -> str:
    """Remove the process ids from *sentence*, because they differ in each run."""
    return _PID.sub("", sentence)


def _severity(items: Iterable[Item]) -> int:
    """The severity of the worst verdict of *items*."""
    return max(_SEVERITY.get(item.verdict or "", 0) for item in items)


def version_of(distribution: str) -> str:
    """The installed version of *distribution*; "unknown" in a checkout that is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
