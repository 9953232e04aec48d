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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from textwrap import dedent
from typing import Any, NamedTuple, TypeAlias

from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Verdict
from pytest_dataloader_faults.outcomes.contract import GUIDE
from pytest_dataloader_faults.outcomes.text import pluralize, printable_lines
from pytest_dataloader_faults.report.html.drawings import Timeline, timeline
from pytest_dataloader_faults.report.model import (
    FAILURES,
    LEFT_OUT,
    PASSED,
    XFAILED,
    Item,
    Report,
    count_failures,
    group_by_cause,
    named_notes_of,
    place_and_name,
)


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


def _read_part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _template_facts(report: Report) -> dict[str, Any]:
    """Return the variables of the template."""
    from markupsafe import Markup

    script, style = _read_part("script.js"), _read_part("style.css")
    trials = list(trials_of(report.items))
    tests: dict[str, list[TrialCard]] = {test: [] for test in report.worst_first}
    for trial in trials:
        tests[trial.item.test].append(trial)
    return {
        "report": report,
        "script": Markup(script),  # noqa: S704  # a file of this package
        "style": Markup(style),  # noqa: S704  # a file of this package
        "policy": f"script-src {_hash(script)}; style-src {_hash(style)}",
        "tests": {test: _split_folded(trials_of_test) for test, trials_of_test in tests.items()},
        "columns": list(zip(tests, _columns(tests), strict=True)),
        "rows": _build_matrix(trials, list(tests)),
        "words": _count_words(trials),
        "terms": dict(_terms(trials)),
        "causes": _causes(trials),
        "guide": GUIDE,
        "notes": named_notes_of(report.items),
    }


_FOLDED = {PASSED: "passed", XFAILED: "failed as expected", **LEFT_OUT}
"""The statuses of trials that the page folds, and the labels of their counts."""


class _TestTrials(NamedTuple):
    """The trials of a test: those that are shown, and the folded ones with their counts."""

    failures: str
    trials: list[TrialCard]
    others: list[TrialCard]
    tally: str


def _split_folded(trials: Sequence[TrialCard]) -> _TestTrials:
    """Split *trials*, of one test, into those that are shown and folded ones."""
    folded = [trial for trial in trials if trial.item.status in _FOLDED]
    counts = Counter(trial.item.status for trial in folded)
    tally = ", ".join(f"{counts[each]} {text}" for each, text in _FOLDED.items() if counts[each])
    failures = count_failures(trial.item for trial in trials)
    run = pluralize(sum(trial.item.status not in LEFT_OUT for trial in trials), "check")
    return _TestTrials(
        f"{failures} of {run} failed" if failures else "",
        [trial for trial in trials if trial.item.status not in _FOLDED],
        folded,
        tally,
    )


def _columns(tests: Iterable[str]) -> list[tuple[str, str, bool]]:
    """The shortened file and name of each test, and whether other tests have the same name."""
    columns = list(map(place_and_name, tests))
    names = Counter(name for _, name in columns)
    return [(_elide(file), _elide(name), names[name] > 1) for file, name in columns]


_LONGEST_TITLE = 60


def _elide(title: str) -> str:
    """Remove the middle of a long *title*, because names often differ at their ends."""
    if len(title) <= _LONGEST_TITLE:
        return title
    half = _LONGEST_TITLE // 2
    return f"{title[:half]}…{title[-half:]}"


def _count_words(trials: Sequence[TrialCard]) -> list[tuple[tuple[str, str], int]]:
    """Count the results: failures first, and checks that did not run last."""
    words = Counter((trial.item.status, trial.item.word) for trial in trials).most_common()
    return sorted(words, key=lambda entry: (entry[0][0] not in FAILURES, entry[0][0] in LEFT_OUT))


def _terms(trials: Sequence[TrialCard]) -> Iterator[tuple[str, str]]:
    """The verdicts and the checks that the page names, and what each means.

    A report that was read from a file may name some that this version does not know.
    """
    verdicts = {trial.item.verdict for trial in trials}
    yield from ((each, each.meaning) for each in Verdict if each in verdicts)
    checks = dict.fromkeys(trial.item.check for trial in trials)
    yield from ((name, CHECKS[name].promise) for name in checks if name in CHECKS)


def _build_matrix(
    trials: Sequence[TrialCard], tests: Sequence[str]
) -> list[tuple[str, list[TrialCard | None]]]:
    """The trial of each check and test. The check that most tests fail comes first."""
    checks: dict[str, dict[str, TrialCard]] = {}
    for trial in trials:
        checks.setdefault(trial.item.check, {})[trial.item.test] = trial
    ordered = sorted(
        checks.items(), key=lambda row: -count_failures(trial.item for trial in row[1].values())
    )
    return [(check, [row.get(test) for test in tests]) for check, row in ordered]


_ByFix: TypeAlias = "dict[str, dict[str, list[TrialCard]]]"


def _causes(trials: Sequence[TrialCard]) -> list[tuple[str, str, _ByFix]]:
    """The failed trials of each likely cause, with its section, by fix and test."""
    trial_of = {id(trial.item): trial for trial in trials}
    causes = []
    for cause, items in group_by_cause(trial.item for trial in trials).items():
        fixes: _ByFix = {}
        for item in items:
            tests = fixes.setdefault(item.fix, {})
            tests.setdefault(item.test, []).append(trial_of[id(item)])
        causes.append((cause, items[0].section, fixes))
    return causes


def _hash(text: str) -> str:
    """How a policy names the inline script or style *text*."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@dataclass(frozen=True)
class TrialCard:
    """One item on the page.

    Attributes:
        item: What was found.
        anchor: The id of its element, for links.
    """

    item: Item
    anchor: str

    @property
    def evidence(self) -> str:
        """The explanation without its first and last line, which the page shows elsewhere."""
        _, _, evidence = self.item.explanation.partition("\n")
        lines = dedent(evidence).rstrip().split("\n")
        evidence_lines = (line for line in lines if line != f"reproduce: {self.item.reproduce}")
        return "\n".join(evidence_lines)

    @cached_property
    def timeline(self) -> Timeline | None:
        """What happened when; None if that was not noted."""
        return timeline(self.item.timeline) if self.item.timeline else None


def trials_of(items: Iterable[Item]) -> Iterator[TrialCard]:
    """Each of *items*. An anchor depends on the id of the item, so that links stay good."""
    anchors: Counter[str] = Counter()
    for item in items:
        anchor = _anchor(item)
        anchors[anchor] += 1
        yield TrialCard(item, anchor if anchors[anchor] == 1 else f"{anchor}-{anchors[anchor]}")


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
