"""One report of several. Of an item that is in several, the worst result holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults.outcomes.text import are, counted
from pytest_dataloader_faults.report.model import (
    LEFT_OUT,
    NOT_JUDGED,
    STATUSES,
    Item,
    Report,
)

_SHOWN = 20
"""So many items that differ are listed."""
Key: TypeAlias = tuple[str, int]


class Source(NamedTuple):
    """A report to merge.

    Attributes:
        name: The file that it is from.
        report: The report.
        label: What to put before the ids of its items, so that they are others; "" for nothing.
    """

    name: str
    report: Report
    label: str = ""


class _Found(NamedTuple):
    item: Item
    source: str

    @property
    def result(self) -> str:
        if self.item.status in LEFT_OUT:
            return self.item.status
        return f"{self.item.status} ({self.item.verdict or NOT_JUDGED})"


class _Merged(NamedTuple):
    """A report of several.

    Attributes:
        report: The report.
        sources: How many it was made of.
        repeated: How many items are in several of them.
        differing: The results of each item that has not the same in all of them, the worst first.
    """

    report: Report
    sources: int
    repeated: int
    differing: list[list[_Found]]


def merged(sources: Sequence[Source]) -> _Merged:
    """One report of all items of *sources*, in the order in which they come first."""
    found: dict[Key, list[_Found]] = {}
    for source in sources:
        for key, item in items_of(source):
            found.setdefault(key, []).append(_Found(item, source.name))
    for results in found.values():
        results.sort(key=lambda each: STATUSES.index(each.item.status))
    engines = dict.fromkeys(each.report.engine for each in sources if each.report.engine)
    report = Report(
        engine="; ".join(engines),
        versions=_all_versions(each.report for each in sources),
        runs=tuple(run for each in sources for run in each.report.runs),
        items=tuple(results[0].item for results in found.values()),
    )
    repeated = [results for results in found.values() if len(results) > 1]
    differing = [each for each in repeated if len({one.result for one in each}) > 1]
    return _Merged(report, len(sources), len(repeated), differing)


def items_of(source: Source) -> Iterator[tuple[Key, Item]]:
    """The items, with what tells them apart: one may ask its check twice."""
    often: Counter[str] = Counter()
    prefix = source.label and f"{source.label}: "
    for item in source.report.items:
        labelled = (
            replace(item, nodeid=f"{prefix}{item.nodeid}", test=f"{prefix}{item.test}")
            if prefix
            else item
        )
        often[labelled.nodeid] += 1
        yield (labelled.nodeid, often[labelled.nodeid]), labelled


def told(found: _Merged) -> Iterator[str]:
    """What became of the reports, line by line."""
    items, failed = len(found.report.items), len(found.report.failed)
    differ = len(found.differing)
    repeated = (
        f"; {counted(found.repeated, 'item')} {are(found.repeated)} in several reports"
        if found.repeated
        else ""
    )
    yield f"{counted(found.sources, 'report')}: {counted(items, 'item')}, {failed} failed{repeated}"
    if not differ:
        return
    yield f"{differ} item{'s differ' if differ > 1 else ' differs'}, and the worst result holds:"
    for results in found.differing[:_SHOWN]:
        texts = "; ".join(f"{each.result} in {each.source}" for each in results)
        yield f"  {results[0].item.nodeid}: {texts}"
    if differ > _SHOWN:
        yield f"  ... and {differ - _SHOWN} more"
    example = found.differing[0][0].source
    yield f"To keep both, give reports of one suite labels, as in --label py312={example}"


def _all_versions(reports: Iterable[Report]) -> dict[str, str]:
    """Each version that is in one of *reports*, with a comma between those that differ."""
    found: dict[str, dict[str, None]] = {}
    for report in reports:
        for name, text in report.versions.items():
            found.setdefault(name, {}).update(dict.fromkeys(text.split(", ")))
    return {name: ", ".join(texts) for name, texts in found.items()}
