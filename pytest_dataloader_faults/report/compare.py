"""The failures of a report, and the changes since an older report of the same suite. Pure.

A baseline is a report reduced to its failures, so either of the two can be a baseline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults.outcomes import Verdict
from pytest_dataloader_faults.outcomes.text import shorten
from pytest_dataloader_faults.report.model import (
    FAILED,
    FAILURES,
    FLAKY,
    NOT_APPLICABLE,
    NOT_JUDGED,
    NOT_RUN,
    PASSED,
    STATUSES,
    VERSION,
    WARNED,
    XFAILED,
    Item,
    Report,
)

NEW, FIXED, NOT_FIXED = "newly failing", "fixed", "neither failing nor fixed"
OTHER_VERDICT, KNOWN, SLOWER = "with a different verdict", "known", "slower"
"""The kinds of changes."""
_WORKERS_AGREE = "workers-agree"
"""The check for which a baseline lists a dataset that fails without a fault."""
_TIMES, _SECONDS = 1.5, 1.0
"""A test is slower if it takes this many times as long, and this many seconds more."""
_Pair: TypeAlias = tuple[Item | None, Item | None]


def failures_of(report: Report) -> dict[str, Item]:
    """Return the failed items of *report*, by the key of their failure."""
    return {item.failure_key: item for item in report.failed}


def baseline_of(report: Report) -> Report:
    """Return the failed checks of *report*, sorted, each with a reason, which may be empty."""
    entries = {item.failure_key: _entry(item) for item in report.items if item.fails_check}
    return Report(items=tuple(entries[key] for key in sorted(entries)))


def _entry(item: Item) -> Item:
    """Reduce *item* to what is the same in each run, whichever item of its test ran first."""
    return Item(
        nodeid=item.failure_key,
        test=item.test,
        check=_WORKERS_AGREE if item.without_fault else item.check,
        status=FAILED,
        verdict=item.verdict,
        without_fault=item.without_fault,
        reason=(item.reason or "").strip(),
    )


def baseline_json(report: Report) -> str:
    """Return the baseline of *report* as JSON, without fields that have their default."""
    defaults = {each.name: each.default for each in fields(Item)}
    items = [
        {name: value for name, value in asdict(item).items() if value != defaults[name]}
        for item in baseline_of(report).items
    ]
    return json.dumps({"version": VERSION, "items": items}, indent=2, ensure_ascii=False) + "\n"


def compare_failures(old: Report, new: Report) -> dict[str, list[_Pair]]:
    """Return the states of each failure in *old* and *new*, by the kind of change."""
    old = _with_known_failures(old, new)
    failed, failing, states = failures_of(old), failures_of(new), _states_of(new)
    changes: dict[str, list[_Pair]] = {
        NEW: [(None, item) for key, item in failing.items() if key not in failed]
    }
    changes |= {title: [] for title in (FIXED, NOT_FIXED, OTHER_VERDICT, KNOWN)}
    for failure in failed.values():
        now = _counterpart(failure, states, new)
        changes[change_of(failure, now)].append((failure, now))
    return changes


def _with_known_failures(old: Report, new: Report) -> Report:
    """Return *old*; if *new* is a baseline, with expected failures as failures, as *new* has them.

    A baseline has no runs.
    """
    if new.runs:
        return old
    items = (
        replace(item, status=FAILED) if item.status == XFAILED and item.fails_check else item
        for item in old.items
    )
    return replace(old, items=tuple(items))


def change_of(failure: Item | None, now: Item | None) -> str:
    """Return the kind of change from *failure* to its state *now*. One of them may be unknown."""
    if now is not None and now.status in FAILURES:
        if failure is None:
            return NEW
        return KNOWN if now.word == failure.word else OTHER_VERDICT
    if failure is None or now is None:
        return NOT_FIXED
    is_entry = failure.reason is not None
    if is_entry and now.status == XFAILED and now.verdict == failure.verdict:
        return KNOWN
    return FIXED if now.status == PASSED else NOT_FIXED


def _states_of(report: Report) -> dict[str, Item]:
    """Return the items of *report* by the key of their failure; the worst item if several share it.

    An item whose dataset failed without a fault has not run its own check.
    """
    states: dict[str, Item] = {}
    for item in sorted(report.items, key=lambda item: -STATUSES.index(item.status)):
        if item.without_fault:
            states[item.nodeid] = replace(item, status=NOT_RUN)
        states[item.failure_key] = item
    return states


def _counterpart(failure: Item, states: Mapping[str, Item], report: Report) -> Item | None:
    """Return the item of *report*, with *states*, that shows the state of *failure* now, if any."""
    if failure.failure_key in states or not failure.without_fault:
        return states.get(failure.failure_key)
    siblings = report.tests.get(failure.test, ())
    if any(item.trials for item in siblings):  # A check ran, so the fault-free run passed.
        return replace(failure, status=PASSED, verdict=str(Verdict.SURVIVED))
    return siblings[0] if siblings else None


class Change(NamedTuple):
    """One line of a comparison: an item or a test, and its change."""

    name: str
    what: str


class ReportComparison(NamedTuple):
    """A newer report compared with an older one.

    Attributes:
        old, new: How many failures there are in each.
        sections: What changed, by a title.
        is_worse: Whether something failed that had not.
        warning: Why the reports cannot be compared; "" if they can.
    """

    old: int
    new: int
    sections: Mapping[str, Sequence[Change]]
    is_worse: bool
    warning: str = ""

    @property
    def headline(self) -> str:
        """The counts on one line."""
        parts = [f"{len(changes)} {title}" for title, changes in self.sections.items() if changes]
        changes = ", ".join(parts) or "nothing changed"
        return f"failures: {self.old} before, {self.new} now ({changes})"


def compare_reports(old: Report, new: Report) -> ReportComparison:
    """Compare *new* with *old*."""
    changes = compare_failures(old, new)
    sections = {
        title: [Change(_name_of(pair), _describe_change(*pair)) for pair in pairs]
        for title, pairs in changes.items()
        if title != KNOWN
    }
    sections[SLOWER] = list(_slower_tests(old, new))
    count = sum(len(changes[title]) for title in (NEW, OTHER_VERDICT, KNOWN))
    is_worse, warning = bool(changes[NEW]), _warning(old, new)
    before = len(failures_of(_with_known_failures(old, new)))
    return ReportComparison(before, count, sections, is_worse, warning)


def _warning(old: Report, new: Report) -> str:
    """Explain why *old* and *new* cannot be compared; "" if they have tests in common."""
    if old.tests.keys() & new.tests.keys():
        return ""
    for report, name in ((old, "older"), (new, "newer")):
        if not report.tests:  # A baseline, which has no runs, may be empty.
            is_run = bool(report.runs)
            return f"the {name} report has no tests, so nothing can be compared" if is_run else ""
    examples = ", ".join(shorten(next(iter(report.tests))) for report in (old, new))
    return (
        "the reports have no test in common, so every failure counts as new (their first tests:"
        f" {examples}). Pass reports of one suite, from runs in the same folder"
    )


_STATES = {
    PASSED: "fixed: now {verdict}",
    XFAILED: "expected: still {verdict}, and marked as an expected failure",
    FLAKY: "flaky: {verdict} in 1 of 3 trials",
    WARNED: "warning: still {verdict}, because of a library",
    NOT_APPLICABLE: "not run: the check does not apply now",
    NOT_RUN: "not run: the dataset could not be tested; see the error of its test",
}
"""Descriptions of an item that failed before, by its status now."""


def _name_of(pair: _Pair) -> str:
    return next(item.name for item in pair if item is not None)


def _describe_change(failure: Item | None, now: Item | None) -> str:
    """Describe the change from *failure* to its state *now*."""
    if now is None:
        return "removed: not in the newer report"
    if now.status not in FAILURES:
        return _STATES[now.status].format(verdict=now.verdict or NOT_JUDGED)
    word = now.word if failure is None else f"{failure.word} before, {now.word} now"
    return f"{word}: {now.sentence}" if now.sentence else word


def _slower_tests(old: Report, new: Report) -> Iterator[Change]:
    for test, items in new.tests.items():
        old_seconds = sum(item.duration for item in old.tests.get(test, ()))
        new_seconds = sum(item.duration for item in items)
        if old_seconds and new_seconds > max(old_seconds * _TIMES, old_seconds + _SECONDS):
            yield Change(test, f"{old_seconds:.1f} s before, {new_seconds:.1f} s now")


def lines(comparison: ReportComparison) -> Iterator[str]:
    """Format *comparison* for a terminal."""
    if comparison.warning:
        yield f"warning: {comparison.warning}"
    yield comparison.headline
    for title, changes in comparison.sections.items():
        if changes:
            yield f"{title}:"
            yield from (f"  {name}: {change}" for name, change in changes)
