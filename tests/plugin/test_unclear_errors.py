"""Unclear errors of libraries are warnings, and the filters of warnings decide."""

import pytest

from support.suites import REPORT, items_of, results_of, summary_of

NAME = "UnclearErrorWarning"
SUITE = f"""
import pytest
from support.corpus.transport import ReadsSounds

mark = pytest.mark.dataloader_faults
one = mark(only="open-error")

@mark(only=["open-error", "descriptor-exhaustion", "workers-agree"])
def test_sounds(fault_check, records):
    fault_check(lambda: ReadsSounds(records))

@one
@pytest.mark.filterwarnings("error::pytest_dataloader_faults.{NAME}")
def test_fails(fault_check, records):
    fault_check(lambda: ReadsSounds(records))

@one
@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.{NAME}")
def test_says_nothing(fault_check, records):
    fault_check(lambda: ReadsSounds(records))

@mark(only="open-error", expected_failures={{"open-error": "libsndfile's"}})
def test_expected(fault_check, records):
    fault_check(lambda: ReadsSounds(records))
"""
UNCLEAR = "failed_unclearly"
EXPECTED = {
    "sounds": {
        "workers-agree": "passed survived",
        **dict.fromkeys(["open-error", "descriptor-exhaustion"], f"warned {UNCLEAR}"),
    },
    "fails": {"open-error": f"failed {UNCLEAR}"},
    "says_nothing": {"open-error": f"warned {UNCLEAR}"},
    "expected": {"open-error": f"xfailed {UNCLEAR}"},
}
LINE = "2 checks warned because of soundfile (raises an error that hides its cause): open-error,"


@pytest.mark.usefixtures("engine")
def test_filters_and_expectations_decide(suite):
    result = suite.run(SUITE, REPORT, "--dataloader-faults-report=r.html", "-v")
    summary, page = summary_of(result), (suite.path / "r.html").read_text()

    result.assert_outcomes(passed=4, failed=1, xfailed=1, warnings=2)
    assert results_of(suite.path) == EXPECTED
    result.stdout.fnmatch_lines([f"{UNCLEAR}: LibsndfileError does not say*"])
    result.stdout.fnmatch_lines([f"*test_inner.py:9: {NAME}: {UNCLEAR}: LibsndfileError*"])
    result.stdout.fnmatch_lines_random([f"*PASSED ({UNCLEAR}, warning)*"])
    assert "1 of 3 checks passed (1 survived), 2 warned (2 failed_unclearly)" in summary
    assert LINE in summary
    libraries = [each["library"] for each in items_of(suite.path) if each["name"] == "sounds"]
    assert libraries == ["", "soundfile", "soundfile"]
    assert f'<span class="badge warned">{UNCLEAR} (warning)</span>' in page
    assert "<dt>library<dd>soundfile" in page
