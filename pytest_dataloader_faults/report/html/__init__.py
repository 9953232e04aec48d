"""A report as one HTML page, which needs no network and no other file.

Some facts about browsers:

- A page that is opened from the disk (``file:``) can load no script or font from beside it in some
  browsers, so everything is in the page.
- ``Content-Security-Policy`` in a ``<meta>`` holds for ``file:``, too. It names the page's own
  script by its hash, so no text of a report can run as a script, even if it were not escaped.
- The HTML parser drops NUL. Escape sequences are invisible, and marks of right-to-left text reorder
  what stands beside them. So all texts go through ``printable_lines``.
- What is in a closed ``<details>`` is parsed but not laid out: a thousand of them are cheap.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from textwrap import dedent
from typing import Any

from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Verdict
from pytest_dataloader_faults.outcomes.text import printable_lines
from pytest_dataloader_faults.report.html.drawings import (
    HEIGHT,
    WIDTH,
    Chart,
    Timeline,
    charts,
    timeline,
)
from pytest_dataloader_faults.report.model import (
    FAILURES,
    LEFT_OUT,
    Item,
    Report,
    by_cause,
    named_notes_of,
    place_and_name,
)


def render(report: Report) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    return environment.from_string(_part("template.html")).render(_facts(report)) + "\n"


def _shown(value: object) -> object:
    """*value* as the page has it: texts without control characters; markup as it is."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return printable_lines(str(value)) if is_text else value


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _facts(report: Report) -> dict[str, Any]:
    """What the template shows."""
    from markupsafe import Markup

    script, style = _part("script.js"), _part("style.css")
    trials = list(trials_of(report.items))
    tests: dict[str, list[Trial]] = {}
    for trial in trials:
        tests.setdefault(trial.item.test, []).append(trial)
    return {
        "report": report,
        "script": Markup(script),  # noqa: S704  # a file of this package
        "style": Markup(style),  # noqa: S704  # a file of this package
        "policy": f"script-src {_hash(script)}; style-src {_hash(style)}",
        "tests": tests,
        "columns": list(map(place_and_name, tests)),
        "rows": _rows(trials, list(tests)),
        "words": _words(trials),
        "terms": dict(_terms(trials)),
        "causes": _causes(report, trials),
        "notes": named_notes_of(report.items),
        "ran": sum(each.item.status not in LEFT_OUT for each in trials),
        "failed_tests": len({item.test for item in report.failed}),
        "chart": (WIDTH, HEIGHT),
    }


def _words(trials: Sequence[Trial]) -> list[tuple[tuple[str, str], int]]:
    """How often there is each result: failures first, and the most frequent of them."""
    found = Counter((trial.item.status, trial.item.word) for trial in trials).most_common()
    return sorted(found, key=lambda each: each[0][0] not in FAILURES)


def _terms(trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """The verdicts and the checks that the page names, and what each means.

    A report that was read from a file may name some that this version does not know.
    """
    verdicts = {trial.item.verdict for trial in trials}
    yield from ((each, each.meaning) for each in Verdict if each in verdicts)
    checks = dict.fromkeys(trial.item.check for trial in trials)
    yield from ((name, CHECKS[name].promise) for name in checks if name in CHECKS)


def _rows(trials: Sequence[Trial], tests: Sequence[str]) -> list[tuple[str, list[Trial | None]]]:
    """The matrix: for each check, the trial of each test."""
    checks = dict.fromkeys(trial.item.check for trial in trials)
    found = {(trial.item.check, trial.item.test): trial for trial in trials}
    return [(check, [found.get((check, test)) for test in tests]) for check in checks]


def _causes(report: Report, trials: Sequence[Trial]) -> list[tuple[str, dict[str, list[Trial]]]]:
    """The failed trials of each likely cause, by test."""
    of_item = {id(trial.item): trial for trial in trials}
    found = []
    for cause, items in by_cause(report.items).items():
        tests: dict[str, list[Trial]] = {}
        for item in items:
            tests.setdefault(item.test, []).append(of_item[id(item)])
        found.append((cause, tests))
    return found


def _hash(text: str) -> str:
    """How a policy names the inline script or style *text*."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@dataclass(frozen=True)
class Trial:
    """One item on the page.

    Attributes:
        item: What was found.
        anchor: The id of its element, for links.
    """

    item: Item
    anchor: str

    @property
    def evidence(self) -> str:
        """The explanation, without its first and its last line, which stand elsewhere."""
        _, _, rest = self.item.explanation.partition("\n")
        lines = dedent(rest).rstrip().split("\n")
        kept = (line for line in lines if line != f"reproduce: {self.item.reproduce}")
        return "\n".join(kept)

    @cached_property
    def timeline(self) -> Timeline | None:
        """What happened when; None if that was not noted."""
        return timeline(self.item.timeline) if self.item.timeline else None

    @property
    def charts(self) -> list[Chart]:
        """How what its processes have grew."""
        return charts(self.item.usage)


def trials_of(items: Iterable[Item]) -> Iterator[Trial]:
    """Each of *items*. An anchor depends on the id of the item, so that links stay good."""
    taken: Counter[str] = Counter()
    for item in items:
        anchor = _anchor(item)
        taken[anchor] += 1
        yield Trial(item, anchor if taken[anchor] == 1 else f"{anchor}-{taken[anchor]}")


_PLAIN = re.compile(r"[\w./:-]+(\[[\w./:-]+\])?", re.ASCII)
"""Such ids differ also without their brackets: there is no hyphen in the name of a function."""


def _anchor(item: Item) -> str:
    """The id of *item* without brackets; with a hash where others would be the same."""
    nodeid = item.nodeid if item.check in item.nodeid else f"{item.nodeid}[{item.check}]"
    slug = re.sub(r"[^\w./:-]+", "-", nodeid, flags=re.ASCII).strip("-")
    if not _PLAIN.fullmatch(nodeid):
        digest = hashlib.sha256(nodeid.encode(errors="surrogatepass")).hexdigest()
        slug = f"{slug}-{digest[:8]}"
    return f"item-{slug}"
