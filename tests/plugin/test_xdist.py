"""The same checks, outcomes and baseline when pytest-xdist spreads the items over processes."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.corpus.caches import CheckedSpectrograms
from support.datasets import Records
from support.plugin_datasets import Numbers, ZerosOnError
from torch.utils.data import DataLoader

few = pytest.mark.dataloader_faults(only=["open-error", "workers-agree"])


@few
def test_healthy(fault_check, records):
    fault_check(lambda: Records(records))


@few
def test_zeros(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


@pytest.mark.dataloader_faults(only=["open-error", "stale-handle"])
def test_known(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


def test_injected(read_errors, records):
    armed = read_errors("*/03.rec")
    with pytest.raises(OSError, match="Errno 5"):
        list(DataLoader(Records(records), num_workers=2))
    assert armed.fired == 1


def test_unfired(read_errors, records):
    read_errors("*.nothing")
    list(DataLoader(Records(records), num_workers=1))


@pytest.mark.dataloader_faults(only="read-error")
def test_cached(fault_check, records):
    cache = records.parent / "cache"
    cache.mkdir()
    fault_check(lambda: CheckedSpectrograms(records, cache))


@pytest.mark.dataloader_faults(only="pickles")
def test_options(fault_check):
    request = fault_check(Numbers).outcome.request
    assert (request.seed, request.deadline) == (7, 25)
"""
CONFTEST = """
from pytest_dataloader_faults import Check, faults


def pytest_dataloader_faults_checks():
    plan = lambda workload: faults.OpenError(workload.opened.path, errno=116)
    return [Check("stale-handle", "handles stale handles", plan)]
"""
OPTIONS = (
    *("--dataloader-faults-seed=7", "--dataloader-faults-deadline=25"),
    *("--dataloader-faults-baseline=baseline.json", "--dataloader-faults-update-baseline"),
)


EXPECTED = [
    ("test_inner.py::test_cached[read-error]", "PASSED (failed_cleanly)"),
    ("test_inner.py::test_healthy[open-error]", "PASSED (failed_cleanly)"),
    ("test_inner.py::test_healthy[workers-agree]", "PASSED (survived)"),
    ("test_inner.py::test_injected", "PASSED"),
    ("test_inner.py::test_known[open-error]", "FAILED (corrupted)"),
    ("test_inner.py::test_known[stale-handle]", "FAILED (corrupted)"),
    ("test_inner.py::test_options[pickles]", "PASSED (survived)"),
    ("test_inner.py::test_unfired", "FAILED"),
    ("test_inner.py::test_zeros[open-error]", "FAILED (corrupted)"),
    ("test_inner.py::test_zeros[workers-agree]", "PASSED (survived)"),
]


def _outcomes(result) -> list[tuple[str, str]]:
    """Each item and what became of it."""
    text = result.stdout.str().partition("= FAILURES =")[0]
    results = re.findall(r"^\[gw\d\].*?([A-Z]+(?: \(\w+\))?) (test_inner\S+)", text, re.MULTILINE)
    return sorted((item, outcome) for outcome, item in results)


@pytest.mark.timeout(300)  # Two processes import torch.
def test_outcomes_are_the_same_over_two_processes(suite):
    conftest = suite.path / "conftest.py"
    conftest.write_text(conftest.read_text() + CONFTEST)
    baseline = suite.path / "baseline.json"
    names = ("healthy", "known", "removed")
    entries = {f"test_inner.py::test_{name}": {"open-error": f"issue of {name}"} for name in names}
    baseline.write_text(json.dumps(entries))
    result = suite.run(SUITE, "-v", "-p", "xdist", "-n", "2", *OPTIONS)
    result.assert_outcomes(passed=6, failed=4)
    assert _outcomes(result) == EXPECTED
    assert json.loads(baseline.read_text()) == {
        "test_inner.py::test_known": {"open-error": "issue of known", "stale-handle": ""},
        "test_inner.py::test_zeros": {"open-error": ""},
    }
    assert sum("known failures written to baseline.json" in each for each in result.outlines) == 1
    result.stdout.fnmatch_lines(["corrupted: samples 0 to 15 are identical*"])
    result.stdout.fnmatch_lines(["ReadError(path='*.nothing') never fired: *"])
    causes = [
        "*= dataloader-faults =*",
        "test_inner.py::test_zeros: 1 of 2 checks failed (1 corrupted), *",
    ]
    result.stdout.fnmatch_lines(causes)
    summary = " ".join(result.stdout.str().partition("= dataloader-faults =")[2].split())
    assert summary.count("like a cache") == 1
