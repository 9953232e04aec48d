"""The same checks, outcomes and baseline when pytest-xdist spreads the items over processes."""

import json

import pytest

from support.suites import REPORT, failures_of, results_of, summary_of

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.plugin_datasets import Numbers, ZerosOnError

mark = pytest.mark.dataloader_faults

@mark(only="stale-handle")
def test_zeros(fault_check, records):
    fault_check(lambda: ZerosOnError(records))

def test_unfired(read_errors):
    read_errors("*.nothing")

@mark(only="pickles")
def test_options(fault_check):
    request = fault_check(Numbers).outcome.request
    assert (request.seed, request.deadline) == (7, 25)
"""
CONFTEST = """
from pytest_dataloader_faults import Scenario, check, faults

@check("stale-handle", "handles stale handles")
def stale_handle(workload):
    yield Scenario(faults=(faults.OpenError(workload.opened.path, errno=116),))

def pytest_dataloader_faults_checks():
    return [stale_handle]
"""
OPTIONS = (
    *("--dataloader-faults-seed=7", "--dataloader-faults-deadline=25", REPORT),
    *("--dataloader-faults-baseline=baseline.json", "--dataloader-faults-update-baseline"),
)
EXPECTED = {
    "zeros": {"stale-handle": "failed corrupted"},
    "options": {"pickles": "passed survived"},
}


@pytest.mark.timeout(300)  # Two processes import torch.
def test_outcomes_are_the_same_over_two_processes(suite):
    suite.add_to_conftest(CONFTEST)
    baseline = suite.path / "baseline.json"
    known = {"stale-handle": "issue of zeros"}
    entries = {"test_inner.py::test_zeros": known, "test_inner.py::test_options": {"pickles": ""}}
    baseline.write_text(json.dumps(entries))
    result = suite.run(SUITE, "-v", "-p", "xdist", "-n", "2", *OPTIONS)

    result.assert_outcomes(passed=1, failed=2)
    assert results_of(suite.path) == EXPECTED
    assert json.loads(baseline.read_text()) == {"test_inner.py::test_zeros": known}
    assert sum("known failure written to baseline.json" in each for each in result.outlines) == 1
    failures, summary = failures_of(result), summary_of(result)
    assert "corrupted: samples 0 to 15 are identical" in failures["zeros[stale-handle]"]
    assert "ReadError(path='*.nothing') never fired: " in failures["unfired"]
    counts = "1 check failed (1 corrupted); "
    assert f"test_inner.py::test_zeros: {counts}" in summary
