"""A ``unittest.TestCase`` for datasets: each check of the battery is a sub-test."""

from __future__ import annotations

import sys
import unittest
from types import TracebackType
from typing import Any

from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery._check_dataset import check_dataset
from pytest_dataloader_faults.exceptions import CheckFailedError, DataLoaderFaultsError
from pytest_dataloader_faults.outcomes import CheckResult

__unittest = True
"""unittest and pytest leave the frames of a module out of tracebacks that has this name."""


class DatasetTestCase(unittest.TestCase):
    """A test case with a method that runs the battery: ``self.check_dataset(lambda: MyDataset())``.

    ``python -m unittest`` and pytest run it. A runner that does not know sub-tests, such as pytest
    8 alone, gets one failure with the text of each check that fails.
    """

    _has_subtests = True
    _dataset_results: list[CheckResult] | None = None
    """Of all calls of check_dataset, for the plugin's reports; None before the first call."""

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test, as every ``TestCase`` does."""
        self._has_subtests = result is None or hasattr(result, "addSubTest")
        return super().run(result)

    def check_dataset(self, make_dataset: DatasetFactory, **options: Any) -> list[CheckResult]:
        """Run every check of the battery, each in a sub-test.

        A check that does not apply is a skipped sub-test, and so is one that fails as expected.

        Args:
            make_dataset: As for the function ``check_dataset``.
            **options: What else that takes, but for *on_fail*.

        Returns:
            One result per check.
        """
        self._dataset_results = told = self._dataset_results or []
        __tracebackhide__ = True
        try:
            told += (results := check_dataset(make_dataset, on_fail=None, **options))
        except DataLoaderFaultsError as error:  # It says all; our frames would hide the user's.
            raise error.with_traceback(None) from error.__cause__
        may_vary = options.get("not_reproduced", "warn") == "warn"
        failed = [each for each in results if each.failed or not (each.reproduced or may_vary)]
        if self._has_subtests:
            for each in results:
                with self.subTest(**_names(each)):
                    self._report(each, failed=each in failed)
        elif failed:
            text = "\n\n".join(f"{each.check}: {each.explanation}" for each in failed)
            raise CheckFailedError(text)
        elif not any(each.applies for each in results):
            self.skipTest("\n".join(each.explanation for each in results))
        return results

    def _report(self, result: CheckResult, *, failed: bool) -> None:
        if failed:
            raise CheckFailedError(result.explanation).with_traceback(_users_call())
        if not result.applies:
            self.skipTest(result.explanation)
        if result.expected and not result.passed:
            self.skipTest(f"expected to fail: {result.expected} ({result.verdict})")


def _users_call() -> TracebackType:
    """Where the user called this module: a sub-test has only frames of it and of unittest."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals is globals():
        frame = frame.f_back
    return TracebackType(None, frame, -1, frame.f_lineno)  # -1: show that line, without marks.


def _names(result: CheckResult) -> dict[str, str]:
    """What tells the sub-test of *result* from others."""
    return {"check": result.check, **({"part": result.part} if result.part else {})}
