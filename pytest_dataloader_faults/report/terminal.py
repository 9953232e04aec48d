"""The summary at the end of pytest's output: at most 100 columns, in pytest's own style. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_dataloader_faults.outcomes.contract import GUIDE
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    FAILURES,
    FLAKY,
    FLAKY_TRIALS,
    LEFT_OUT,
    NOT_RUN,
    PASSED,
    WARNED,
    XFAILED,
    Item,
    Report,
    count_verdicts,
    group_by_cause,
    group_by_library,
    group_by_reason,
    notes_of,
    place_and_name,
    without_pids,
)

WIDTH = 100
_GAP = 2
_COLOURS = {PASSED: "green", FAILED: "red", ERROR: "red"}
_DASH = "-"
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""A space at which textwrap does not break lines."""
_RESULT_OF = {
    FAILED: "failed",
    ERROR: "had an error in the test itself",
    PASSED: "passed",
    XFAILED: "failed as expected",
    FLAKY: "flaky",
    WARNED: "warned",
}
_UNEXPECTED = "passed although expected to fail"
_COULD_NOT_RUN = "could not be run"
_SEE_ABOVE = "see the error above"
_RESULTS = ("failed", _UNEXPECTED, *list(_RESULT_OF.values())[1:])

Line = tuple[str, dict[str, bool]]
"""A line, and its markup for pytest."""


def summary(report: Report, width: int = WIDTH, *, quotes: bool = False) -> Iterator[Line]:
    """The results and likely causes of each test, in lines of *width* columns.

    *quotes*: whether to quote the errors of tests that could not run. Else, they stand above.
    """
    for test, items in report.tests.items():
        yield from _test_lines(test, items, width, quotes=quotes)
    if any(item.section for item in report.items if item.status in FAILURES):
        yield f"How to fix each cause: {GUIDE}", {}


def _test_lines(test: str, items: Sequence[Item], width: int, *, quotes: bool) -> Iterator[Line]:
    is_failed = any(item.status in FAILURES for item in items)
    colour = {"red" if is_failed else "green": True}
    text = f"{test}: {_count_line(items, quotes=quotes)}"
    yield from ((line, colour) for line in _wrap(text, width, ""))
    for cause, failures in group_by_cause(item for item in items if not item.could_not_run).items():
        yield from ((line, {}) for line in _wrap(_cause_line(cause, failures), width))
        if failures[0].fix:
            yield from ((line, {}) for line in _wrap(f"fix: {failures[0].fix}", width, "    "))
        if failures[0].reproduce:
            yield f"    {failures[0].reproduce}", {}  # Not wrapped, so that it can be copied.
    for library, warned in group_by_library(items).items():
        causes = "; ".join(dict.fromkeys(item.cause for item in warned))
        names = ", ".join(item.check for item in warned)
        text = f"{pluralize(len(warned), 'check')} warned because of {library} ({causes}): {names}"
        yield from ((line, {}) for line in _wrap(text, width))
    for reason, left_out in group_by_reason(items).items():
        names = ", ".join(item.check for item in left_out)
        text = f"{pluralize(len(left_out), 'check')} not applicable: {reason}: {names}"
        yield from ((line, {}) for line in _wrap(text, width))
    for note in notes_of(items):
        yield from ((line, {}) for line in _wrap(f"note: {note}", width))


def _cause_line(cause: str, failures: Sequence[Item]) -> str:
    """The line for *failures*. The names precede a sentence, which may contain colons."""
    checks, names = pluralize(len(failures), "check"), ", ".join(item.check for item in failures)
    return f"{checks}: {cause}: {names}" if failures[0].cause else f"{checks} ({names}): {cause}"


