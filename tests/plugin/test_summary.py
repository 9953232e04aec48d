"""The likely causes of failed checks, at the end of pytest's report."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults.plugin._summary import CAUSE, CHECK, causes, lines

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "truncated-empty"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))
"""
TITLE = "likely causes of failed checks"
IN_PLACE = "gives a sample in place of one that cannot be read: open-error"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("spread", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_failed_checks_are_grouped_by_cause(suite, spread):
    """For each test, without what passed; also where pytest-xdist spreads the items."""
    if spread:
        pytest.importorskip("xdist")
    result = suite.run(SUITE, "-q", *(["-p", "xdist", "-n", "2"] if spread else []))

    found = result.stdout.str().partition(TITLE)[2].splitlines()[1:]
    assert found[0] == "test_inner.py::test_files[ZerosOnError]"
    assert any(IN_PLACE in line for line in found)
    assert "workers-agree" not in "".join(line for line in found if not line.startswith("FAILED"))


@pytest.mark.usefixtures("engine")
def test_nothing_is_said_where_no_check_failed(suite):
    """Whether all passed, or a test failed that asks no check."""
    passed = suite.run(SUITE, "-q", "-k", "Records or workers-agree")
    failed = suite.run("def test_plain(): assert False", "-q")

    assert (passed.ret, failed.ret) == (0, 1)
    assert TITLE not in passed.stdout.str() + failed.stdout.str()


def _report(nodeid, check, cause):
    return SimpleNamespace(nodeid=nodeid, user_properties=[(CHECK, check), (CAUSE, cause)])


@pytest.mark.parametrize(
    ("nodeid", "test"),
    [
        ("a.py::test[read-error-first]", "a.py::test"),
        ("a.py::test[coco-read-error-first]", "a.py::test[coco]"),
        ("a.py::test[read-error-first-coco]", "a.py::test[coco]"),
        ("a.py::test[a-read-error-first-b]", "a.py::test[a-b]"),
    ],
)
def test_items_of_one_test_belong_together(nodeid, test):
    """Wherever the name of the check is among the parameters."""
    assert list(causes([_report(nodeid, "read-error-first", "x")])) == [test]


def test_most_frequent_cause_comes_first_and_lines_are_short():
    """However many checks there are, and whatever else failed."""
    many = [f"check-number-{number}" for number in range(20)]
    reports = [_report(f"a.py::test[{each}]", each, "gives zeros") for each in many]
    reports.insert(0, _report("a.py::test[growth]", "growth", "leaves something behind"))
    reports.append(SimpleNamespace(nodeid="b.py::other", user_properties=[]))
    told = list(lines(causes(reports)))

    assert told[0] == "a.py::test"
    assert told[1].startswith("  20 checks: gives zeros: check-number-0, check-number-1, ")
    assert told[-1] == "  1 check: leaves something behind: growth"
    assert max(map(len, told)) <= 100
    assert re.findall(r"check-number-\d+", " ".join(told)) == many
