"""The summary at the end of pytest's output: at most 100 columns, in pytest's own style. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_dataloader_faults.outcomes.text import counted
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    FAILURES,
    LEFT_OUT,
    NOT_ASKED,
    NOT_REPRODUCED,
    PASSED,
    XFAILED,
    Item,
    Report,
    by_cause,
    by_reason,
    counts,
    in_common,
    notes_of,
    place_and_name,
)

WIDTH = 100
_GAP = 2
_COLOURS = {PASSED: "green", FAILED: "red", ERROR: "red"}
_DASH = "-"
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""textwrap does not wrap at it."""
_RESULT_OF = {
    FAILED: "failed",
    ERROR: "failed in the test itself",
    PASSED: "passed",
    XFAILED: "failed as expected",
    NOT_REPRODUCED: "failed once and then passed",
}
_UNEXPECTED = "passed, though expected to fail"
_COULD_NOT_RUN = "could not be run"
_SEE_ABOVE = "see the error above"
_RESULTS = ("failed", _UNEXPECTED, *list(_RESULT_OF.values())[1:])

Line = tuple[str, dict[str, bool]]
"""A line, and how pytest marks it up."""


def summary(report: Report, width: int = WIDTH, *, quotes: bool = False) -> Iterator[Line]:
    """For each test how it went, and what is likely to be wrong, in lines of *width* columns.

    *quotes*: whether to quote the errors of tests that could not run. Else, they stand above.
    """
    if report.engine:
        yield report.engine, {}
    for test, items in report.tests.items():
        yield from _about_test(test, items, width, quotes=quotes)


def _about_test(test: str, items: Sequence[Item], width: int, *, quotes: bool) -> Iterator[Line]:
    is_failed = any(item.status in FAILURES for item in items)
    colour = {"red" if is_failed else "green": True}
    told = f"{test}: {_counted(items, quotes=quotes)}"
    yield from ((line, colour) for line in _wrapped(told, width, ""))
    for cause, found in by_cause(item for item in items if not item.could_not_run).items():
        yield from ((line, {}) for line in _wrapped(_grouped(cause, found), width))
        if found[0].fix:
            yield from ((line, {}) for line in _wrapped(f"fix: {found[0].fix}", width, "    "))
        if found[0].reproduce:
            yield f"    {found[0].reproduce}", {}  # To be copied: never wrapped.
    for reason, left_out in by_reason(items).items():
        names = ", ".join(item.check for item in left_out)
        told = f"{counted(len(left_out), 'check')} not applicable: {reason}: {names}"
        yield from ((line, {}) for line in _wrapped(told, width))
    for note in notes_of(items):
        yield from ((line, {}) for line in _wrapped(f"note: {note}", width))


def _grouped(cause: str, found: Sequence[Item]) -> str:
    """What the items *found* have in common. A sentence has colons itself: names go before it."""
    checks, names = counted(len(found), "check"), ", ".join(item.check for item in found)
    return f"{checks}: {cause}: {names}" if found[0].cause else f"{checks} ({names}): {cause}"


def _counted(items: Sequence[Item], *, quotes: bool) -> str:
    """How many checks failed, passed or did neither, each with its verdicts; the time."""
    found = {
        result: counts(each for each in items if _result_of(each) == result) for result in _RESULTS
    }
    total = sum(sum(verdicts.values()) for verdicts in found.values())
    told: list[str] = []
    for result, verdicts in found.items():
        if count := sum(verdicts.values()):
            of_all = f"{count} of " if count < total else ""
            checks = str(count) if told else f"{of_all}{counted(total, 'check')}"
            details = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
            told.append(f"{checks} {result} ({details})")
    errors = dict.fromkeys(in_common(item.sentence) for item in items if item.could_not_run)
    why = "; ".join(errors) if quotes else _SEE_ABOVE
    told += _told_of_others(items, total, why, is_first=not told)
    return f"{', '.join(told)}; {sum(item.duration for item in items):.1f}{_NO_BREAK}s"


