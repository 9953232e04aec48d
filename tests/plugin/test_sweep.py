"""``fault_injector.sweep``: its table, its settings, and how a violation fails the test."""

import pytest

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

from pytest_dataloader_faults.faults import OpenError


def test_healthy(fault_injector, records):
    result = fault_injector.sweep(lambda: Records(records), max_trials=2)
    assert not result.complete


@pytest.mark.dataloader_faults(deadline=44, seed=7)
def test_wrong(fault_injector, records):
    fault_injector.sweep(lambda: ZerosOnError(records), faults=[OpenError()])
"""


def test_it_prints_its_table_and_fails_with_the_evidence(suite):
    result = suite.run(SUITE, "-rP", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "   N  OpenError EIO, once",
            "   2  failed_cleanly",
            "2 trials: 2 failed_cleanly; stopped; continue with start_at=OpenError(nth=3, times=1)",
            "1 trial: 1 corrupted; stopped; continue with start_at=OpenError(nth=2, times=1)",
            "corrupted: samples 0 and 4 are identical (all zeros), *, and no exception*",
            "  reproduce: sweep(make_dataset, faults=[[]OpenError()], start_at=OpenError(times=1)*",
            "  reproduce: sweep(*, deadline=44.0, seed=7)",
        ]
    )
    assert "Traceback" not in result.stdout.str()
