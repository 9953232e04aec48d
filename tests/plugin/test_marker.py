"""The marker: which items a test becomes, how they are chosen, and which value holds."""

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from pytest_dataloader_faults.plugin import _items
from support.rows import rows

SUITE = """
import pytest

mark = pytest.mark.dataloader_faults

def test_all(fault_check): pass
@mark(only="open-error")
def test_one(fault_check): pass
@mark(only=["worker-killed-sending", "open-error"])
def test_two(fault_check): pass
@mark(exclude="pickles")
def test_others(fault_check): pass
@mark(only=("pickles", "open-error"), exclude={"pickles"})
def test_both(fault_check): pass
@mark(expected_failures={"pickles": "a lambda"})
def test_expected(fault_check): pass

@mark(only=["pickles", "open-error", "worker-killed-sending"], exclude="pickles")
class TestOuter:
    @mark(exclude="worker-killed-sending")
    def test_merged(self, fault_check): pass
    @mark(only=["pickles", "workers-agree"])
    def test_replaced(self, fault_check): pass

@mark(only=["open-error", "pickles"])
@pytest.mark.parametrize("size", [1, 2])
class TestGrouped:
    def test_sizes(self, fault_check, size): pass

def test_by_fixture(read_errors): pass
def test_by_injector(fault_injector): pass
@pytest.fixture
def wrapped(open_errors): pass
def test_by_another_fixture(wrapped): pass
def test_plain(tmp_path): pass
class TestPlain:
    def test_plain(self): pass
"""
ALL = [name for name in CHECKS if name not in {*GROUPS["ranks"], "pin-memory"}]
"""Without ranks and an accelerator."""
ITEMS = {
    "all": ALL,
    "one": ["open-error"],
    "two": ["open-error", "worker-killed-sending"],
    "others": [name for name in ALL if name != "pickles"],
    "both": ["open-error"],
    "expected": ALL,
    "merged": ["pickles", "open-error"],
    "replaced": ["workers-agree"],
    "sizes": ["pickles-1", "open-error-1", "pickles-2", "open-error-2"],
    "by_fixture": [""],
    "by_injector": [""],
    "by_another_fixture": [""],
}


def _collected(result) -> dict[str, list[str]]:
    """The parameters of the items of each test."""
    lines = [line for line in result.outlines if "::" in line and " " not in line]
    items: dict[str, list[str]] = {}
    for line in lines:
        name, _, parameters = line.rpartition("::test_")[2].partition("[")
        items.setdefault(name, []).append(parameters.rstrip("]"))
    return items


@pytest.fixture(name="collect")
def _collect(light_suite, engine, monkeypatch):
    monkeypatch.setattr(_items, "_DEVICE_NODES", ["no-such-device"])
    light_suite.pytester.makepyfile(test_inner=SUITE)
    return lambda *options: _collected(
        light_suite.again("--co", "-q", "--strict-markers", *options)
    )


def test_the_marker_chooses_the_items_and_splits_a_run(collect):
    """Markers are merged argument by argument. Checks multiply with a test's own parameters."""
    collected = collect("-m", "dataloader_faults")
    assert {name: sorted(each) for name, each in collected.items()} == {
        name: sorted(each) for name, each in ITEMS.items()
    }
    assert collected["all"] == ALL
    assert collect("-m", "not dataloader_faults") == {"plain": ["", ""]}


@rows(
    ("expression", "expected"),
    [
        ("test_all and read-error", [name for name in ALL if "read-error" in name]),
        ("test_all[open-error]", ["open-error"]),
    ],
)
def test_k_selects_by_check(collect, expression, expected):
    assert collect("-k", expression) == {"all": expected}


RANKS = GROUPS["ranks"]


@rows(
    ("options", "expected"),
    [
        (["--dataloader-faults-ranks=2"], [*ALL, *RANKS]),
        (["--dataloader-faults-require-gpu"], [*ALL, "pin-memory"]),
        (["--dataloader-faults-only=ranks"], list(RANKS)),
        (["--dataloader-faults-only=pin-memory,*-descriptor"], ["closed-descriptor", "pin-memory"]),
    ],
)
def test_checks_that_cannot_run_are_collected_if_they_are_named(collect, options, expected):
    assert sorted(collect(*options)["all"]) == sorted(expected)


