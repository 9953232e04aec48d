"""Output for CI systems: GitHub annotations and Markdown summaries. Pure.

Source: "Workflow commands for GitHub Actions" (docs.github.com).
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from pytest_dataloader_faults.outcomes.text import (
    escape_for_log,
    printable,
    printable_lines,
    shorten,
)
from pytest_dataloader_faults.report import terminal
from pytest_dataloader_faults.report.model import Report, group_by_cause

_MOST_BYTES = 1 << 20
"""GitHub refuses a longer summary of a step as a whole."""


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


def render(report: Report, *, has_evidence: bool = True) -> str:
    """Return the report as Markdown: the summary, and the evidence for each cause."""
    total, where = report.headline
    lines = ["# DataLoader faults", "", f"**{total}**{where}.", ""]
    if report.items:
        summary = (_escape(printable(line)) for line, _ in terminal.summary(report, quotes=True))
        lines += ["<pre>", *summary, "</pre>", ""]
    lines += _evidence(report) if has_evidence else []
    lines += [
        f"<p><code>{_escape(printable(run.command))}</code>: {_escape(run.summary)}.</p>"
        for run in report.runs
    ]
    return "\n".join((*lines, ""))


def step_summary(report: Report, size: int) -> str:
    """Return the report for the summary of a GitHub step, which already has *size* bytes."""
    for text in (render(report), render(report, has_evidence=False)):
        if size + len(text.encode(errors="backslashreplace")) <= _MOST_BYTES:
            return text
    return f"{''.join(report.headline)}. The rest is longer than the 1 MiB that GitHub shows.\n"


def _evidence(report: Report) -> Iterator[str]:
    for items in report.tests.values():
        for group in group_by_cause(items):
            failure = group.items[0]
            title = printable(shorten(f"{failure.name}: {failure.sentence}"))
            yield f"<details><summary>{_escape(title)}</summary>"
            # A line that starts with <pre> ends the Markdown up to </pre>, whatever is in between.
            explanation = _escape(printable_lines(failure.explanation))
            yield from ("", "<pre>", explanation, "</pre>", "</details>", "")


def _escape(text: str) -> str:
    """Escape *text* for HTML. A log, too, must not read it as a command."""
    return escape_for_log(html.escape(text, quote=False))
