"""A report as one HTML page, which does not need a network or other files.

Some facts about browsers:

- In some browsers, a page opened from the disk (``file:``) cannot load scripts or fonts next to it,
  so the page contains everything.
- ``Content-Security-Policy`` in a ``<meta>`` holds for ``file:``, too. It names the page's own
  script by its hash, so no text of a report can run as a script, even if it were not escaped.
- The HTML parser drops NUL. Escape sequences are invisible, and marks of right-to-left text reorder
  what is next to them. So all texts go through ``printable_lines``.
- What is in a closed ``<details>`` is parsed but not laid out: a thousand of them are cheap.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from textwrap import dedent
from typing import Any

from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Event, Verdict
from pytest_dataloader_faults.outcomes.text import printable_lines
from pytest_dataloader_faults.report.model import (
    LEFT_OUT,
    PASSED,
    STATUSES,
    XFAILED,
    Item,
    Report,
    count_failures,
    group_by_cause,
    place_and_name,
)

_FOLDED = {PASSED: "passed", XFAILED: "failed as expected", **LEFT_OUT}
"""The statuses of items that the page folds, and the labels of their counts."""
_LONGEST_TITLE = 60


@dataclass(frozen=True)
class Card:
    """One item on the page."""

    item: Item

    @property
    def anchor(self) -> str:
        """The id of its element. It depends on the id of the item, so that links stay good."""
        digest = hashlib.sha256(self.item.nodeid.encode(errors="surrogatepass")).hexdigest()
        slug = re.sub(r"[^\w./:-]+", "-", self.item.nodeid, flags=re.ASCII).strip("-")
        return f"item-{slug}-{digest[:8]}"

    @property
    def evidence(self) -> str:
        """The explanation without its first and last line, which the page shows elsewhere."""
        _, _, evidence = self.item.explanation.partition("\n")
        lines = dedent(evidence).rstrip().split("\n")
        return "\n".join(line for line in lines if line != f"reproduce: {self.item.reproduce}")

    @property
    def lanes(self) -> dict[str, dict[tuple[float, str], None]]:
        """The places and kinds of the events of each process, in order and each once."""
        return place_events(self.item.timeline)


def place_events(events: Sequence[Event]) -> dict[str, dict[tuple[float, str], None]]:
    """Where each process has its events, in percent of a line with one step for each time.

    True times would put everything in one corner if the trial hangs.
    """
    times = sorted({event.time for event in events})
    step = 100 / max(1, len(times) - 1)
    place = {time: round(step * number, 1) for number, time in enumerate(times)}
    by_process: dict[str, dict[tuple[float, str], None]] = {}
    # The loader first, and worker 10 after worker 9.
    for event in sorted(events, key=lambda event: (len(event.process), event.process, event.time)):
        by_process.setdefault(event.process, {})[place[event.time], event.kind] = None
    return by_process


def render(report: Report) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable,
    )
    template = environment.from_string(_read_part("template.html"))
    return template.render(_template_facts(report)) + "\n"


def _printable(value: object) -> object:
    """Remove control characters from *value*, unless it is markup."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return printable_lines(str(value)) if is_text else value


def _hash(text: str) -> str:
    """How a policy names the inline script or style *text*."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read_part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _template_facts(report: Report) -> dict[str, Any]:
    """Return the variables of the template."""
    from markupsafe import Markup

    script, style = _read_part("script.js"), _read_part("style.css")
    tests = {test: list(map(Card, items)) for test, items in report.worst_first.items()}
    words = Counter((item.status, item.word) for item in report.items)
    return {
        "report": report,
        "script": Markup(script),  # noqa: S704  # a file of this package
        "style": Markup(style),  # noqa: S704  # a file of this package
        "policy": f"script-src {_hash(script)}; style-src {_hash(style)}",
        "tests": tests,
        "columns": [(test, *map(_elide, place_and_name(test))) for test in tests],
        "rows": _build_matrix(tests),
        "words": sorted(words.items(), key=lambda entry: STATUSES.index(entry[0][0])),
        "meanings": {
            **{each: each.meaning for each in Verdict},
            **{name: check.promise for name, check in CHECKS.items()},
        },
        "groups": [(each, list(map(Card, each.items))) for each in group_by_cause(report.items)],
        "tally": _tally,
        "folded": _FOLDED,
    }


def _tally(cards: Sequence[Card]) -> str:
    """Count the folded *cards* of a test."""
    counts = Counter(card.item.status for card in cards)
    return ", ".join(f"{counts[each]} {text}" for each, text in _FOLDED.items() if counts[each])


def _elide(title: str) -> str:
    """Remove the middle of a long *title*, because names often differ at their ends."""
    half = _LONGEST_TITLE // 2
    return title if len(title) <= _LONGEST_TITLE else f"{title[:half]}…{title[-half:]}"


def _build_matrix(tests: dict[str, list[Card]]) -> list[tuple[str, list[Card | None]]]:
    """The card of each check and test. The check that most tests fail comes first."""
    checks: dict[str, dict[str, Card]] = {}
    for test, cards in tests.items():
        for card in cards:
            checks.setdefault(card.item.check, {})[test] = card
    rows = [(check, [found.get(test) for test in tests]) for check, found in checks.items()]
    return sorted(rows, key=lambda row: -count_failures(card.item for card in row[1] if card))
