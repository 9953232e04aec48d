"""The pages say what their records say, and the records have all that is promised."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

from pages import Page, compatibility, environments, readers
from paths import ROOT
from places import PLACES
from support.scripts import load_script

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# And not of its build, nor of its tests.
OF_THE_PACKAGE = PROJECT.partition("[project]")[2].partition("[dependency-groups]")[0]
BOUNDS = dict(re.findall(r'^    "(\w+)>=([\d.]+)",', OF_THE_PACKAGE, re.MULTILINE))
PYTHONS = re.findall(r"Python :: (3\.\d+)", PROJECT)
PAIRS = Page("compatibility").record()
HERE = Page("environments").record()
costs = load_script("benchmarks/page.py")


@pytest.mark.parametrize("name", "datasets environments".split())
def test_a_page_is_that_of_its_record(name):
    """It is generated, and not edited; ``python evidence NAME --page`` writes it anew."""
    page = Page(name)
    text = importlib.import_module(f"pages.{name}").page(page.record())
    assert page.path.read_text(encoding="utf-8") == text


def test_the_page_about_bugs_is_as_the_corpus_is():
    """``python evidence corpus`` writes it anew."""
    text = importlib.import_module("pages.corpus").page()
    assert Page("corpus").path.read_text(encoding="utf-8") == text


def test_the_section_about_readers_is_that_of_its_record():
    """``python evidence readers --page`` writes it anew."""
    text = readers.page(readers.PAGE.record())
    assert readers.PAGE.section(text.partition("\n")[0]) == text


def _numbers(version: str) -> list[int]:
    return [*map(int, version.split(".")), 0, 0][:3]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_was_tried(python):
    """Each that pyproject.toml promises, and no test failed there."""
    counts = [each["suite"] for each in PAIRS if each["python"].startswith(f"{python}.")]
    assert counts
    assert {each["failed"] for each in counts} == {0}
    assert min(each["passed"] for each in counts) > 1000


def test_the_lower_bounds_were_tried():
    """Together, on the lowest Python, and tox has the same."""
    lowest = {name: PAIRS[0][name] for name in BOUNDS}
    assert {name: _numbers(bound) for name, bound in BOUNDS.items()} == {
        name: _numbers(version) for name, version in lowest.items()
    }
    tox = re.findall(r"py310-lowest: (\w+)==([\d.]+)", (ROOT / "tox.ini").read_text("utf-8"))
    assert dict(tox) == lowest
    assert PAIRS[0]["python"].startswith(f"{PYTHONS[0]}.")


CASES = {
    "passed": "",
    "failed": "<failure message='no'/>",
    "skipped": "<skipped message='no GPU'/>",
}


def _junit(path, **cases):
    cases_xml = [
        f'<testcase classname="tests.of" name="{name}">{CASES[result]}</testcase>'
        for name, result in cases.items()
    ]
    text = f'<testsuite timestamp="2026-11-22T22:00:00">{"".join(cases_xml)}</testsuite>'
    path.write_text(f"<testsuites>{text}</testsuites>")
    return path


def test_a_run_that_failed_would_be_seen(tmp_path):
    """The counts are those of pytest's own file; a test that ran again counts as it did then."""
    run = _junit(tmp_path / "1.xml", one="passed", two="failed", three="failed", four="skipped")
    again = _junit(tmp_path / "2.xml", two="passed")
    counts = compatibility._suite([run, again])
    assert [counts[name] for name in ("passed", "failed", "skipped")] == [2, 1, 1]
    assert counts["date"] == "2026-11-22"


def test_every_row_about_places_is_short():
    """A row has one place, and one word in each cell of results; what is longer is a note below."""
    section = Page("environments").section("## Environments")
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(HERE)
    assert max(map(len, rows)) <= 120
    assert all(len(cell) <= 12 for row in rows for cell in row.split(" | ")[1:])


def test_nothing_was_wrong_in_any_place():
    """Each was tried, and its verdicts are the usual ones, or skips with the expected reason."""
    assert HERE.keys() == PLACES.keys()
    assert [name for name in PLACES if not _is_as_expected(name)] == []


def _is_as_expected(name):
    place, record = PLACES[name], HERE[name]
    rows = {"same": "", "skipped": "", "no verdict": place.refuses}
    result = environments.result(place, name, HERE)
    return (
        bool(record["header"]) == bool(place.says)
        and place.says in record["header"]
        and not record["left"]
        and (result.word, result.note) in rows.items()
    )


def _benchmarks(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks"), *arguments]
    wide = {**os.environ, "COLUMNS": "200"}  # So that argparse wraps no list of names.
    process = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env=wide
    )
    return process.stdout


def test_every_table_of_the_benchmarks_is_on_the_page():
    """Each was measured, and the page shows it."""
    (listed,) = re.findall(r"^  TABLE +(.+)$", _benchmarks("--help"), re.MULTILINE)
    names = listed.split(", ")
    template = costs.TEMPLATE.read_text(encoding="utf-8")
    assert names == list(costs.record()["tables"])
    assert re.findall(r"^\$(\w+)$", template, re.MULTILINE) == names


@pytest.mark.slow
def test_tables_can_be_measured(engine):
    """The command prints a table, and with --quick it leaves the page alone."""
    content = costs.RECORD.read_bytes()
    assert "open, read and close of one" in _benchmarks("--quick", "calls")
    assert costs.RECORD.read_bytes() == content
