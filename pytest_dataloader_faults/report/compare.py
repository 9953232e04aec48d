"""Merge reports, and find what has changed between two reports of a suite. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize
from pytest_dataloader_faults.report.model import (
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


def find_changes(old: Report, new: Report) -> dict[str, list[str]]:
    """Compare the failures of *new* with those of *old*: a line for each change, by kind."""
    failed, failing = old.failures, new.failures
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
    return {kind: sorted(lines) for kind, lines in changes.items() if lines}


def compare_reports(old: Report, new: Report) -> Iterator[str]:
    """Yield the lines of a comparison of *new* with *old*."""
    if not old.tests.keys() & new.tests.keys():
        yield "warning: the reports have no test in common. Pass reports of one suite"
    changes = find_changes(old, new)
    counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in changes.items())
    before, now = len(old.failures), len(new.failures)
    yield f"failures: {before} before, {now} now ({counts or 'nothing changed'})"
    for kind, lines in changes.items():
        yield f"{kind}:"
        yield from (f"  {line}" for line in lines)


def add_label(report: Report, label: str) -> Report:
    """Put *label* before the ids in *report*, so that other reports have different items."""
    items = (
        replace(item, nodeid=f"{label}: {item.nodeid}", test=f"{label}: {item.test}")
        for item in report.items
    )
    return replace(report, items=tuple(items))


def merge_reports(reports: Sequence[Report]) -> tuple[Report, str]:
    """Merge *reports*; return the report, and a summary of the merge."""
    items: dict[str, Item] = {}
    repeated: set[str] = set()
    versions: dict[str, dict[str, None]] = {}
    for report in reports:
        repeated |= items.keys() & {item.nodeid for item in report.items}
        for item in report.items:
            both = (items.get(item.nodeid, item), item)
            items[item.nodeid] = min(both, key=lambda each: STATUSES.index(each.status))
        for name, text in report.versions.items():
            versions.setdefault(name, {}).update(dict.fromkeys(text.split(", ")))
    merged = Report(
        versions={name: ", ".join(texts) for name, texts in versions.items()},
        runs=tuple(run for each in reports for run in each.runs),
        items=tuple(items.values()),
    )
    counts = f"{pluralize(len(reports), 'report')}: {pluralize(len(items), 'item')}"
    twice = pluralize(len(repeated), "item"), is_or_are(len(repeated))
    again = _REPEATED.format(*twice) if repeated else ""
    return merged, f"{counts}, {len(merged.failed)} failed{again}"
