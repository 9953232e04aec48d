"""How the marker, options and ini values choose and configure items, and which are refused."""

import fnmatch
import re

import pytest

from pytest_dataloader_faults import plugin
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from pytest_dataloader_faults.plugin import _items, _options
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


def test_bad_arguments_are_errors_of_the_test(light_suite, engine):
    for fixture, refused in (("fault_check", REFUSED), ("read_errors", REFUSED_BY_FIXTURES)):
        sources = {
            f"test_{number}": MARKED.format(arguments=arguments, fixture=fixture)
            for number, (arguments, _) in enumerate(refused)
        }
        light_suite.pytester.makepyfile(**sources)
        result = light_suite.again(*(f"{name}.py" for name in sources))
        result.assert_outcomes(errors=len(refused))
        _, *errors = re.split(r"^_+ ERROR .*_+$", result.stdout.str(), flags=re.MULTILINE)
        for (_, message), text in zip(refused, errors, strict=True):
            pattern = message.replace("*marker: *", "*@pytest.mark.dataloader_faults")
            pytest.LineMatcher(text.splitlines()).fnmatch_lines([pattern])
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


PLAIN = "def test_plain(): pass"
REFUSED_OPTIONS = [
    ("deadline", "-1", "a positive number of seconds, or 'auto'"),
    ("deadline", "nan", "a positive number of seconds, or 'auto'"),
    ("deadline", "soon", "a positive number of seconds, or 'auto'"),
    ("seed", "-1", "an int from 0 to 2**32 - 1"),
    ("seed", "1.5", "an int from 0 to 2**32 - 1"),
    ("samples", "0", "an int, 1 or more, or 'all'"),
    ("samples", "few", "an int, 1 or more, or 'all'"),
    ("flaky", "maybe", "one of ('warn', 'fail')"),
    ("flaky", "no", "one of ('warn', 'fail')"),
]


def _require_usage_error(result, text):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [f"ERROR: {text}"]


@rows(("name", "value", "allowed"), REFUSED_OPTIONS)
def test_bad_options_are_usage_errors(light_suite, name, value, allowed):
    flag = f"--dataloader-faults-{name}"
    text = f"{name}='{value}' from {flag} must be {allowed}"
    _require_usage_error(light_suite.run(PLAIN, f"{flag}={value}"), text)


EMPTY = [(name, "", allowed) for name, _, allowed in REFUSED_OPTIONS[1::2]]


@rows(("name", "value", "allowed"), [*REFUSED_OPTIONS[::2], *EMPTY])
def test_bad_ini_values_are_usage_errors(light_suite, name, value, allowed):
    """Also below a good option."""
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} = {value}")
    text = f"{name}='{value}' from ini key dataloader_faults_{name} must be {allowed}"
    _require_usage_error(light_suite.run(PLAIN, "--dataloader-faults-deadline=5"), text)


def test_a_report_does_not_overwrite_the_baseline(light_suite):
    (light_suite.pytester.path / "known.json").write_text("{}")
    paths = "--dataloader-faults-report=./known.json", "--dataloader-faults-baseline=known.json"
    text = "report='known.json' would overwrite the baseline. Pass another file for the report"
    _require_usage_error(light_suite.run(PLAIN, *paths), text)


def _words(result) -> str:
    return " ".join(result.stdout.str().split())


def test_options_have_a_group_of_their_own(light_suite):
    words = _words(light_suite.again("--help"))
    start = words.index("storage and process faults under PyTorch DataLoaders:")
    group, _, ini = words[start:].partition(" [pytest] ")
    for name, values, default in (("deadline", "SECONDS|auto", "auto"), ("seed", "N", "0")):
        option = f"--dataloader-faults-{name}={values} "
        assert option in group
        assert f"(default: {default})" in group.partition(option)[2]
        assert f"dataloader_faults_{name} (string):" in ini
    assert (
        "--dataloader-faults-require-gpu fail tests marked gpu, instead of skipping them, if"
        in group
    )


