"""The command that makes one report of several. Of an item in several, the worst result holds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import are, counted, printable
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    LEFT_OUT,
    NOT_APPLICABLE,
    NOT_ASKED,
    NOT_JUDGED,
    NOT_REPRODUCED,
    PASSED,
    XFAILED,
    Item,
    Report,
)

_WORST_FIRST = (FAILED, ERROR, NOT_REPRODUCED, XFAILED, PASSED, NOT_ASKED, NOT_APPLICABLE)
_SHOWN = 20
"""So many items that differ are listed."""
_Key: TypeAlias = tuple[str, int]


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
    found: dict[_Key, list[_Found]] = {}
    for source in sources:
        for key, item in _items_of(source):
            found.setdefault(key, []).append(_Found(item, source.name))
    for results in found.values():
        results.sort(key=lambda each: _WORST_FIRST.index(each.item.status))
    engines = dict.fromkeys(each.report.engine for each in sources if each.report.engine)
    report = Report(
        engine="; ".join(engines),
        versions=_all_versions(each.report for each in sources),
        items=tuple(results[0].item for results in found.values()),
    )
    repeated = [results for results in found.values() if len(results) > 1]
    differing = [each for each in repeated if len({one.result for one in each}) > 1]
    return _Merged(report, len(sources), len(repeated), differing)


def _items_of(source: Source) -> Iterator[tuple[_Key, Item]]:
    """The items, with what tells them apart: one may ask its check twice."""
    often: Counter[str] = Counter()
    prefix = source.label and f"{source.label}: "
    for item in source.report.items:
        labelled = replace(item, nodeid=f"{prefix}{item.nodeid}", test=f"{prefix}{item.test}")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="pytest-dataloader-faults",
        description="Work with reports of pytest-dataloader-faults.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merge = _add_merge(commands)
    given = parser.parse_args(arguments)
    if not (asked := [*given.reports, *given.label]):
        merge.error("give a report, or several, as REPORT.json or by --label")
    try:
        return _merge(asked, given.output)
    except (InvalidArgumentError, OSError) as error:
        print(f"pytest-dataloader-faults: {error}", file=sys.stderr)  # noqa: T201  # a command
        return 2


def _add_merge(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Declare the command ``merge`` and its arguments."""
    merge = commands.add_parser(
        "merge",
        help="make one report of several, such as the shards of a CI job",
        description="Make one report of several. Where an item is in several, the worst result"
        " holds, and the output says so. The exit status is 0 once the report is written, whatever"
        " is in it, and 2 otherwise.",
    )
    merge.add_argument(
        "reports",
        nargs="*",
        type=_unlabelled,
        default=[],
        metavar="REPORT.json",
        help="reports in JSON",
    )
    merge.add_argument(
        "--label",
        action="append",
        type=_labelled,
        default=[],
        metavar="NAME=REPORT.json",
        help="a report whose items get this name before their id, such as that of one job of a"
        " matrix, so that they are not compared with those of another name; may be given"
        " several times",
    )
    merge.add_argument(
        "-o",
        "--output",
        required=True,
        action="append",
        metavar="PATH",
        help=f"where to write, in the form of the ending: {', '.join(files.RENDERERS)}",
    )
    return merge


def _unlabelled(path: str) -> tuple[str, str]:
    return "", path


def _labelled(text: str) -> tuple[str, str]:
    label, _, path = text.partition("=")
    if not (label and path):
        message = f"{text!r} must be NAME=REPORT.json, such as py312=a.json"
        raise argparse.ArgumentTypeError(message)
    return label, path


def _merge(asked: Sequence[tuple[str, str]], outputs: Sequence[str]) -> int:
    """Merge the reports *asked* for, each a label and a path, into *outputs*; the exit status."""
    paths = [files.require_known(path) for path in outputs]
    found = merged([Source(path, files.read(path), label) for label, path in asked])
    for path in paths:
        files.write(found.report, path)
    for line in told(found):
        print(printable(line))  # noqa: T201  # a command
    return 0
