"""A report in Markdown, as CI systems show it in the summary of a job. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from pytest_dataloader_faults.report.model import (
    FAILURES,
    NOT_APPLICABLE,
    Item,
    Report,
    by_cause,
    counts,
    named_notes_of,
)

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def render(report: Report) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# DataLoader faults"
    yield ""
    if report.engine:
        yield f"{_text(report.engine)}."
        yield ""
    yield "| test | verdicts | not applicable | seconds |"
    yield "| --- | --- | --- | --- |"
    for test, items in report.tests.items():
        yield _row(test, items)
    for test, items in report.tests.items():
        if any(item.status in FAILURES for item in items):
            yield from _failures(test, items)
    for note in named_notes_of(report.items):
        yield ""
        yield f"Note: {_text(note)}."


def _row(test: str, items: Sequence[Item]) -> str:
    mark = ":x:" if any(item.status in FAILURES for item in items) else ":white_check_mark:"
    verdicts = ", ".join(f"{count} {_text(verdict)}" for verdict, count in counts(items).items())
    others = sum(item.status == NOT_APPLICABLE for item in items)
    seconds = sum(item.duration for item in items)
    return f"| {mark} {_text(test)} | {verdicts} | {others} | {seconds:.1f} |"


def _failures(test: str, items: Sequence[Item]) -> Iterator[str]:
    yield ""
    yield f"## {_text(test)}"
    for cause, found in by_cause(items).items():
        yield ""
        yield f"- **{_text(cause)}**: {', '.join(_text(item.check) for item in found)}"
        yield f"  <details><summary>{_raw(found[0].sentence)}</summary>"
        yield ""
        yield f"  <pre>{_raw(found[0].explanation)}</pre>"
        yield ""
        yield "  </details>"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", html.escape(text.replace("\n", " "), quote=False))


def _raw(text: str) -> str:
    """*text* within HTML. An empty line would end that, and brackets could begin a link."""
    escaped = html.escape(text, quote=False).replace("[", "&#91;")
    return escaped.replace("]", "&#93;").replace("\n", "&#10;")
