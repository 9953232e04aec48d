"""Output for CI systems: GitHub annotations and Markdown summaries. Pure.

Source: "Workflow commands for GitHub Actions" (docs.github.com).
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pytest_dataloader_faults.outcomes.text import pluralize, printable, printable_lines, shorten
from pytest_dataloader_faults.report.model import (
    FAILURES,
    LEFT_OUT,
    Item,
    Report,
    count_failures,
    group_by_cause,
)


def github_commands(report: Report) -> Iterator[str]:
    """Return a workflow command per test and likely cause, of which GitHub shows ten per step."""
    for items in report.tests.values():
        for group in group_by_cause(items):
            failure, *others = group.items
            title = f"{group.checks}: {group.cause}"
            title = title if others else f"{failure.check}: {failure.word}"
            file, title = map(_escape_property, (failure.file, title))
            place = f"file={file},line={failure.line},title={title}"
            names, fix = group.names if others else "", group.fix and f"fix: {group.fix}"
            message = "\n".join(filter(None, [failure.sentence, names, fix, failure.reproduce]))
            yield f"::error {place}::{_escape_data(message)}"


def _escape_data(text: str) -> str:
    return printable_lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


_MOST_BYTES = 1 << 20
_CUT_OFF = "\n\nThe rest is omitted, because GitHub shows at most 1 MiB per step.\n"
_COMMAND = re.compile(r"^\s*::")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def render(report: Report) -> str:
    """Return the report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def step_summary(report: Report, size: int) -> str:
    """Return the report for the summary of a GitHub step, which already has *size* bytes.

    GitHub refuses a summary of more than 1 MiB as a whole.
    """
    room = _MOST_BYTES - size
    for has_evidence in (True, False):
        text = "\n".join(_lines(report, has_evidence=has_evidence)) + "\n"
        if len(text.encode(errors="backslashreplace")) <= room:
            return text
    # A character has at most four bytes, or ten if it cannot be encoded.
    return f"{text[: max(0, room // 10 - len(_CUT_OFF))]}{_CUT_OFF}"


def _lines(report: Report, *, has_evidence: bool = True) -> Iterator[str]:
    total, where = report.headline
    failing = {test: items for test, items in report.worst_first.items() if count_failures(items)}
    passing = {test: items for test, items in report.tests.items() if test not in failing}
    yield "# DataLoader faults"
    yield ""
    yield f"{_mark(report.items)} **{as_text(total)}**{as_text(where)}."
    yield from _table(failing or passing)
    for test, items in failing.items():
        yield from _failures(test, items, has_evidence=has_evidence)
    if failing and passing:
        title = f"{pluralize(len(passing), 'dataset')} without a failure"
        yield from ("", f"<details><summary>{title}</summary>", *_table(passing), "", "</details>")
    for note in report.notes:
        yield from ("", f"Note: {as_text(note)}.")
    for run in report.runs:
        yield from ("", f"<code>{as_text(run.command)}</code>: {as_text(run.summary)}.")


def _table(tests: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    if tests:
        yield ""
        yield f"| test | verdicts | {' | '.join(LEFT_OUT.values())} | seconds |"
        yield f"| --- | --- |{' --- |' * len(LEFT_OUT)} --- |"
    for test, items in tests.items():
        yield _row(test, items)


def _mark(items: Sequence[Item]) -> str:
    """Return the emoji for *items*, which is not green if no check ran."""
    if count_failures(items):
        return ":x:"
    is_run = any(item.status not in LEFT_OUT for item in items)
    return ":white_check_mark:" if is_run else ":warning:"


def _row(test: str, items: Sequence[Item]) -> str:
    items_run = (item for item in items if item.status not in LEFT_OUT)
    words = Counter((item.word, item.status in FAILURES) for item in items_run).most_common()
    words.sort(key=lambda entry: not entry[0][1])
    verdicts = ", ".join(f"{count} {as_text(word)}" for (word, _), count in words)
    statuses = Counter(item.status for item in items)
    omitted_counts = " | ".join(str(statuses[each]) for each in LEFT_OUT)
    seconds = sum(item.duration for item in items)
    title = f"{_mark(items)} {as_text(test)}"
    return f"| {title} | {verdicts} | {omitted_counts} | {seconds:.1f} |"


def _failures(test: str, items: Sequence[Item], *, has_evidence: bool) -> Iterator[str]:
    yield ""
    yield f"## {as_text(test)}"
    for group in group_by_cause(items):
        failure, names = group.items[0], as_text(group.names)
        title = f"**{as_text(shorten(group.cause))}**"
        yield ""
        yield f"- {title}: {names}" if failure.cause else f"- {names}: {title}"
        if group.fix:
            yield f"  <br>**fix:** {as_text(group.fix)}"
        if failure.reproduce:
            yield f"  <br><code>{as_text(failure.reproduce)}</code>"
        if has_evidence:
            sentence = _escape_html(shorten(failure.sentence))
            yield from ("", f"  <details><summary>{sentence}</summary>", "")
            yield from (f"  <pre>{_escape_html(failure.explanation)}</pre>", "", "  </details>")


def as_text(text: str) -> str:
    """Escape *text* for one line of Markdown. A log must not read it as a command."""
    line = printable(text.replace("\n", " "))
    return _COMMAND.sub(r"\\::", _SPECIAL.sub(r"\\\1", html.escape(line, quote=False)))


def _escape_html(text: str) -> str:
    """Escape *text* for HTML. An empty line would end it, and brackets could start a link."""
    escaped = html.escape(printable_lines(text), quote=False).replace("[", "&#91;")
    return escaped.replace("]", "&#93;").replace("\n", "&#10;")
