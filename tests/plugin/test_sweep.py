"""``fault_check.sweep``: one item, its table, and what a violation becomes."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS

pytestmark = pytest.mark.usefixtures("engine")

MARKED = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

from pytest_dataloader_faults.faults import OpenError

pytestmark = pytest.mark.dataloader_faults(only="sweep")


def test_healthy(fault_check, records):
    swept = fault_check.sweep(lambda: Records(records), max_trials=2)
    assert not swept.complete


def test_guilty(fault_check, records):
    fault_check.sweep(lambda: ZerosOnError(records), faults=[OpenError()])


def test_asks_a_check(fault_check, records):
    fault_check(lambda: Records(records))
"""

NOT_MARKED = """
from support.datasets import Records


def test_x(fault_check, records):
    fault_check.sweep(lambda: Records(records), max_trials=1)
"""

WITH_MORE = """
import pytest


@pytest.mark.dataloader_faults(only="sweep", exclude="pickles")
def test_x(fault_check):
    fault_check.sweep(list)
"""


def test_a_marked_test_is_one_item(suite):
    """It passes with its table, fails with the evidence, and is for no check."""
    result = suite.run(MARKED, "-rP", "-v")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "test_inner.py::test_healthy[[]sweep] PASSED*",
            "   N  OpenError EIO, once",
            "   2  failed_cleanly",
            "2 trials: 2 failed_cleanly; stopped; go on with start_at=OpenError(nth=3, times=1)",
            "corrupted: sample * is wrong: *, and no exception*",
            "  reproduce: sweep(make_dataset, faults=[[]OpenError()], start_at=OpenError(times=1)*",
            "this test is marked only='sweep', so it has no check to ask*",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_a_test_that_is_not_marked_sweeps_once(suite):
    """The first of its items does; the others are skipped, and say what to do."""
    result = suite.run(NOT_MARKED, "-rs")
    result.assert_outcomes(passed=1, skipped=len(CHECKS) - 1)
    result.stdout.fnmatch_lines(["SKIPPED * With @pytest.mark.dataloader_faults(only='sweep')*"])


def test_a_sweep_has_no_checks_to_leave_out(suite):
    """Names of checks beside it are an error at collection."""
    result = suite.run(WITH_MORE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*only='sweep' asks no check: leave exclude and exp*"])
