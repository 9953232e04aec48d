"""The marker: which items a test becomes, what it refuses, and how it splits a run."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS

ONE = """
import pytest


@pytest.mark.dataloader_faults({arguments})
def test_one(fault_check):
    pass
"""

MERGED = """
import pytest

pytestmark = pytest.mark.dataloader_faults(
    only=["pickles", "open-error", "worker-killed-first"], exclude="pickles"
)


@pytest.mark.dataloader_faults(exclude="worker-killed-first")
def test_merged(fault_check):
    pass


@pytest.mark.dataloader_faults(only=["pickles", "workers-agree"])
def test_replaced(fault_check):
    pass
"""

SPLIT = """
import pytest


@pytest.mark.dataloader_faults(only=["pickles", "open-error"])
def test_battery(fault_check):
    pass


def test_by_fixture(eio_reads):
    pass


def test_by_injector(dataloader_faults):
    pass


@pytest.fixture
def wrapped(killed_workers):
    return killed_workers


def test_by_another_fixture(wrapped):
    pass


def test_plain(tmp_path):
    pass


class TestGrouped:
    def test_plain(self):
        pass
"""

OURS = [
    "test_inner.py::test_battery[pickles]",
    "test_inner.py::test_battery[open-error]",
    "test_inner.py::test_by_fixture",
    "test_inner.py::test_by_injector",
    "test_inner.py::test_by_another_fixture",
]
OTHERS = ["test_inner.py::test_plain", "test_inner.py::TestGrouped::test_plain"]


def _collected(result) -> list[str]:
    return [line for line in result.outlines if "::" in line and " " not in line]


def _checks(result) -> list[str]:
    return [nodeid.partition("[")[2].rstrip("]") for nodeid in _collected(result)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", list(CHECKS)),
        ("only='open-error'", ["open-error"]),
        ("only=['worker-killed-first', 'open-error']", ["open-error", "worker-killed-first"]),
        ("exclude='pickles'", [name for name in CHECKS if name != "pickles"]),
        ("only=('pickles', 'open-error'), exclude={'pickles'}", ["open-error"]),
        ("expected_failures={'pickles': 'a lambda'}", list(CHECKS)),
    ],
)
def test_only_and_exclude_choose_the_items(light_suite, arguments, expected):
    """The test becomes one item per chosen check, in the battery's order."""
    assert expected == _checks(light_suite.run(ONE.format(arguments=arguments), "--co", "-q"))


def test_markers_are_merged_argument_by_argument(light_suite):
    """A closer marker replaces the arguments it gives and keeps the others."""
    result = light_suite.run(MERGED, "--collect-only", "-q")
    assert _collected(result) == [
        "test_inner.py::test_merged[pickles]",
        "test_inner.py::test_merged[open-error]",
        "test_inner.py::test_replaced[workers-agree]",
    ]


@pytest.mark.parametrize(
    "arguments",
    ["only=()", "only=[]", "only='pickles', exclude='pickles'"],
)
def test_no_check_at_all_is_no_pass(light_suite, arguments):
    """A marker that leaves no check is refused when the test is collected."""
    result = light_suite.run(ONE.format(arguments=arguments))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_inner.py::test_one: only=* leave no check to run. *"])


@pytest.mark.parametrize("argument", ["only", "exclude", "expected_failures"])
def test_unknown_checks_are_refused_with_suggestions(light_suite, argument):
    """A name that is no check stops the collection of the test and says which were meant."""
    value = (
        "{'read-eror-first': 'known'}" if argument == "expected_failures" else "'read-eror-first'"
    )
    result = light_suite.run(ONE.format(arguments=f"{argument}={value}"))
    result.assert_outcomes(errors=1)
    message = f"{argument} names 'read-eror-first', which is no check. Did you mean"
    result.stdout.fnmatch_lines([f"*test_inner.py::test_one: {message} [[]'read-error-first'*"])


def test_a_name_unlike_any_check_lists_them_all(light_suite):
    """Where nothing is near, the battery is listed."""
    result = light_suite.run(ONE.format(arguments="only='zzz'"))
    result.stdout.fnmatch_lines(["*only names 'zzz', which is no check. Choose from [[]*"])
    assert all(name in result.stdout.str() for name in CHECKS)


@pytest.mark.parametrize("fixture", ["fault_check", "dataloader_faults"])
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [("onyl='pickles'", "*unexpected keyword argument 'onyl'*"), ("'pickles'", "*positional*")],
)
def test_unknown_arguments_are_refused(light_suite, engine, fixture, arguments, complaint):
    """An argument the marker does not take is an error that lists those it takes."""
    source = ONE.format(arguments=arguments).replace("fault_check", fixture)
    result = light_suite.run(source)
    result.assert_outcomes(errors=1)
    takes = "Give arguments by keyword: dataloader_faults(only=..., exclude=..., *"
    result.stdout.fnmatch_lines([f"*@pytest.mark.dataloader_faults: {complaint}{takes}"])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("dataloader_faults", OURS), ("not dataloader_faults", OTHERS)],
)
def test_the_marker_splits_a_run(light_suite, expression, expected):
    """Every item that uses a fixture of the plugin is selected by -m, and no other."""
    assert expected == _collected(light_suite.run(SPLIT, "--co", "-q", "-m", expression))
