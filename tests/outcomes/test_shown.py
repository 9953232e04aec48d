"""How results show themselves: one line as a repr, and a small table in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from hypothesis.vendor.pretty import pretty

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.outcomes import (
    CheckResult,
    Pass,
    SweepResult,
    SweepStep,
)
from pytest_dataloader_faults.search import Exploration
from support.facts import EIO, EPOCH_1, fired, ordinary, raised
from support.rows import rows

HOSTILE = "a\n\x1b[2J\x00<script>&\udcff'\""
OUTCOME = ordinary(Pass((), (), raised("OSError", HOSTILE)), fired(EIO))
STEP = SweepStep(OpenError(HOSTILE), 2, Verdict.CORRUPTED, False, HOSTILE)
RESULTS = [
    CheckResult("open-error", Verdict.CORRUPTED, False, HOSTILE, OUTCOME, cause=HOSTILE),
    replace(OUTCOME, died=HOSTILE, phase=EPOCH_1),
    Exploration(9, 2, failure=HOSTILE, outcome=OUTCOME, verdict=Verdict.CORRUPTED),
    STEP,
    SweepResult((STEP,), next=OpenError(HOSTILE)),
]
each_result = rows("result", RESULTS, ids=lambda each: type(each).__name__)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert attrs == []

    def handle_data(self, data):
        self.text += data


@each_result
def test_repr_is_one_line(result):
    """Of printable characters, and short; IPython and Hypothesis print the same."""
    shown = repr(result)

    assert shown.isprintable()
    assert len(shown) < 600
    assert shown.startswith(f"<{type(result).__name__}: ")
    assert pretty(result) == shown


def test_repr_tells_results_apart():
    """The check, its verdict, whether it passed, the fault, how often it fired, and how long."""
    assert repr(CheckResult("open-error", Verdict.CORRUPTED, False, "why", OUTCOME)) == (
        "<CheckResult: check=open-error, verdict=corrupted, passed=False,"
        " schedule=(ReadError(path='*.rec'),), fired=1, batches=0, exception=OSError,"
        " duration=0.25 s>"
    )
    skipped = CheckResult("pinned", Verdict.NOT_EXERCISED, False, "no accelerator", applies=False)
    assert repr(skipped) == (
        "<CheckResult: check=pinned, verdict=not_exercised, passed=False, applies=False>"
    )


def test_long_values_are_cut_off():
    """A schedule may name a thousand files."""
    many = replace(OUTCOME, schedule=(OpenError(tuple(f"{each}.rec" for each in range(1000))),))

    assert len(repr(many)) < 400


@each_result
def test_notebook_gets_a_table(result):
    """Every text in it is escaped, and can be encoded."""
    table = result._repr_html_()
    reader = _Reader()
    reader.feed(table)

    assert reader.tags <= {"table", "tr", "th", "td", "pre"}
    assert table.startswith("<table>")
    assert reader.text.replace("\n", "").isprintable()
    assert table.encode()
    if hasattr(result, "explanation"):
        assert "a\n\\x1b[2J\\x00<script>&\\udcff'\"" in reader.text
