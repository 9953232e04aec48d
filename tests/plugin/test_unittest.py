"""pytest runs a ``DatasetTestCase``, and shows the text of a check as it stands."""

from __future__ import annotations

import json

SUITE = """
import unittest

import pytest

from pytest_dataloader_faults import DatasetTestCase
from support.plugin_datasets import ZerosOnError


class TestRecords(DatasetTestCase):
    @pytest.fixture(autouse=True)
    def _folder(self, records):
        self.folder = records

    def test_zeros(self):
        only = ["workers-agree", "open-error", "connect-error"]
        self.check_dataset(lambda: ZerosOnError(self.folder), only=only)

    def test_fine(self):
        self.check_dataset(lambda: ZerosOnError(self.folder), only="workers-agree")
"""


def test_pytest_shows_the_text_of_a_check(suite, engine):
    """In the section of the sub-test, without a line of unittest or of this package."""
    result = suite.run(SUITE)
    assert result.ret == 1
    text = result.stdout.str()
    section = text.partition("= FAILURES =")[2].partition("= dataloader-faults =")[0]
    assert "check='open-error'" in section or "open-error: corrupted" in section
    assert section.count("corrupted: samples 0 to 15 came alike, all zeros;") == 1
    assert "  reproduce: check_dataset(make_dataset, only='open-error'" in section
    assert "\nE  " not in section
    assert "_test_case.py" not in section
    assert "test_fine" not in section


BROKEN = """

    def test_wrong(self):
        self.check_dataset(lambda: {}["missing"], only="workers-agree")
"""


def test_the_report_has_each_check(suite, engine):
    """And a test that could ask none; also under a pytest that knows no sub-tests."""
    result = suite.run(SUITE + BROKEN, "--tb=line", "--dataloader-faults-report=r.json")
    items = json.loads((suite.path / "r.json").read_text())["items"]
    test = "test_inner.py::TestRecords::test_"
    assert {(each["test"].removeprefix(test), each["check"]): each["status"] for each in items} == {
        ("zeros", "workers-agree"): "passed",
        ("zeros", "open-error"): "failed",
        ("zeros", "connect-error"): "not_applicable",
        ("fine", "workers-agree"): "passed",
        ("wrong", "check_dataset"): "error",
    }
    crashed = [line for line in result.stdout.lines if "Error: " in line and ".py:" in line]
    assert not any("_test_case.py" in line or "_trial" in line for line in crashed), crashed
    assert f"{test}fine: 1 check passed (1 survived)" in result.stdout.str()
