"""Unclear errors of libraries are warnings, and the filters of warnings decide."""

import json
from pathlib import Path

import pytest

from support.rows import slow

SUITE = """
import pytest
from support.corpus.transport import ReadsSounds


@pytest.mark.dataloader_faults(only=["open-error", "permission-denied", "workers-agree"])
def test_sounds(fault_check, records):
    fault_check(lambda: ReadsSounds(records))
"""
NAME = "UnclearErrorWarning"
CATEGORY = f"pytest_dataloader_faults.{NAME}"
REPORT = "--dataloader-faults-report=report.json"
LINE = "  2 checks warned because of soundfile (raises an error that hides its cause): open-error,"
SPREAD = ("-p", "xdist", "-n", "2")

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(autouse=True)
def _width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def _statuses(folder: Path) -> dict[str, tuple[str, str]]:
    items = json.loads((folder / "report.json").read_text())["items"]
    return {item["check"]: (item["status"], item["library"]) for item in items}


def _results(status: str) -> dict[str, tuple[str, str]]:
    unclear = dict.fromkeys(["open-error", "permission-denied"], (status, "soundfile"))
    return {**unclear, "workers-agree": ("passed", "")}


@pytest.mark.parametrize("spread", [(), SPREAD], ids=["alone", "spread"])
def test_it_is_a_warning_by_default(spread, suite):
    result = suite.run(SUITE, REPORT, *spread)
    summary = result.stdout.str().partition("= dataloader-faults =")[2]

    result.assert_outcomes(passed=3, warnings=2)
    result.stdout.fnmatch_lines([f"*test_inner.py:7: {NAME}: failed_unclearly: LibsndfileError*"])
    assert "1 of 3 checks passed (1 survived), 2 warned (2 failed_unclearly)" in summary
    assert LINE in summary
    assert summary.count("soundfile") == 1
    assert _statuses(suite.path) == _results("warned")


@pytest.mark.parametrize(
    ("options", "ini"),
    [
        ((f"-Werror::{CATEGORY}",), ""),
        ((), "[pytest]\nfilterwarnings = error"),
        slow((f"-Werror::{CATEGORY}", *SPREAD), ""),
    ],
    ids=["command line", "ini", "spread"],
)
def test_a_filter_makes_it_a_failure(options, ini, suite):
    suite.pytester.makeini(ini)
    result = suite.run(SUITE, REPORT, *options)

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["failed_unclearly: LibsndfileError does not say*"])
    result.stdout.fnmatch_lines(["*2 of 3 checks failed (2 failed_unclearly), 1 passed*"])
    assert _statuses(suite.path) == _results("failed")


@pytest.mark.parametrize("spread", [(), slow(SPREAD)], ids=["alone", "spread"])
def test_a_filter_silences_it(spread, suite):
    result = suite.run(SUITE, REPORT, f"-Wignore::{CATEGORY}", *spread)

    result.assert_outcomes(passed=3)
    assert "soundfile" not in result.stdout.str()
    assert "warn" not in result.stdout.str()
    assert _statuses(suite.path) == _results("warned")


def test_verdicts_are_shown(suite):
    result = suite.run(SUITE, "-v")

    result.stdout.fnmatch_lines(
        ["test_inner.py::test_sounds?open-error? PASSED (failed_unclearly, warning)*"]
    )


def test_it_may_be_expected(suite):
    """By a baseline, or by the marker: as a failure that it would otherwise be."""
    marked = SUITE.replace("only=", 'expected_failures={"permission-denied": "its own"}, only=')
    known = {"test_inner.py::test_sounds": {"open-error": "libsndfile's"}}
    (suite.path / "known.json").write_text(json.dumps(known))
    result = suite.run(marked, REPORT, "--dataloader-faults-baseline=known.json")

    result.assert_outcomes(passed=1, xfailed=2)
    assert _statuses(suite.path) == _results("xfailed")


def test_a_page_has_it(suite):
    suite.run(SUITE, "--dataloader-faults-report=page.html", "-k", "open-error")
    page = (suite.path / "page.html").read_text()

    assert '<span class="badge warned">failed_unclearly (warning)</span>' in page
    assert "<dt>library<dd>soundfile" in page
