"""What failed checks have in common, at the end of pytest's report."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator

CAUSE = "dataloader_faults_cause"
CHECK = "dataloader_faults_check"
_WIDTH = 100


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