def test_fixtures_have_a_first_paragraph(light_suite):
    """``pytest --fixtures`` says of each fixture what it does, and how to call it."""
    output = light_suite.again("--fixtures", "-v").stdout.str()
    section = output.partition("pytest_dataloader_faults.plugin")[2]
    texts = dict(re.findall(r"^(\w+) -- .*\n((?:    .*\n)+)", section, re.MULTILINE))
    assert texts["fault_check"].strip().startswith("Run one check of the battery: ")
    for name in plugin._FAULT_FIXTURES:
        assert " ".join(texts[name].split()).startswith(f"``{name}(...)``: "), texts[name]
    section = section.partition("fixtures defined from")[0]
    assert "no docstring available" not in section
    assert max(len(line) for line in section.splitlines() if " -- " not in line) <= 80


def test_markers_are_listed(light_suite):
    names = ", ".join(f"{name}=..." for name in _options.ARGUMENTS)
    assert names == (
        "only=..., exclude=..., expected_failures=..., samples=..., deadline=..., seed=...,"
        " ranks=..., flaky=..."
    )
    result = light_suite.again("--markers")
    words = _words(result)
    assert f"@pytest.mark.dataloader_faults({names}): " in words
    line = "*@pytest.mark.gpu: the test needs an accelerator*--dataloader-faults-require-gpu*"
    assert fnmatch.fnmatch(words, line)


CHOSEN = """
import pytest

mark = pytest.mark.dataloader_faults

def test_plain(fault_check): pass
@mark(only=["open-error", "pickles"])
def test_only(fault_check): pass
@mark(exclude="pickles")
def test_exclude(fault_check): pass
def test_of_no_check(): pass
"""


@rows(
    ("options", "plain", "only", "exclude"),
    [
        (["only=open-error,pickles"], "open-error pickles", "open-error pickles", "open-error"),
        (["only=open-*"], "open-error", "open-error", "open-error"),
        (["only=stray-entries"], "stray-entries", "", "stray-entries"),
        (["only=listings", "exclude=stray-*"], "listing-order", "", "listing-order"),
        # The last one wins, as that on the command line over the one in addopts.
        (["only=pickles", "only=open-error"], "open-error", "open-error", "open-error"),
    ],
)
def test_options_select_from_the_checks_of_each_test(
    light_suite, engine, options, plain, only, exclude
):
    chosen = [f"--dataloader-faults-{each}" for each in options]
    result = light_suite.run(CHOSEN, "--collect-only", "-q", *chosen)
    collected = [line.partition("::test_")[2] for line in result.outlines if "::" in line]
    expected = {"plain": plain, "only": only, "exclude": exclude}
    items = [f"{name}[{check}]" for name in expected for check in expected[name].split()]
    assert sorted(collected) == sorted([*items, "of_no_check"])


def test_wrong_checks_are_usage_errors(light_suite):
    """They are found before the tests are collected."""
    only = "--dataloader-faults-only"
    wrong = light_suite.run(PLAIN, f"{only}=open-eror")
    empty, unmatched = (light_suite.again(f"{only}={each}") for each in (", ", "opn-*"))
    none_left = light_suite.again(f"{only}=pickles", "--dataloader-faults-exclude=pickles")
    assert {wrong.ret, empty.ret, unmatched.ret, none_left.ret} == {pytest.ExitCode.USAGE_ERROR}
    message = f"{only} contains 'open-eror', which is not a check. Did you mean 'open-error' or"
    assert f"ERROR: {message}" in wrong.stderr.str()
    assert not wrong.outlines
    assert f"{only} contains 'opn-*', which matches no check: workers-a" in unmatched.stderr.str()
    assert f"ERROR: {only}=', ' must name one or more checks" in empty.stderr.str()
    assert "leave no check to run. Keep at least one" in none_left.stderr.str()
