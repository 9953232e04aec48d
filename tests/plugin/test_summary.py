"""What pytest shows at its end: how each dataset was tried, and what failures have in common."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults.plugin._report import _without

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "truncated-empty"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))
"""
TITLE = "= dataloader-faults ="
IN_PLACE = "gives a sample in place of one that cannot be read: open-error"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("spread", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_dataset_has_a_line_and_each_cause(suite, spread, monkeypatch):
    """Also with -q, and where pytest-xdist spreads the items."""
    monkeypatch.setenv("COLUMNS", "100")
    if spread:
        pytest.importorskip("xdist")
    result = suite.run(SUITE, "-q", *(["-p", "xdist", "-n", "2"] if spread else []))
    found = result.stdout.str().partition(TITLE)[2].splitlines()[1:]
    assert "engine" in found[0]
    assert found[1].startswith("test_inner.py::test_files[Records]: ")
    told = "2 of 3 checks failed (2 corrupted), 1 passed (1 survived);"
    assert found[2].startswith(f"test_inner.py::test_files[ZerosOnError]: {told}")
    assert any(IN_PLACE in line for line in found)
    assert "workers-agree" not in "".join(line for line in found if not line.startswith("FAILED"))


@pytest.mark.usefixtures("engine")
def test_with_v_there_is_a_table(suite):
    """Checks down, datasets across; what passed has its verdict."""
    result = suite.run(SUITE, "-v", "--durations=2")
    rows = [line.split() for line in result.outlines]
    assert ["test_files[Records]", "test_files[ZerosOnError]"] in rows
    assert ["open-error", "failed_cleanly", "corrupted"] in rows
    assert sum("s trial    test_inner.py::test_files" in line for line in result.outlines) == 2


@pytest.mark.usefixtures("engine")
def test_nothing_is_said_where_no_check_was_asked(suite):
    """Whatever else failed."""
    failed = suite.run("def test_plain(): assert False", "-q")
    assert failed.ret == 1
    assert TITLE not in failed.stdout.str()


CANNOT_RUN = """
import pytest
from support.datasets import Records

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "pickles"])


def fails():
    raise LookupError("no such folder")


@pytest.fixture
def broken():
    raise LookupError("no such folder")


def test_factory(fault_check):
    fault_check(fails)


def test_fixture(fault_check, broken):
    fault_check(broken)


def test_one_of_two(fault_check, request, records):
    if request.node.name == "test_one_of_two[pickles]":
        fails()
    fault_check(lambda: Records(records))
"""


@pytest.mark.usefixtures("engine")
def test_what_could_not_run_is_counted_and_not_told_again(suite, monkeypatch):
    """The error stands above, and in pytest's short summary; ours has one line for each test."""
    monkeypatch.setenv("COLUMNS", "100")
    text = suite.run(CANNOT_RUN, "-q").stdout.str()
    found = text.partition(TITLE)[2].partition("= short test")[0]
    assert "no such folder" in text
    assert "no such folder" not in found
    told = re.split(r"; [\d.]+ s\n", found.replace("\n    ", " "))
    could_not = "could not be run (see the error above)"
    factory, fixture, mixed, rest = told
    assert factory.endswith(f"\ntest_inner.py::test_factory: 3 checks {could_not}")
    assert fixture == f"test_inner.py::test_fixture: 3 checks {could_not}"
    others = "2 checks passed (1 survived, 1 failed_cleanly)"
    assert mixed == f"test_inner.py::test_one_of_two: {others}, 1 {could_not}"
    assert not rest.strip("=")


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
    assert _without(nodeid, "read-error-first") == test
