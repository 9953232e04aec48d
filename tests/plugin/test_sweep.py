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


def test_the_evidence_is_shown(suite):
    result = suite.run(SUITE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "corrupted: samples 0 to 15 are identical (all zeros), *, and no exception*",
            "  reproduce: sweep(make_dataset, faults=[[]OpenError()[]], max_trials=1*",
            "  reproduce: sweep(*, deadline=44, seed=7)",
            "continue the sweep with faults=[[]OpenError(nth=2)[]]",
        ]
    )
    text = result.stdout.str()
    assert not re.search("^(E  |>  |Traceback)", text, re.MULTILINE)
    assert "raised at test_inner.py:" in text
