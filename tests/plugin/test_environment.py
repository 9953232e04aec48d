"""A machine that lacks something, in a session of pytest."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
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


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error-first"])
def test_x(fault_check, records):
    fault_check(lambda: Records(records))


def test_y(dataloader_faults, records):
    dataloader_faults.sweep(lambda: Records(records))
"""


def test_what_is_lacking_is_reported_once(suite, monkeypatch):
    """The first item says all, the others where that is; all fail, and none blames the dataset.

    The summary of the datasets counts those that could not be run.
    """
    for name in ("CI", "BUILD_NUMBER"):  # There, pytest's summary gives each text in full again.
        monkeypatch.delenv(name, raising=False)
    result = suite.run(SUITE)
    result.assert_outcomes(failed=4)
    text = result.stdout.str()
    failures, _, summary = text.partition("= dataloader-faults =")
    assert (failures.count("ulimit -n 4096"), summary.count("ulimit -n 4096")) == (1, 0)
    assert "3 checks could not be run (see the error above)" in summary
    assert failures.count("too few file descriptors: see test_inner.py::test_x[workers-agree]") == 3
    assert "Traceback" not in text
