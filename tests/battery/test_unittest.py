"""The battery in a ``unittest.TestCase``: a sub-test for each check."""

from __future__ import annotations

import unittest

import pytest

from pytest_dataloader_faults import DatasetTestCase
from support.plugin_datasets import ZerosOnError

pytestmark = pytest.mark.usefixtures("engine")


class Plain(unittest.TestResult):
    """What a runner has that knows no sub-tests, as pytest 8."""

    addSubTest = property()  # noqa: N815  # unittest calls it so


def _run(folder, result, *only, **options):
    """What *result* is told of a test that asks these checks."""

    class Tests(DatasetTestCase):
        def test_zeros(self):
            results = self.check_dataset(lambda: ZerosOnError(folder), only=only, **options)
            assert [each.check for each in results] == [*only]

    Tests("test_zeros").run(result)
    assert result.errors == []
    return result


def _told(records):
    return [(test.params["check"], text) for test, text in records]


def test_each_check_is_a_sub_test(records):
    """It fails with its explanation alone, or is skipped with the reason; others go on."""
    expected = {"file-missing": "issue 3"}
    only = ["workers-agree", "open-error", "file-missing", "connect-error"]
    result = _run(records, unittest.TestResult(), *only, expected_failures=expected)
    ((check, text),) = _told(result.failures)
    assert check == "open-error"
    assert "Error: corrupted: samples 0 to 15 came alike" in text
    assert "check_dataset(make_dataset, only='open-error', seed=0)" in text
    (frame,) = (line for line in text.splitlines() if line.startswith("  File "))
    assert __file__ in frame  # None is of unittest or of this package.
    skipped = dict(_told(result.skipped))
    assert skipped["file-missing"] == "expected to fail: issue 3 (corrupted)"
    assert "connect-error does not apply to this dataset" in skipped["connect-error"]
    assert len(skipped) == 2


def test_a_runner_without_sub_tests_is_told_all_at_once(records):
    """One failure has the text of each check that fails."""
    result = _run(records, Plain(), "workers-agree", "open-error", "file-missing", "connect-error")
    ((_, text),) = result.failures
    assert "open-error: corrupted: " in text
    assert "\nfile-missing: corrupted: " in text
    assert "connect-error" not in text
    assert result.skipped == []


def test_there_one_check_that_applies_is_enough(records):
    """The test is skipped where none does."""
    passed = _run(records, Plain(), "workers-agree", "connect-error")
    assert (passed.failures, passed.skipped) == ([], [])
    none = _run(records, Plain(), "connect-error", "connection-reset")
    ((_, why),) = none.skipped
    assert why.count("does not apply to this dataset") == 2


def test_not_reproduced_can_be_made_a_failure(monkeypatch):
    """As with the function: by default it is a warning."""
    from pytest_dataloader_faults import CheckResult, Verdict
    from pytest_dataloader_faults.battery import _test_case

    once = CheckResult("open-error", Verdict.CORRUPTED, False, "once", reproduced=False)
    monkeypatch.setattr(_test_case, "check_dataset", lambda *_args, **_options: [once])
    for choice, count in (("warn", 0), ("fail", 1)):
        result = _run("", unittest.TestResult(), "open-error", not_reproduced=choice)
        assert len(result.failures) == count


def test_what_cannot_be_tried_is_an_error_with_one_frame_of_this_package(records):
    """The line of the user, and that of the method."""

    class Tests(DatasetTestCase):
        def test_missing(self):
            self.check_dataset(lambda: {}["missing"])

        def test_misspelt(self):
            self.check_dataset(lambda: ZerosOnError(records), only="workers-agre")

    for name in ("test_missing", "test_misspelt"):
        result = unittest.TestResult()
        Tests(name).run(result)
        ((_, text),) = result.errors
        frames = [line for line in text.splitlines() if line.startswith("  File ")]
        assert [__file__ in frame for frame in frames] == [True, False]
