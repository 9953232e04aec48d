"""The marker: which items a test becomes, how they are chosen, and which value holds."""

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


def test_by_fixture(read_errors):
    pass


def test_by_injector(fault_injector):
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
    assert expected == _checks(light_suite.run(ONE.format(arguments=arguments), "--co", "-q"))


def test_markers_are_merged_argument_by_argument(light_suite):
    result = light_suite.run(MERGED, "--collect-only", "-q")
    assert _collected(result) == [
        "test_inner.py::test_merged[pickles]",
        "test_inner.py::test_merged[open-error]",
        "test_inner.py::test_replaced[workers-agree]",
    ]


@pytest.mark.parametrize("arguments", ["only=()", "only=[]", "only='pickles', exclude='pickles'"])
def test_no_check_at_all_is_no_pass(light_suite, arguments):
    result = light_suite.run(ONE.format(arguments=arguments))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_inner.py::test_one: only=* leave no check to run. *"])


@pytest.mark.parametrize("argument", ["only", "exclude", "expected_failures"])
def test_unknown_checks_are_refused_with_suggestions(light_suite, argument):
    value = (
        "{'read-eror-first': 'known'}" if argument == "expected_failures" else "'read-eror-first'"
    )
    result = light_suite.run(ONE.format(arguments=f"{argument}={value}"))
    result.assert_outcomes(errors=1)
    message = f"{argument} contains 'read-eror-first', which is not a check. Did you mean"
    result.stdout.fnmatch_lines([f"*test_inner.py::test_one: {message} 'read-error'*"])


def test_a_name_unlike_any_check_lists_them_all(light_suite):
    result = light_suite.run(ONE.format(arguments="only='zzz'"))
    result.stdout.fnmatch_lines(
        ["*only contains 'zzz', which is not a check. Choose from workers-agree, *"]
    )
    assert all(name in result.stdout.str() for name in CHECKS)


@pytest.mark.parametrize(
    ("fixture", "arguments", "complaint"),
    [
        ("fault_check", "onyl='pickles'", "*unexpected keyword argument 'onyl'*"),
        ("fault_injector", "'pickles'", "*positional*"),
    ],
)
def test_unknown_arguments_are_refused(light_suite, engine, fixture, arguments, complaint):
    source = ONE.format(arguments=arguments).replace("fault_check", fixture)
    result = light_suite.run(source)
    result.assert_outcomes(errors=1)
    takes = "Pass arguments by keyword: dataloader_faults(only=..., exclude=..., *"
    result.stdout.fnmatch_lines([f"*@pytest.mark.dataloader_faults: {complaint}{takes}"])


@pytest.mark.parametrize(
    ("expression", "expected"), [("dataloader_faults", OURS), ("not dataloader_faults", OTHERS)]
)
def test_the_marker_splits_a_run(light_suite, expression, expected):
    assert expected == _collected(light_suite.run(SPLIT, "--co", "-q", "-m", expression))


SUITE = """
import pytest


@pytest.mark.dataloader_faults(only=["open-error", "workers-agree"])
def test_x(fault_check, request):
    assert "open-error" not in request.node.name
    fault_check(lambda: range(8))
"""
PARAMETRIZED = """
import pytest


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.dataloader_faults(only=["open-error", "pickles"])
class TestGrouped:
    def test_x(self, fault_check, size):
        pass
"""


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("read-error", [name for name in CHECKS if "read-error" in name]),
        ("test_x and truncated", [name for name in CHECKS if name.startswith("truncated-")]),
        ("test_x[open-error]", ["open-error"]),
    ],
)
def test_k_selects_by_check(light_suite, expression, expected):
    result = light_suite.run("def test_x(fault_check): pass", "--co", "-q", "-k", expression)
    assert _collected(result) == [f"test_inner.py::test_x[{name}]" for name in expected]


@pytest.mark.usefixtures("engine")
def test_a_node_id_is_one_item(light_suite):
    """The id of an item, as pytest prints it, selects it."""
    light_suite.pytester.makepyfile(test_inner="def test_x(fault_check): pass")
    nodeid = "test_inner.py::test_x[descriptor-exhaustion]"
    assert _collected(light_suite.again("--co", "-q", nodeid)) == [nodeid]


@pytest.mark.usefixtures("engine")
def test_checks_multiply_with_the_tests_own_parameters(light_suite):
    items = _collected(light_suite.run(PARAMETRIZED, "--co", "-q"))
    assert sorted(items) == sorted(
        f"test_inner.py::TestGrouped::test_x[{check}-{size}]"
        for size in (1, 2)
        for check in ("pickles", "open-error")
    )


@pytest.mark.usefixtures("engine")
def test_last_failed_reruns_the_failed_checks(suite):
    suite.run(SUITE).assert_outcomes(passed=1, failed=1)
    result = suite.again("--lf", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_inner.py::test_x[[]open-error] FAILED*"])


PRECEDENCE = """
import pytest
from support.plugin_datasets import Numbers

pytestmark = pytest.mark.dataloader_faults(only="workers-agree", samples=9)


def show(name, fault_check):
    request = fault_check(Numbers, loader={"num_workers": 1, "batch_size": 16}).outcome.request
    print(f"\\n{name}: deadline {request.deadline}, seed {request.seed}")


def test_unmarked(fault_check):
    show("unmarked", fault_check)


@pytest.mark.dataloader_faults(deadline=43)
class TestMarked:
    def test_by_its_class(self, fault_check):
        show("by its class", fault_check)

    @pytest.mark.dataloader_faults(deadline=44)
    def test_by_itself(self, fault_check):
        show("by itself", fault_check)

    @pytest.mark.dataloader_faults(samples=8)
    def test_by_both(self, fault_check):
        show("by both", fault_check)
"""
INI = "[pytest]\ndataloader_faults_deadline = 41\ndataloader_faults_seed = 6\n"
OPTIONS = ("--dataloader-faults-deadline=42", "--dataloader-faults-seed=7")


@pytest.mark.parametrize(
    ("ini", "options", "deadline", "seed"),
    [
        pytest.param(INI, (), 41.0, 6, id="ini"),
        pytest.param(INI, OPTIONS, 42.0, 7, id="option-over-ini"),
    ],
)
def test_the_strongest_source_holds(suite, engine, ini, options, deadline, seed):
    suite.pytester.makeini(ini)
    result = suite.run(PRECEDENCE, "-s", *options)
    result.assert_outcomes(passed=4)
    lines = [line for line in result.outlines if ": deadline" in line]
    assert lines == [
        f"unmarked: deadline {deadline}, seed {seed}",
        f"by its class: deadline 43.0, seed {seed}",
        f"by itself: deadline 44.0, seed {seed}",
        f"by both: deadline 43.0, seed {seed}",
    ]
