"""Merge reports. If several contain the same item, the worst result wins. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize
from pytest_dataloader_faults.report.model import STATUSES, Item, Report

_REPEATED = (
    "; {} {} in several reports, and the worst result wins. To keep all results, label the"
    " reports, as in --label py312=REPORT.json"
)


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
