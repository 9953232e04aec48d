"""What CI systems show: annotations of GitHub, code quality of GitLab, summaries in Markdown. Pure.

Sources: "Workflow commands for GitHub Actions" (docs.github.com), and "Code Quality report format"
(docs.gitlab.com).
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_dataloader_faults.outcomes.text import counted, printable, printable_lines
from pytest_dataloader_faults.report.model import (
    FAILURES,
    LEFT_OUT,
    Item,
    Report,
    by_cause,
    named_notes_of,
)


def of_github(report: Report) -> Iterator[str]:
    """A workflow command for each test and likely cause: GitHub shows ten of a step."""
    for items in report.tests.values():
        for cause, found in by_cause(items).items():
            first = found[0]
            many = f"{counted(len(found), 'check')}: {cause}"
            title = many if len(found) > 1 else f"{first.check}: {first.word}"
            place = f"file={_property(first.file)},line={first.line},title={_property(title)}"
            others = [", ".join(each.check for each in found)] if len(found) > 1 else []
            fix = first.fix and f"fix: {first.fix}"
            message = "\n".join(filter(None, [first.sentence, *others, fix, first.reproduce]))
            yield f"::error {place}::{_data(message)}"


def error_command(text: str) -> str:
    """The workflow command by which GitHub shows *text* as an error of the whole job."""
    return f"::error::{_data(text)}"


def of_gitlab(report: Report) -> str:
    """A list of issues, as JSON."""
    issues = [
        {
            "description": f"{item.nodeid}: {item.word}: {item.sentence}",
            "check_name": item.check,
            "fingerprint": _fingerprint(item),
            "severity": "major",
            "location": {"path": item.file, "lines": {"begin": item.line}},
        }
        for item in report.failed
    ]
    return json.dumps(issues, indent=2) + "\n"


def _fingerprint(item: Item) -> str:
    """What stays the same for one failure; an id may hold bytes that are not UTF-8."""
    text = f"{item.nodeid} {item.check}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _data(text: str) -> str:
    return printable_lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_COMMAND = re.compile(r"^\s*::")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def render(report: Report) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# DataLoader faults"
    yield ""
    if report.engine:
        yield f"{as_text(report.engine)}."
        yield ""
    for run in report.runs:
        yield f"`{_raw(run.command)}`: {as_text(run.told)}."
        yield ""
    yield f"| test | verdicts | {' | '.join(LEFT_OUT.values())} | seconds |"
    yield f"| --- | --- |{' --- |' * len(LEFT_OUT)} --- |"
    for test, items in report.tests.items():
        yield _row(test, items)
    for test, items in report.tests.items():
        if any(item.status in FAILURES for item in items):
            yield from _failures(test, items)
    for note in named_notes_of(report.items):
        yield ""
        yield f"Note: {as_text(note)}."


def _row(test: str, items: Sequence[Item]) -> str:
    mark = ":x:" if any(item.status in FAILURES for item in items) else ":white_check_mark:"
    words = Counter(item.word for item in items if item.status not in LEFT_OUT)
    verdicts = ", ".join(f"{count} {as_text(word)}" for word, count in words.most_common())
    statuses = Counter(item.status for item in items)
    others = " | ".join(str(statuses[each]) for each in LEFT_OUT)
    seconds = sum(item.duration for item in items)
    return f"| {mark} {as_text(test)} | {verdicts} | {others} | {seconds:.1f} |"


def _failures(test: str, items: Sequence[Item]) -> Iterator[str]:
    yield ""
    yield f"## {as_text(test)}"
    for cause, found in by_cause(items).items():
        yield ""
        names = ", ".join(as_text(item.check) for item in found)
        yield (
            f"- **{as_text(cause)}**: {names}"
            if found[0].cause
            else f"- {names}: **{as_text(cause)}**"
        )
        if found[0].fix:
            yield f"  fix: {as_text(found[0].fix)}"
        yield f"  <details><summary>{_raw(found[0].sentence)}</summary>"
        yield ""
        yield f"  <pre>{_raw(found[0].explanation)}</pre>"
        yield ""
        yield "  </details>"


def as_text(text: str) -> str:
    """*text* on one line of Markdown, as it stands; a log must not read it as a command."""
    line = printable(text.replace("\n", " "))
    return _COMMAND.sub(r"\\::", _SPECIAL.sub(r"\\\1", html.escape(line, quote=False)))


def _raw(text: str) -> str:
    """*text* within HTML. An empty line would end that, and brackets could begin a link."""
    escaped = html.escape(printable_lines(text), quote=False).replace("[", "&#91;")
    return escaped.replace("]", "&#93;").replace("\n", "&#10;")
