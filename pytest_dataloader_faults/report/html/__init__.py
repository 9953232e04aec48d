"""A report as one HTML page, which does not need a network or other files."""

# Some facts about browsers:
#
# - In some browsers, a page opened from the disk (``file:``) cannot load scripts or fonts next to
#   it, so the page contains everything.
# - ``Content-Security-Policy`` in a ``<meta>`` holds for ``file:``, too. It names the page's own
#   script by its hash, so no text of a report can run as a script, even if it were not escaped.
# - The HTML parser drops NUL. Escape sequences are invisible, and marks of right-to-left text
#   reorder what is next to them. So all texts go through ``printable_lines``.
# - What is in a closed ``<details>`` is parsed but not laid out: a thousand of them are cheap.

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
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
)

_LONGEST_TITLE = 60


def evidence_of(item: Item) -> str:
    """The explanation without its first and last line, which the page shows elsewhere."""
    _, _, evidence = item.explanation.partition("\n")
    lines = dedent(evidence).rstrip().split("\n")
    return "\n".join(line for line in lines if line != f"reproduce: {item.reproduce}")


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
    source = (files(__package__) / "template.html").read_text(encoding="utf-8")
    template = environment.from_string(source)
    return template.render(_template_facts(report)) + "\n"


def _printable(value: object) -> object:
    """Remove control characters from *value*, unless it is markup."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return printable_lines(str(value)) if is_text else value


def _read_part(name: str) -> tuple[Any, str]:
    """The inline script or style *name*, and how a policy names it."""
    from markupsafe import Markup

    text = (files(__package__) / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"  # noqa: S704  # a file of this package


def _template_facts(report: Report) -> dict[str, Any]:
    """Return the variables of the template."""
    (script, script_hash), (style, style_hash) = map(_read_part, ("script.js", "style.css"))
    tests = dict(sorted(report.tests.items(), key=lambda entry: -count_failures(entry[1])))
    words = Counter((item.status, item.word) for item in report.items)
    anchors = {item.nodeid: f"item-{number}" for number, item in enumerate(report.items)}
    return {
        "report": report,
        "script": script,
        "style": style,
        "policy": f"script-src {script_hash}; style-src {style_hash}",
        "anchor": lambda item: anchors[item.nodeid],
        "evidence_of": evidence_of,
        "lanes_of": lambda item: place_events(item.timeline),
        "tests": tests,
        "columns": [(test, *map(_elide, _place_and_name(test))) for test in tests],
        "rows": _build_matrix(tests),
        "words": sorted(words.items(), key=lambda entry: STATUSES.index(entry[0][0])),
        "meanings": {
            **{each: each.meaning for each in Verdict},
            **{name: check.promise for name, check in CHECKS.items()},
        },
        "groups": group_by_cause(report.items),
        "folded": (PASSED, XFAILED, *LEFT_OUT),
    }


def _place_and_name(test: str) -> tuple[str, str]:
    """The file and the class of the id *test*, and its name; "::" may be in its parameters."""
    name, bracket, parameters = test.partition("[")
    place, _, name = name.rpartition("::")
    return place, f"{name}{bracket}{parameters}"


def _elide(title: str) -> str:
    """Remove the middle of a long *title*, because names often differ at their ends."""
    half = _LONGEST_TITLE // 2
    return title if len(title) <= _LONGEST_TITLE else f"{title[:half]}…{title[-half:]}"


def _build_matrix(tests: dict[str, list[Item]]) -> list[tuple[str, list[Item | None]]]:
    """The item of each check and test. The check that most tests fail comes first."""
    checks: dict[str, dict[str, Item]] = {}
    for test, items in tests.items():
        for item in items:
            checks.setdefault(item.check, {})[test] = item
    rows = sorted(checks.items(), key=lambda row: -count_failures(row[1].values()))
    return [(check, [found.get(test) for test in tests]) for check, found in rows]
