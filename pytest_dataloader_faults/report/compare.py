"""What is new in a report, and what is gone, beside an older one of the same suite. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.text import printable
from pytest_dataloader_faults.report.ci import as_text
from pytest_dataloader_faults.report.merge import Key, Source, items_of
from pytest_dataloader_faults.report.model import FAILURES, LEFT_OUT, Item, Report

_TIMES, _SECONDS = 1.5, 1.0
"""A test is slower if it takes so many times as long, and so many seconds more: less is chance."""


class Change(NamedTuple):
    """One line of a comparison: an item or a test, and what became of it."""

    name: str
    what: str


class Comparison(NamedTuple):
    """A newer report beside an older one.

    Attributes:
        old, new: How many items failed in each.
        sections: What changed, by a title.
        is_worse: Whether something failed that had not.
    """

    old: int
    new: int
    sections: Mapping[str, Sequence[Change]]
    is_worse: bool

    @property
    def headline(self) -> str:
        """The counts, in a line."""
        parts = [f"{len(changes)} {title}" for title, changes in self.sections.items()]
        return f"{self.old} failed before, {self.new} now: {', '.join(parts)}"


def compared(old: Report, new: Report) -> Comparison:
    """*new* beside *old*."""
    before, after = (dict(items_of(Source("", each))) for each in (old, new))
    failing = {key: item for key, item in after.items() if _fails(item)}
    had_failed = {key: item for key, item in before.items() if _fails(item)}
    sections = {
        "new": [_failure(item) for key, item in failing.items() if key not in had_failed],
        "gone": [
            Change(each.nodeid, _instead(after.get(key)))
            for key, each in had_failed.items()
            if key not in failing
        ],
        "with another verdict": list(_otherwise(had_failed, failing)),
        "slower": list(_slower(old, new)),
    }
    counts = len(had_failed), len(failing)
    return Comparison(*counts, sections, is_worse=bool(sections["new"]))


def _fails(item: Item) -> bool:
    return item.status in FAILURES


def _failure(item: Item) -> Change:
    return Change(item.nodeid, f"{item.word}: {item.sentence}")


def _instead(item: Item | None) -> str:
    """What became of an item that had failed."""
    if item is None:
        return "not in the newer report"
    return LEFT_OUT.get(item.status, item.word)


def _otherwise(before: Mapping[Key, Item], after: Mapping[Key, Item]) -> Iterator[Change]:
    for key, old in before.items():
        new = after.get(key)
        if new is not None and old.word != new.word:
            yield Change(new.nodeid, f"{old.word} before, {new.word} now: {new.sentence}")


def _slower(old: Report, new: Report) -> Iterator[Change]:
    for test, items in new.tests.items():
        before = sum(item.duration for item in old.tests.get(test, ()))
        after = sum(item.duration for item in items)
        if before and after > max(before * _TIMES, before + _SECONDS):
            yield Change(test, f"{before:.1f} s before, {after:.1f} s now")


def lines(found: Comparison) -> Iterator[str]:
    """*found* for a terminal."""
    yield found.headline
    for title, changes in found.sections.items():
        if changes:
            yield f"{title}:"
            yield from (f"  {name}: {what}" for name, what in changes)


def markdown(found: Comparison) -> str:
    """*found* in Markdown."""
    return "\n".join(_in_markdown(found)) + "\n"


def _in_markdown(found: Comparison) -> Iterator[str]:
    yield "# DataLoader faults: what has changed"
    yield ""
    yield f"{':x:' if found.is_worse else ':white_check_mark:'} {as_text(found.headline)}."
    for title, changes in found.sections.items():
        if changes:
            yield from ("", f"## {title.capitalize()}", "")
            yield from (f"- {as_text(name)}: {as_text(what)}" for name, what in changes)


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} - DataLoader faults</title></head><body>
<h1>DataLoader faults: what has changed</h1>
<p>{title}.</p>
{sections}</body></html>
"""


def page(found: Comparison) -> str:
    """*found* as a page, which needs no other file."""
    sections = "".join(_in_html(*each) for each in found.sections.items() if each[1])
    return _PAGE.format(title=_escaped(found.headline), sections=sections)


def _in_html(title: str, changes: Sequence[Change]) -> str:
    rows = "".join(
        f"<li><code>{_escaped(name)}</code>: {_escaped(what)}</li>\n" for name, what in changes
    )
    return f"<h2>{_escaped(title.capitalize())}</h2>\n<ul>\n{rows}</ul>\n"


def _escaped(text: str) -> str:
    return html.escape(printable(text))
