"""Choosing items: -k, node ids, --last-failed, and a parametrization of the test's own."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["open-error", "worker-killed-first"])
def test_x(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""

PARAMETRIZED = """
import pytest


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.dataloader_faults(only=["open-error", "pickles"])
class TestGrouped:
    def test_x(self, fault_check, size):
        pass
"""


def _collected(result) -> list[str]:
    return [line for line in result.outlines if "::" in line and " " not in line]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("read-error", [name for name in CHECKS if name.startswith("read-error-")]),
        ("test_x and truncated", [name for name in CHECKS if name.startswith("truncated-")]),
        ("test_x[open-error]", ["open-error"]),
    ],
)
def test_k_selects_by_check(light_suite, expression, expected):
    """Parts of a check's name can be given to -k as they stand."""
    result = light_suite.run("def test_x(fault_check): pass", "--co", "-q", "-k", expression)
    assert _collected(result) == [f"test_inner.py::test_x[{name}]" for name in expected]


def test_a_node_id_is_one_item(light_suite):
    """The id of an item, as pytest prints it, selects it."""
    light_suite.pytester.makepyfile(test_inner="def test_x(fault_check): pass")
    nodeid = "test_inner.py::test_x[descriptor-exhaustion]"
    assert _collected(light_suite.again("--co", "-q", nodeid)) == [nodeid]


def test_checks_multiply_with_the_tests_own_parameters(light_suite):
    """A test that is parametrized itself is asked each check with each value, with readable ids."""
    items = _collected(light_suite.run(PARAMETRIZED, "--co", "-q"))
    assert sorted(items) == sorted(
        f"test_inner.py::TestGrouped::test_x[{check}-{size}]"
        for size in (1, 2)
        for check in ("pickles", "open-error")
    )


def test_last_failed_reruns_the_failed_checks(suite):
    """--lf remembers checks, not whole tests."""
    suite.run(SUITE).assert_outcomes(passed=1, failed=1)
    result = suite.again("--lf", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_inner.py::test_x[[]open-error] FAILED*"])
