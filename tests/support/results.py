"""Results of single checks."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults import CheckResult, check_dataset


def result_of(make_dataset: Any, check: str, **options: Any) -> CheckResult:
    (result,) = check_dataset(make_dataset, only=check, on_fail=None, **options)
    return result


def failure_of(make_dataset: Any, check: str, **options: Any) -> CheckResult:
    (result,) = failures_of(make_dataset, [check], **options)
    return result


def failures_of(make_dataset: Any, checks: Iterable[str], **options: Any) -> list[CheckResult]:
    """The results of checks that fail. They are expected to, so that one trial of each is enough.

    Tests of how a failure is confirmed do not use it, and neither do those of datasets that pass:
    of an expected failure, a trial that passes is repeated.
    """
    expected = dict.fromkeys(checks, "the dataset has a defect")
    results = check_dataset(
        make_dataset, only=list(expected), expected_failures=expected, on_fail=None, **options
    )
    assert not [each.explanation for each in results if each.passed or not each.applies]
    return [replace(each, expected=None) for each in results]


def verdicts_of(result: CheckResult) -> dict[str, str]:
    """The verdict of each scenario, as the explanation lists them."""
    (line,) = [each for each in result.explanation.splitlines() if "tried: " in each]
    tried = line.partition("tried: ")[2].rstrip(".").split("; ")
    return {title: verdict.rstrip(")") for title, verdict in (each.split(" (") for each in tried)}
