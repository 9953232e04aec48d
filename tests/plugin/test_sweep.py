"""How a violation in a sweep fails a test."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
from support.plugin_datasets import ZerosOnError

from pytest_dataloader_faults import sweep
from pytest_dataloader_faults.faults import OpenError


def test_wrong(records):
    sweep(lambda: ZerosOnError(records), faults=[OpenError()], deadline=44, seed=7)
"""


def test_the_evidence_and_the_table_are_shown(suite):
    result = suite.run(SUITE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "   N  OpenError EIO, once",
            "   1  corrupted",
            "1 trial: 1 corrupted; stopped; continue with start_at=OpenError(nth=2, times=1)",
            "corrupted: samples 0 and 4 are identical (all zeros), *, and no exception*",
            "  reproduce: sweep(make_dataset, faults=[[]OpenError()], start_at=OpenError(times=1)*",
            "  reproduce: sweep(*, deadline=44, seed=7)",
        ]
    )
    text = result.stdout.str()
    assert not re.search("^(E  |>  |Traceback)", text, re.MULTILINE)
    assert "raised at test_inner.py:" in text
