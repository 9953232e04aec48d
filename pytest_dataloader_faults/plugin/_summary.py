"""How datasets were tried, and what failed checks have in common, at the end of pytest's report."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator

CAUSE = "dataloader_faults_cause"
CHECK = "dataloader_faults_check"
NOTE = "dataloader_faults_note"
_WIDTH = 100


def sections(
    reports: Iterable[object], failed: Iterable[object]
) -> Iterator[tuple[str, Iterable[str]]]:
    """The title and the lines of each section that has something to say."""
    if found := notes(reports):
        yield "dataloader-faults", found
    if causes_of := causes(failed):
        yield "likely causes of failed checks", lines(causes_of)


def notes(reports: Iterable[object]) -> list[str]:
    """Each note once for its test, and not once for each check."""
    found = {
        f"{getattr(report, 'nodeid', '').partition('[')[0]}: {text}"
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == NOTE
    }
    return sorted(found)


def causes(reports: Iterable[object]) -> dict[str, dict[str, list[str]]]:
    """Of failed *reports*: for each test its likely causes, and for each of those the checks."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        told = dict(getattr(report, "user_properties", ()))
        if told.get(CAUSE):
            test = _without(getattr(report, "nodeid", ""), told[CHECK])
            found[test][told[CAUSE]].append(told[CHECK])
    return found


def _without(nodeid: str, check: str) -> str:
    """The id of the test, without the *check* that one of its items asks."""
    name, bracket, parameters = nodeid.partition("[")
    rest = "-".join(filter(None, f"-{parameters[:-1]}-".split(f"-{check}-", 1))).strip("-")
    return f"{name}[{rest}]" if bracket and rest else name


def lines(found: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    """A line for each test, and one for each of its causes, the most frequent first."""
    for test, checks_by_cause in found.items():
        yield test
        for cause, checks in sorted(checks_by_cause.items(), key=lambda item: -len(item[1])):
            count = f"{len(checks)} check{'s' if len(checks) > 1 else ''}"
            told = f"{count}: {cause}: {', '.join(checks)}"
            yield from textwrap.wrap(
                told,
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
