"""The line in pytest's header, and a session on a machine that lacks something."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import _engine

BUSY = "already has a seccomp listener*EBUSY*"


def _lines(result) -> list[str]:
    return [line for line in result.outlines if line.startswith("dataloader-faults")]


def test_the_header_says_nothing_if_faults_can_be_injected(light_suite, engine):
    assert [] == _lines(light_suite.run("def test_plain(): pass"))


REFUSED = """
import pytest
from support.datasets import Records
from pytest_dataloader_faults import check_dataset, faults, inject, run_trial


@pytest.mark.dataloader_faults(only="read-error")
def test_battery(fault_check):
    fault_check(None)


def test_injected(read_errors):
    read_errors("*.rec")


@pytest.mark.parametrize("call", [check_dataset, run_trial, inject])
def test_functions(call):
    given = faults.ReadError() if call is inject else list
    with call(given):
        pass


def test_plain():
    pass
"""


def test_items_are_skipped_where_the_kernel_refuses(run_refused):
    """The header and each item that needs the engine give the reason, also of a plain call."""
    result = run_refused(REFUSED, "-rs")
    result.assert_outcomes(passed=1, skipped=5)
    header = f"dataloader-faults: no engine available, so tests that need one are skipped: *{BUSY}"
    result.stdout.fnmatch_lines([header])
    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert all("no engine can run here: this process already has" in line for line in skips)


def test_the_reason_is_the_kernels(engine):
    assert _engine.explain_missing_engine() is None


ENVIRONMENT_SUITE = """
import os
import resource

import pytest
from support.datasets import Records


@pytest.fixture(autouse=True)
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error"])
def test_x(fault_check, records):
    fault_check(lambda: Records(records))
"""


@pytest.mark.usefixtures("engine")
def test_what_is_lacking_is_reported_once(suite, monkeypatch):
    """The first item says all, the others where that is; all fail, and none blames the dataset.

    The summary of the datasets counts those that could not be run.
    """
    for name in ("CI", "BUILD_NUMBER"):  # There, pytest's summary gives each text in full again.
        monkeypatch.delenv(name, raising=False)
    result = suite.run(ENVIRONMENT_SUITE)
    result.assert_outcomes(failed=3)
    text = result.stdout.str()
    failures, _, summary = text.partition("= dataloader-faults =")
    assert (failures.count("ulimit -n 4096"), summary.count("ulimit -n 4096")) == (1, 0)
    assert "3 checks could not be run (see the error above)" in summary
    assert failures.count("too few file descriptors: see test_inner.py::test_x[workers-agree]") == 2
    assert "Traceback" not in text
