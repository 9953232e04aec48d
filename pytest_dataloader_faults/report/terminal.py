"""The summary at the end of pytest's output: at most 100 columns, in pytest's own style. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.report.model import (
    ERROR,
    FAILED,
    FAILURES,
    FLAKY,
    FLAKY_TRIALS,
    NOT_APPLICABLE,
    NOT_JUDGED,
    NOT_RUN,
    PASSED,
    WARNED,
    XFAILED,
    Group,
    Item,
    Report,
    group_by_cause,
    without_pids,
)

WIDTH = 100
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""A space at which textwrap does not break lines."""
_UNEXPECTED, _COULD_NOT_RUN = "passed although expected to fail", "could not be run"
_RESULTS = {
    FAILED: "failed",
    _UNEXPECTED: _UNEXPECTED,
    ERROR: "had an error in the test itself",
    PASSED: "passed",
    XFAILED: "failed as expected",
    FLAKY: "flaky",
    WARNED: "warned",
}
"""The results of checks that ran, in the order of the summary, and how each is displayed."""

Line = tuple[str, dict[str, bool]]
"""A line, and its markup for pytest."""


def summary(report: Report, width: int = WIDTH, *, quotes: bool = False) -> Iterator[Line]:
    """The results and likely causes of each test, in lines of *width* columns.

    *quotes*: whether to quote the errors of tests that could not run. Else, they stand above.
    """
    for test, items in report.tests.items():
        colour = "red" if any(item.status in FAILURES for item in items) else "green"
        text = f"{test}: {_count_line(items, quotes=quotes)}"
        yield from ((line, {colour: True}) for line in _wrap(text, width, ""))
        for group in group_by_cause(item for item in items if not item.could_not_run):
            yield from ((line, {}) for line in _cause_lines(group, width))
        for text in (*_warnings(items), *_reasons(items)):
            yield from ((line, {}) for line in _wrap(text, width))
    for note in report.notes:
        yield from ((line, {}) for line in _wrap(f"note: {note}", width, ""))


def _cause_lines(group: Group, width: int) -> Iterator[str]:
    """The cause, the checks, the fix, and the command that runs the first of the checks again."""
    first = group.items[0]
    text = f"{group.checks}: {group.cause}: {group.names}"
    if not first.cause:  # The names precede a sentence, which may contain colons.
        text = f"{group.checks} ({group.names}): {group.cause}"
    yield from _wrap(text, width)
    if group.fix:
        yield from _wrap(f"fix: {group.fix}", width, "    ")
    if first.reproduce:
        yield f"    {first.reproduce}"  # Not wrapped, so that it can be copied.


def _warnings(items: Sequence[Item]) -> Iterator[str]:
    """What warned, by library."""
    warned = [item for item in items if item.status == WARNED]
    for library in dict.fromkeys(item.library for item in warned):
        group = Group("", "", [item for item in warned if item.library == library])
        causes = "; ".join(dict.fromkeys(item.cause for item in group.items))
        yield f"{group.checks} warned because of {library} ({causes}): {group.names}"


def _reasons(items: Sequence[Item]) -> Iterator[str]:
    """Which checks do not apply although the dataset has what they are about, in one line."""
    names: dict[str, list[str]] = {}
    for item in items:
        if item.status == NOT_APPLICABLE and item.cause:
            names.setdefault(item.cause, []).append(item.check)
    if names:
        texts = (f"{', '.join(checks)} ({reason})" for reason, checks in names.items())
        yield f"not applicable: {'; '.join(texts)}"


def _count_line(items: Sequence[Item], *, quotes: bool) -> str:
    """How many checks failed, passed or did neither, each with its verdicts, and the time."""
    counts = {result: Counter[str]() for result in _RESULTS}
    for item in items:
        if item.status in _RESULTS and not item.could_not_run:
            result = _UNEXPECTED if item.is_unexpected else item.status
            counts[result][item.verdict or NOT_JUDGED] += 1
    texts = list(_describe_counts(counts))
    decided = sum(each.total() for each in counts.values())
    errors = dict.fromkeys(without_pids(item.sentence) for item in items if item.could_not_run)
    unrun = sum(item.could_not_run or item.status == NOT_RUN for item in items)
    inapplicable = len(items) - decided - unrun
    if errors:  # They explain everything, and the other items refer to them.
        why = "; ".join(errors) if quotes else "see the error above"
        texts.append(f"{unrun if texts else pluralize(unrun, 'check')} {_COULD_NOT_RUN} ({why})")
    elif not texts:
        texts.append("no check applies")
    texts += [f"{inapplicable} not applicable"] if inapplicable else []
    texts += [f"{unrun} not run"] if unrun and not errors else []
    return f"{', '.join(texts)}; {sum(item.duration for item in items):.1f}{_NO_BREAK}s"


def _describe_counts(counts: dict[str, Counter[str]]) -> Iterator[str]:
    """Each result with its number and its verdicts. The first one says how many checks ran."""
    total = sum(each.total() for each in counts.values())
    found = {result: verdicts for result, verdicts in counts.items() if verdicts}
    for place, (result, verdicts) in enumerate(found.items()):
        count = verdicts.total()
        of_all = f"{count} of " if count < total else ""
        checks = str(count) if place else f"{of_all}{pluralize(total, 'check')}"
        details = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        details = f"{FLAKY_TRIALS}: {details}" if result == FLAKY else details
        yield f"{checks} {_RESULTS[result]} ({details})"


def _wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
