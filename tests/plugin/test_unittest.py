"""pytest runs a ``DatasetTestCase``, and shows the text of a check as it stands."""

from __future__ import annotations

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
    (section,) = text.partition("= FAILURES =")[2].split("= short test summary")[:-1]
    assert "check='open-error'" in section or "open-error: corrupted" in section
    assert section.count("corrupted: sample 0 (batch 0) is wrong") == 1
    assert "  reproduce: check_dataset(make_dataset, only='open-error'" in section
    assert "\nE  " not in section
    assert "_test_case.py" not in section
    assert "test_fine" not in section
