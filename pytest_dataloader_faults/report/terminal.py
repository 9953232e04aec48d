"""The summary at the end of pytest's output: at most 100 columns, in pytest's own style. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    FAILURES,
    NOT_APPLICABLE,
    NOT_REPRODUCED,
    PASSED,
    XFAILED,
    Item,
    Report,
    by_cause,
    counts,
    notes_of,
)

WIDTH = 100
_GAP = 2
_COLOURS = {PASSED: "green", FAILED: "red", ERROR: "red"}
_DASH = "-"
_NEITHER = {
    ERROR: "failed in the test itself",
    XFAILED: "failed as expected",
    NOT_REPRODUCED: "failed once and then passed",
}

Line = tuple[str, dict[str, bool]]
"""A line, and how pytest marks it up."""


def summary(report: Report, width: int = WIDTH) -> Iterator[Line]:
    """For each test how it went, and what is likely to be wrong, in lines of *width* columns."""
    if report.engine:
        yield report.engine, {}
    for test, items in report.tests.items():
        yield from _about_test(test, items, width)


def _about_test(test: str, items: Sequence[Item], width: int) -> Iterator[Line]:
    is_failed = any(item.status in FAILURES for item in items)
    colour = {"red" if is_failed else "green": True}
    yield from ((line, colour) for line in _wrapped(f"{test}: {_counted(items)}", width, ""))
    for cause, found in by_cause(items).items():
        names = ", ".join(item.check for item in found)
        checks = f"{len(found)} check{'s' if len(found) > 1 else ''}"
        yield from ((line, {}) for line in _wrapped(f"{checks}: {cause}: {names}", width))
        if found[0].reproduce:
            yield f"    {found[0].reproduce}", {}  # To be copied: never wrapped.
    for note in notes_of(items):
        yield from ((line, {}) for line in _wrapped(f"note: {note}", width))


def _counted(items: Sequence[Item]) -> str:
    """How many checks failed, or else passed; the verdicts; what did neither."""
    by_status = Counter(item.status for item in items)
    others = by_status.pop(NOT_APPLICABLE, 0)
    failed, passed, total = by_status[FAILED], by_status[PASSED], by_status.total()
    of_all = f" of {total}" if failed or passed < total else ""
    checks = f"{of_all} check{'' if total == 1 else 's'}"
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts(items).items())
    first = f"{failed}{checks} failed" if failed else f"{passed}{checks} passed"
    told = [f"{first} ({verdicts})" if verdicts else "no check applies"]
    told += [f"{by_status[each]} {words}" for each, words in _NEITHER.items() if by_status[each]]
    told += [f"{others} not applicable"] if others else []
    return f"{', '.join(told)}; {sum(item.duration for item in items):.1f} s"


def table(report: Report, width: int = WIDTH) -> Iterator[list[Line]]:
    """Checks down, tests across: the cells of each row, each with its mark-up.

    Where the tests do not fit into *width* columns, another table follows an empty row.
    """
    checks = list(dict.fromkeys(item.check for item in report.items))
    first = max((len(check) for check in checks), default=0) + _GAP
    for part, tests in enumerate(_side_by_side(report, width - first)):
        if part:
            yield []
        yield [("".ljust(first), {}), *((_head(test, items), {}) for test, items in tests)]
        for check in checks:
            found = [(_of_check(items, check), _width(test, items)) for test, items in tests]
            if any(item for item, _ in found):
                yield [(check.ljust(first), {}), *(_cell(item, room) for item, room in found)]


def slowest(report: Report, most: int) -> Iterator[str]:
    """The *most* trials that took longest; all of them if it is 0."""
    trials = [(seconds, item) for item in report.items for seconds in item.trials]
    trials.sort(key=lambda each: -each[0])
    for seconds, item in trials[: most or None]:
        yield f"{seconds:.2f}s trial    {item.nodeid}"


def _side_by_side(report: Report, room: int) -> Iterator[list[tuple[str, list[Item]]]]:
    row: list[tuple[str, list[Item]]] = []
    for test, items in report.tests.items():
        used = sum(_width(*each) for each in row)
        if row and used + _width(test, items) > room:
            yield row
            row = []
        row.append((test, items))
    if row:
        yield row


def _head(test: str, items: Sequence[Item]) -> str:
    width = _width(test, items)
    name = test.rpartition("::")[2]
    shown = name if len(name) < width else f"{name[: width - _GAP - 1]}…"
    return shown.ljust(width)


_LONGEST_NAME = 30


def _width(test: str, items: Sequence[Item]) -> int:
    longest = max(len(item.word) for item in items)
    return max(longest, min(len(test.rpartition("::")[2]), _LONGEST_NAME)) + _GAP


def _of_check(items: Sequence[Item], check: str) -> Item | None:
    return next((item for item in items if item.check == check), None)


def _cell(item: Item | None, width: int) -> Line:
    if item is None or item.status == NOT_APPLICABLE:
        return _DASH.ljust(width), {}
    return item.word.ljust(width), {_COLOURS.get(item.status, "yellow"): True}


def _wrapped(text: str, width: int, first: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent="    ", break_on_hyphens=False
    )