def test_a_node_id_is_one_item(collect):
    """The id of an item, as pytest prints it, selects it."""
    assert collect("test_inner.py::test_all[descriptor-exhaustion]") == {
        "all": ["descriptor-exhaustion"]
    }


MARKED = """
import pytest

@pytest.mark.dataloader_faults({arguments})
def test_marked({fixture}):
    pass
"""
KEYWORDS = "Pass arguments by keyword: dataloader_faults(only=..., exclude=..., *"
TYPO = "contains 'read-eror-first', which is not a check. Did you mean 'read-error'*"
REFUSED = [
    ("only=()", "*::test_marked: only=* leave no check to run. *"),
    ("only='pickles', exclude='pickles'", "*::test_marked: only=* leave no check to run. *"),
    ("only='read-eror-first'", f"*::test_marked: only {TYPO}"),
    ("exclude='read-eror-first'", f"*::test_marked: exclude {TYPO}"),
    ("expected_failures={'read-eror-first': 'known'}", f"* expected_failures {TYPO}"),
    ("only='zzz'", "*only contains 'zzz', which is not a check. Choose from workers-agree, *"),
    ("onyl='pickles'", f"*marker: *: *unexpected keyword argument 'onyl'*{KEYWORDS}"),
    ("deadline='soon'", "*deadline='soon' from *dataloader_faults must be a positive number of*"),
    ("deadline=10**400", "*deadline=1000*from *dataloader_faults must be a positive*"),
]
REFUSED_BY_FIXTURES = [
    ("'pickles'", f"*@pytest.mark.dataloader_faults: *positional*{KEYWORDS}"),
    ("deadline=[1]", "*deadline=[[]1] from @pytest.mark.dataloader_faults must be a *number*"),
    ("deadline=True", "*deadline=True from @pytest.mark.dataloader_faults must be a positive*"),
    ("seed=2.9", "*seed=2.9 from @pytest.mark.dataloader_faults must be an int*"),
    ("samples=True", "*samples=True from @pytest.mark.dataloader_faults must be an int*"),
]


@rows(
    ("fixture", "arguments", "message"),
    [("fault_check", *each) for each in REFUSED]
    + [("read_errors", *each) for each in REFUSED_BY_FIXTURES],
)
def test_bad_arguments_are_errors_of_the_test(light_suite, engine, fixture, arguments, message):
    result = light_suite.run(MARKED.format(arguments=arguments, fixture=fixture))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message.replace("*marker: *", "*@pytest.mark.dataloader_faults")])
    assert "_options.py" not in result.stdout.str()


PRECEDENCE = """
import pytest
from support.plugin_datasets import Numbers

mark = pytest.mark.dataloader_faults
pytestmark = mark(only="workers-agree", samples=9)

def show(name, fault_check):
    request = fault_check(Numbers, loader={"num_workers": 1, "batch_size": 16}).outcome.request
    print(f"\\n{name}: deadline {request.deadline}, seed {request.seed}")

def test_unmarked(fault_check):
    show("unmarked", fault_check)

@mark(deadline=43)
class TestMarked:
    @mark(deadline=44)
    def test_by_itself(self, fault_check):
        show("by itself", fault_check)

    @mark(samples=8)
    def test_by_both(self, fault_check):
        show("by both", fault_check)

@mark(only=["open-error", "workers-agree"])
def test_last_failed(fault_check, request):
    assert "open-error" not in request.node.name
    fault_check(lambda: range(8))
"""


def test_the_strongest_source_holds(suite, engine):
    """A marker, an option, the ini file. Only what failed is run again by --lf."""
    suite.pytester.makeini(
        "[pytest]\ndataloader_faults_deadline = 41\ndataloader_faults_seed = 6\n"
    )
    result = suite.run(PRECEDENCE, "-s", "--dataloader-faults-seed=7")
    result.assert_outcomes(passed=4, failed=1)
    assert [line for line in result.outlines if ": deadline" in line] == [
        "unmarked: deadline 41.0, seed 7",
        "by itself: deadline 44.0, seed 7",
        "by both: deadline 43.0, seed 7",
    ]
    again = suite.again("--lf", "-v")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["test_inner.py::test_last_failed[[]open-error] FAILED*"])
