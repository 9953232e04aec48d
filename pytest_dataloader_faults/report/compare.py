"""Merge reports, and find what has changed between two reports of a suite. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize
from pytest_dataloader_faults.report.model import (
    FAILURES,
    LEFT_OUT,
    NOT_RUN,
    PASSED,
    STATUSES,
    Item,
    Report,
)

NEW, OTHER_VERDICT = "newly failing", "with a different verdict"
FIXED, NOT_FIXED = "fixed", "neither failing nor fixed"
"""The kinds of changes."""
_REPEATED = (
    "; {} {} in several reports, and the worst result wins. To keep all results, label the"
    " reports, as in py312=REPORT.json"
)


class ReportComparison(NamedTuple):
    """A newer report compared with an older one.

    Attributes:
        old, new: How many failures there are in each.
        changes: A line for each change, by kind.
        has_common_test: Whether there is a test in both reports.
    """

    old: int
    new: int
    changes: dict[str, list[str]]
    has_common_test: bool

    @property
    def is_worse(self) -> bool:
        """Whether something fails that did not fail before."""
        return bool(self.changes[NEW])

    def lines(self) -> Iterator[str]:
        """The comparison as text."""
        if not self.has_common_test:
            yield "warning: the reports have no test in common. Pass reports of one suite"
        counts = [f"{len(found)} {kind}" for kind, found in self.changes.items() if found]
        changed = ", ".join(counts) or "nothing changed"
        yield f"failures: {self.old} before, {self.new} now ({changed})"
        for kind, found in self.changes.items():
            if found:
                yield f"{kind}:"
                yield from (f"  {line}" for line in sorted(found))


def compare_reports(old: Report, new: Report) -> ReportComparison:
    """Compare the failures of *new* with those of *old*."""
    failed, failing = (
        {key: item for key, item in report.states.items() if item.status in FAILURES}
        for report in (old, new)
    )
    changes: dict[str, list[str]] = {kind: [] for kind in (NEW, FIXED, NOT_FIXED, OTHER_VERDICT)}
    for key, now in failing.items():
        if key not in failed:
            changes[NEW].append(f"{now.name}: {now.word}: {now.sentence}")
        elif (before := failed[key]).word != now.word:
            change = f"{before.word} before, {now.word} now"
            changes[OTHER_VERDICT].append(f"{now.name}: {change}: {now.sentence}")
    for key in failed.keys() - failing.keys():
        state, before = new.states.get(key), failed[key]
        kind = FIXED if state and state.status == PASSED else NOT_FIXED
        word = state.word if state else LEFT_OUT[NOT_RUN]
        changes[kind].append(f"{before.name}: {before.word} before, {word} now")
    has_common_test = bool(old.tests.keys() & new.tests.keys())
    return ReportComparison(len(failed), len(failing), changes, has_common_test)


def add_label(report: Report, label: str) -> Report:
    """Put *label* before the ids in *report*, so that other reports have different items."""
    items = (
        replace(item, nodeid=f"{label}: {item.nodeid}", test=f"{label}: {item.test}")
        for item in report.items
    )
    return replace(report, items=tuple(items))


def merge_reports(reports: Sequence[Report]) -> tuple[Report, str]:
    """Merge *reports*; return the report, and a summary of the merge."""
    items_by_id: dict[str, list[Item]] = {}
    for report in reports:
        for item in report.items:
            items_by_id.setdefault(item.nodeid, []).append(item)
    merged = Report(
        versions=_all_versions(reports),
        runs=tuple(run for each in reports for run in each.runs),
        items=tuple(
            min(items, key=lambda item: STATUSES.index(item.status))
            for items in items_by_id.values()
        ),
    )
    counts = f"{pluralize(len(reports), 'report')}: {pluralize(len(merged.items), 'item')}"
    repeated = sum(len(items) > 1 for items in items_by_id.values())
    again = _REPEATED.format(pluralize(repeated, "item"), is_or_are(repeated)) if repeated else ""
    return merged, f"{counts}, {len(merged.failed)} failed{again}"


def _all_versions(reports: Iterable[Report]) -> dict[str, str]:
    """Return the versions in *reports* by name, separated by commas if they differ."""
    versions: dict[str, dict[str, None]] = {}
    for report in reports:
        for name, text in report.versions.items():
            versions.setdefault(name, {}).update(dict.fromkeys(text.split(", ")))
    return {name: ", ".join(texts) for name, texts in versions.items()}