def _count_line(items: Sequence[Item], *, quotes: bool) -> str:
    """How many checks failed, passed or did neither, each with its verdicts, and the time."""
    verdicts_by_result = {
        result: count_verdicts(each for each in items if _result_of(each) == result)
        for result in _RESULTS
    }
    total = sum(sum(verdicts.values()) for verdicts in verdicts_by_result.values())
    texts: list[str] = []
    for result, verdicts in verdicts_by_result.items():
        if count := sum(verdicts.values()):
            of_all = f"{count} of " if count < total else ""
            checks = str(count) if texts else f"{of_all}{pluralize(total, 'check')}"
            details = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
            details = f"{FLAKY_TRIALS}: {details}" if result == FLAKY else details
            texts.append(f"{checks} {result} ({details})")
    errors = dict.fromkeys(without_pids(item.sentence) for item in items if item.could_not_run)
    why = "; ".join(errors) if quotes else _SEE_ABOVE
    texts += _other_counts(items, total, why, is_first=not texts)
    return f"{', '.join(texts)}; {sum(item.duration for item in items):.1f}{_NO_BREAK}s"


def _other_counts(
    items: Sequence[Item], decided: int, why: str, *, is_first: bool
) -> Iterator[str]:
    """How many of *items* are not among the *decided* ones, and *why* some could not be run."""
    failed = sum(item.could_not_run for item in items)
    unasked = sum(item.status == NOT_RUN for item in items)
    inapplicable = len(items) - decided - failed - unasked
    if failed:  # The error explains everything, and the other items refer to it.
        count = failed + unasked
        yield f"{pluralize(count, 'check') if is_first else count} {_COULD_NOT_RUN} ({why})"
    elif is_first:
        yield "no check applies"
    if inapplicable:
        yield f"{inapplicable} not applicable"
    if unasked and not failed:
        yield f"{unasked} not run"


def _result_of(item: Item) -> str | None:
    """The category of *item* in the summary; None if its check has no result."""
    if item.could_not_run:
        return None
    return _UNEXPECTED if item.is_unexpected else _RESULT_OF.get(item.status)


def table(report: Report, width: int = WIDTH) -> Iterator[list[Line]]:
    """A table of checks (rows) and tests (columns): the cells of each row, with their markup.

    What does not fit into *width* columns follows in another table, after an empty row. Where long
    names would make many tables, the tests get numbers, with a list of these above.
    """
    checks = list(dict.fromkeys(item.check for item in report.items))
    check_width = max((len(check) for check in checks), default=0) + _GAP
    titles, room = _titles(report.tests), width - check_width
    numbers = [str(number) for number, _ in enumerate(titles, start=1)]
    parts = [len(list(_table_rows(report, each, room))) for each in (titles, numbers)]
    if parts[0] > 2 * parts[1]:
        for number, title in zip(numbers, titles, strict=True):
            yield [(f"{number}: {title}", {})]
        yield []
        titles = numbers
    for part, row in enumerate(_table_rows(report, titles, room)):
        if part:
            yield []
        yield [("".ljust(check_width), {}), *((title.ljust(width), {}) for title, _, width in row)]
        for check in checks:
            cells = [(_item_for(items, check), width) for _, items, width in row]
            if any(item for item, _ in cells):
                yield [(check.ljust(check_width), {}), *(_cell(item, room) for item, room in cells)]


def slowest(report: Report, count: int) -> Iterator[str]:
    """The *count* slowest trials, or all trials if *count* is 0."""
    trials = [(seconds, item) for item in report.items for seconds in item.trials]
    trials.sort(key=lambda trial: -trial[0])
    for seconds, item in trials[: count or None]:
        yield f"{seconds:.2f}s trial    {item.nodeid}"


_Column = tuple[str, list[Item], int]
"""The title of a test, its items, and the width of the column."""


def _table_rows(report: Report, titles: Sequence[str], room: int) -> Iterator[list[_Column]]:
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
    """The shortened names of *tests*; if these are ambiguous, complete, with file and class."""
    names = {test: place_and_name(test)[1] for test in tests}
    cut = {test: _shorten(name) for test, name in names.items()}
    often, often_cut = Counter(names.values()), Counter(cut.values())
    full_names = {test: name if often[name] == 1 else test for test, name in names.items()}
    return [short if often_cut[short] == 1 else full_names[test] for test, short in cut.items()]


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _item_for(items: Sequence[Item], check: str) -> Item | None:
    return next((item for item in items if item.check == check), None)


def _cell(item: Item | None, width: int) -> Line:
    if item is None or item.status in LEFT_OUT:
        return _DASH.ljust(width), {}
    return item.word.ljust(width), {_COLOURS.get(item.status, "yellow"): True}


def _wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
