"""Merge reports. If several contain the same item, the worst result wins. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize
from pytest_dataloader_faults.report.model import (
    LEFT_OUT,
    NOT_JUDGED,
    STATUSES,
    Item,
    Report,
)

_SHOWN = 20
"""Up to this many items that differ are listed."""
_Source: TypeAlias = tuple[str, Item]
"""The name of a report, and an item in it."""


def add_label(report: Report, label: str) -> Report:
    """Put *label* before the ids in *report*, so that other reports have different items."""
    items = (
        replace(item, nodeid=f"{label}: {item.nodeid}", test=f"{label}: {item.test}")
        for item in report.items
    )
    return replace(report, items=tuple(items))


def merge_reports(sources: Sequence[tuple[str, Report]]) -> tuple[Report, list[str]]:
    """Merge *sources*, each with its file; return the report, and a summary of the merge."""
    reports = [report for _, report in sources]
    results_by_key: dict[str, list[_Source]] = {}
    for name, report in sources:
        for item in report.items:
            results_by_key.setdefault(item.nodeid, []).append((name, item))
    for results in results_by_key.values():
        results.sort(key=lambda result: STATUSES.index(result[1].status))
    merged = Report(
        versions=_all_versions(reports),
        runs=tuple(run for each in reports for run in each.runs),
        items=tuple(results[0][1] for results in results_by_key.values()),
    )
    repeated = [results for results in results_by_key.values() if len(results) > 1]
    headline = f"{pluralize(len(sources), 'report')}: {pluralize(len(merged.items), 'item')}"
    count = len(repeated)
    again = f"; {pluralize(count, 'item')} {is_or_are(count)} in several reports" if count else ""
    return merged, [
        f"{headline}, {len(merged.failed)} failed{again}",
        *_describe_differences(repeated),
    ]


def _describe_differences(repeated: Sequence[Sequence[_Source]]) -> Iterator[str]:
    """Describe the items whose results differ between the reports, the worst result first."""
    differing = [each for each in repeated if len({_result(item) for _, item in each}) > 1]
    if not differing:
        return
    count, verb = len(differing), "differ" if len(differing) > 1 else "differs"
    yield f"{pluralize(count, 'item')} {verb} between the reports; the worst result wins:"
    for results in differing[:_SHOWN]:
        texts = "; ".join(f"{_result(item)} in {name}" for name, item in results)
        yield f"  {results[0][1].nodeid}: {texts}"
    if count > _SHOWN:
        yield f"  ... and {count - _SHOWN} more"
    yield f"To keep all results, label the reports, as in --label py312={differing[0][0][0]}"


def _result(item: Item) -> str:
    if item.status in LEFT_OUT:
        return item.status
    return f"{item.status} ({item.verdict or NOT_JUDGED})"


def _all_versions(reports: Iterable[Report]) -> dict[str, str]:
    """Return the versions in *reports* by name, separated by commas if they differ."""
    versions: dict[str, dict[str, None]] = {}
    for report in reports:
        for name, text in report.versions.items():
            versions.setdefault(name, {}).update(dict.fromkeys(text.split(", ")))
    return {name: ", ".join(texts) for name, texts in versions.items()}
