"""Unclear errors of libraries are warnings, and the filters of warnings decide."""

import json

import pytest

from support.suites import REPORT, items_of, results_of, summary_of

SUITE = """
import pytest
from support.corpus.transport import ReadsSounds

@pytest.mark.dataloader_faults(only=["open-error", "descriptor-exhaustion", "workers-agree"])
def test_sounds(fault_check, records):
    fault_check(lambda: ReadsSounds(records))
"""
NAME = "UnclearErrorWarning"
CATEGORY = f"pytest_dataloader_faults.{NAME}"
LINE = "2 checks warned because of soundfile (raises an error that hides its cause): open-error,"

pytestmark = pytest.mark.usefixtures("engine")


def test_it_is_a_warning_by_default(suite):
    result = suite.run(SUITE, REPORT, "--dataloader-faults-report=r.html", "-v")
    summary, page = summary_of(result), (suite.path / "r.html").read_text()

    result.assert_outcomes(passed=3, warnings=2)
    result.stdout.fnmatch_lines([f"*test_inner.py:6: {NAME}: failed_unclearly: LibsndfileError*"])
    result.stdout.fnmatch_lines(["*PASSED (failed_unclearly, warning)*"])
    assert "1 of 3 checks passed (1 survived), 2 warned (2 failed_unclearly)" in summary
    assert LINE in summary
    assert summary.count("soundfile") == 1
    unclear = dict.fromkeys(["open-error", "descriptor-exhaustion"], "warned failed_unclearly")
    assert results_of(suite.path) == {"sounds": {"workers-agree": "passed survived", **unclear}}
    assert [each["library"] for each in items_of(suite.path)] == ["", "soundfile", "soundfile"]
    assert '<span class="badge warned">failed_unclearly (warning)</span>' in page
    assert "<dt>library<dd>soundfile" in page


FILTERED = """
import pytest
from support.corpus.transport import ReadsSounds

pytestmark = pytest.mark.dataloader_faults(only="open-error")

@pytest.mark.filterwarnings("error::{category}")
def test_fails(fault_check, records):
    fault_check(lambda: ReadsSounds(records))

@pytest.mark.filterwarnings("ignore::{category}")
def test_says_nothing(fault_check, records):
    fault_check(lambda: ReadsSounds(records))
"""


def test_a_filter_makes_it_a_failure_or_silences_it(suite):
    result = suite.run(FILTERED.format(category=CATEGORY), REPORT)

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["failed_unclearly: LibsndfileError does not say*"])
    result.stdout.fnmatch_lines(["*1 check failed (1 failed_unclearly)*"])
    assert results_of(suite.path) == {
        "fails": {"open-error": "failed failed_unclearly"},
        "says_nothing": {"open-error": "warned failed_unclearly"},
    }


def test_it_may_be_expected(suite):
    """As a failure that it would otherwise be."""
    known = {"test_inner.py::test_sounds": {"open-error": "libsndfile's"}}
    (suite.path / "known.json").write_text(json.dumps(known))
    result = suite.run(SUITE, REPORT, "--dataloader-faults-baseline=known.json", "-k", "open")

    result.assert_outcomes(xfailed=1, deselected=2)
    assert results_of(suite.path) == {"sounds": {"open-error": "xfailed failed_unclearly"}}