def _told_of_others(
    items: Sequence[Item], decided: int, why: str, *, is_first: bool
) -> Iterator[str]:
    """How many of *items* are not among those that *decided*; *why* some could not be run."""
    failed = sum(item.could_not_run for item in items)
    unasked = sum(item.status == NOT_ASKED for item in items)
    others = len(items) - decided - failed - unasked
    if failed:  # The error has all that there is to say, and the others point to it.
        count = failed + unasked
        yield f"{counted(count, 'check') if is_first else count} {_COULD_NOT_RUN} ({why})"
    elif is_first:
        yield "no check applies"
    if others:
        yield f"{others} not applicable"
    if unasked and not failed:
        yield f"{unasked} not asked"


def _result_of(item: Item) -> str | None:
    """What the summary counts *item* as; None if its check decided nothing."""
    if item.could_not_run:
        return None
    return _UNEXPECTED if item.is_unexpected else _RESULT_OF.get(item.status)


def table(report: Report, width: int = WIDTH) -> Iterator[list[Line]]:
    """Checks down, tests across: the cells of each row, each with its mark-up.

    What does not fit into *width* columns follows in another table, after an empty row. Where long
    names would make many tables, the tests get numbers, with a list of these above.
    """
    checks = list(dict.fromkeys(item.check for item in report.items))
    first = max((len(check) for check in checks), default=0) + _GAP
    titles, room = _titles(report.tests), width - first
    numbers = [str(number) for number, _ in enumerate(titles, start=1)]
    parts = [len(list(_side_by_side(report, each, room))) for each in (titles, numbers)]
    if parts[0] > 2 * parts[1]:
        for number, title in zip(numbers, titles, strict=True):
            yield [(f"{number}: {title}", {})]
        yield []
        titles = numbers
    for part, row in enumerate(_side_by_side(report, titles, room)):
        if part:
            yield []
        yield [("".ljust(first), {}), *((title.ljust(width), {}) for title, _, width in row)]
        for check in checks:
            found = [(_of_check(items, check), width) for _, items, width in row]
            if any(item for item, _ in found):
                yield [(check.ljust(first), {}), *(_cell(item, room) for item, room in found)]


def slowest(report: Report, most: int) -> Iterator[str]:
    """The *most* trials that took longest; all of them if it is 0."""
    trials = [(seconds, item) for item in report.items for seconds in item.trials]
    trials.sort(key=lambda each: -each[0])
    for seconds, item in trials[: most or None]:
        yield f"{seconds:.2f}s trial    {item.nodeid}"


_Column = tuple[str, list[Item], int]
"""The title of a test, its items, and how wide that is."""


def _side_by_side(report: Report, titles: Sequence[str], room: int) -> Iterator[list[_Column]]:
    row: list[_Column] = []
    for title, items in zip(titles, report.tests.values(), strict=True):
        column = title, items, _width_of(title, items)
        if row and sum(width for _, _, width in [*row, column]) > room:
            yield row
            row = []
        row.append(column)
    if row:
        yield row


def _width_of(title: str, items: Sequence[Item]) -> int:
    return max(len(title), *(len(item.word) for item in items)) + _GAP


_LONGEST_NAME = 30


def _titles(tests: Iterable[str]) -> list[str]:
    """The names of *tests*, cut; with file and class, and whole, where these would be the same."""
    names = {test: place_and_name(test)[1] for test in tests}
    cut = {test: _cut(name) for test, name in names.items()}
    often, often_cut = Counter(names.values()), Counter(cut.values())
    whole = {test: name if often[name] == 1 else test for test, name in names.items()}
    return [short if often_cut[short] == 1 else whole[test] for test, short in cut.items()]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _of_check(items: Sequence[Item], check: str) -> Item | None:
    return next((item for item in items if item.check == check), None)


def _cell(item: Item | None, width: int) -> Line:
    if item is None or item.status in LEFT_OUT:
        return _DASH.ljust(width), {}
    return item.word.ljust(width), {_COLOURS.get(item.status, "yellow"): True}


def _wrapped(text: str, width: int, first: str = "  ") -> list[str]:
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent="    ", break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
