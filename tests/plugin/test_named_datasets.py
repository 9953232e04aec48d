"""Datasets that the command line names: items like others, with no test file."""

from __future__ import annotations

import json

import pytest

OPTION = "--dataloader-faults-dataset"
FEW = "--dataloader-faults-only=workers-agree,open-error"
DATA = """
from pathlib import Path

from support.datasets import Records, write_records
from support.plugin_datasets import ZerosOnError

FOLDER = Path(__file__).parent / "records"
if not FOLDER.exists():
    write_records(FOLDER)


def make_records():
    return Records(FOLDER)


def make_zeros():
    return ZerosOnError(FOLDER)
"""
NAMED = [f"{OPTION}=my_data:{name}" for name in ("make_records", "make_zeros")]
IDS = [
    "my_data:make_records::workers-agree",
    "my_data:make_records::open-error",
    "my_data:make_zeros::workers-agree",
    "my_data:make_zeros::open-error",
]


@pytest.fixture(name="named")
def _named(suite):
    """A place with a module of datasets, and a test file that would fail."""
    suite.pytester.makepyfile(my_data=DATA, test_inner="def test_file(): assert False")
    return suite


def _ids(result) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.usefixtures("engine")
def test_datasets_are_tried_with_no_test_file(named):
    """Their items have a summary, a table and a report; what fails has a command, and --lf."""
    result = named.again("-v", *NAMED, FEW, "--dataloader-faults-report=r.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{IDS[0]} PASSED (survived) *",
            f"{IDS[3]} FAILED (corrupted) *",
            f"  reproduce: pytest {NAMED[1]} --dataloader-faults-only=open-error",
            "my_data:make_records: 2 checks passed (1 survived, 1 failed_cleanly); *",
            "my_data:make_zeros: 1 of 2 checks failed (1 corrupted), 1 passed *",
            "open-error     failed_cleanly        corrupted*",
        ]
    )
    items = json.loads((named.path / "r.json").read_text())["items"]
    assert [each["nodeid"] for each in items] == IDS
    assert {each["test"] for each in items} == {each.partition("::")[0] for each in IDS}
    assert items[0]["file"] == "my_data.py"
    assert _ids(named.again("-q", "--collect-only", "--lf", *NAMED, FEW)) == IDS[3:]


SELECTED = [
    ((), IDS),
    (("test_inner.py",), ["test_inner.py::test_file", *IDS]),
    (("-k", "make_zeros"), IDS[2:]),
    (("-k", "open-error"), IDS[1::2]),
    (("-m", "dataloader_faults", "."), IDS),
    (("-m", "gpu"), []),
]


@pytest.mark.parametrize(("options", "expected"), SELECTED)
def test_options_select_their_items(named, options, expected):
    """As they select others. Without a path, no file is collected."""
    named.pytester.makeini("[pytest]\ntestpaths = test_inner.py")
    assert _ids(named.again("-q", "--collect-only", *NAMED, FEW, *options)) == expected


CONFTEST = """
def pytest_collection_modifyitems(items):
    for item in items:
        print(item.function.__name__, item.module.__name__, item.cls, *item.fixturenames)
"""


def test_hooks_read_them_as_test_functions(named):
    """The header says that no file is collected; --collect-only writes no report."""
    named.pytester.makeconftest(CONFTEST)
    options = "--dataloader-faults-only=workers-agree, pickles", "--dataloader-faults-report=r.md"
    result = named.again("--collect-only", NAMED[0], *options)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines.count("make_records my_data None") == 2
    result.stdout.fnmatch_lines(["dataloader-faults: no test file, as no path is given; my_data:*"])
    result.stdout.no_fnmatch_line("report: *")
    with_file = named.again("--collect-only", NAMED[0], "test_inner.py")
    assert "no test file" not in with_file.stdout.str()


ODD = """
def boom():
    raise LookupError("no such folder")


def nothing():
    return None


class Listed(list):
    def __init__(self):
        super().__init__(range(8))


ready = Listed()
"""


@pytest.mark.usefixtures("engine")
def test_what_they_may_name(suite):
    """A function, a class that needs no argument, or a dataset. What gives none is named once."""
    suite.pytester.makepyfile(my_data=ODD)
    named = [f"{OPTION}=my_data:{name}" for name in ("boom", "nothing", "Listed", "ready")]
    result = suite.again(
        "-rs", *named, "--dataloader-faults-only=persistent-workers,two-epochs,workers-agree"
    )
    result.assert_outcomes(failed=2, skipped=4, passed=6)
    unasked = "not asked, for the dataset cannot be tried: see my_data"
    result.stdout.fnmatch_lines(
        [
            "make_dataset at */my_data.py:5 gave None, which is no dataset*",
            "my_data:boom: 3 checks could not be run (see the error above); *",
            f"SKIPPED [[]2[]] my_data.py:1: {unasked}:boom::*",
            f"SKIPPED [[]2[]] my_data.py:5: {unasked}:nothing::*",
        ]
    )


def test_checks_are_left_out(named):
    """Options choose checks of these datasets. One that needs a GPU is marked so."""
    asked = named.again("-q", "--collect-only", NAMED[0], "--dataloader-faults-exclude=open-error")
    assert IDS[0] in _ids(asked)
    assert IDS[1] not in _ids(asked)
    marked = named.again("-q", "--collect-only", NAMED[0], "-m", "gpu")
    assert _ids(marked) == ["my_data:make_records::pinned"]


@pytest.mark.usefixtures("engine")
def test_an_object_that_cannot_be_tried_is_named_by_the_command_line(suite):
    """The error points to no line of the plugin, which handed the object over."""
    suite.pytester.makepyfile(my_list="made = [lambda: 3]")
    result = suite.again(f"{OPTION}=my_list:made", "--dataloader-faults-only=two-epochs")
    result.stdout.fnmatch_lines(["make_dataset gave a list of functions, and not *(...)[]]"])


WRONG = """
class Data:
    def __getitem__(self, index): return index
    def make(self): return self


ready = Data()


def make_two(one, two): ...
def make_data(): return Data()
"""
REFUSED = [
    ("my_data", "must be module:function, such as my_package.data:make_dataset"),
    ("src/my_data:make_data", "and not by its path"),
    ("my_dta:make_data", "there is no module 'my_dta' in"),
    ("my_data.py:make_data", "Leave out '.py'"),
    ("broken:make_data", "importing broken raised ZeroDivisionError: division by zero"),
    ("lacking:make_data", "ModuleNotFoundError: No module named 'nowhere' at "),
    ("lacking:make_data", "lacking.py:1\n"),
    ("skipped:make_data", "importing skipped raised Skipped: no data at "),
    ("my_data:Dta", "my_data has no 'Dta'. Did you mean 'Data'?"),
    ("my_data:mke_data", "my_data has no 'mke_data'. Did you mean 'make_data' or 'make_two'?"),
    ("my_data:zzz", "Its functions and classes: Data, make_data, make_two"),
    ("importing:itertool", "Its functions and classes: Chained"),
    ("importing:Chaind", "importing has no 'Chaind'. Did you mean 'Chained'?"),
    ("importing:make", "importing has no 'make'. Its functions and classes: Chained"),
    ("empty:make", "empty has no 'make'. It defines no function and no class"),
    ("my_data:Data.make", "write a function at the top of the module"),
    ("my_data:make_two", "make_two requires 2 arguments (one, two)"),
    ("my_data:make_two", "such as lambda: make_two(...)"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED)
def test_wrong_names_are_usage_errors(light_suite, value, problem):
    """The error shows the value, and what is wrong with it; nothing is collected."""
    skipped = "import pytest; pytest.skip('no data', allow_module_level=True)"
    light_suite.pytester.makepyfile(
        my_data=WRONG,
        broken="1 / 0",
        lacking="import nowhere",
        skipped=skipped,
        importing="import itertools\nclass Chained: pass",
        empty="",
    )
    result = light_suite.again(f"{OPTION}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: dataset={value!r} from {OPTION} " in result.stderr.str()
    assert problem in result.stderr.str()
    assert not result.outlines


def test_wrong_checks_are_usage_errors(light_suite):
    """Also where they are for tests."""
    light_suite.pytester.makepyfile(my_data=WRONG)
    named = f"{OPTION}=my_data:make_data"
    wrong = light_suite.again(named, "--dataloader-faults-only=open-eror")
    alone = light_suite.again("--dataloader-faults-only=open-eror")
    empty = light_suite.again(named, "--dataloader-faults-only=, ")
    assert {wrong.ret, alone.ret, empty.ret} == {pytest.ExitCode.USAGE_ERROR}
    assert "Did you mean 'open-error' or" in wrong.stderr.str()
    assert "only=[', '] names no check. Name some, as in" in empty.stderr.str()
    assert "Did you mean 'open-error' or" in alone.stderr.str()


OTHER_ITEM = """
import pytest


class Item(pytest.Item):
    arguments = "those of another plugin"

    def runtest(self):
        raise AssertionError("not ours")


def pytest_collection_modifyitems(session, items):
    items.append(Item.from_parent(session, name="other"))
"""


def test_an_item_of_another_plugin_is_not_ours(light_suite):
    """Whatever attributes it has: its failure is in no summary and in no report of ours."""
    light_suite.pytester.makeconftest(OTHER_ITEM)
    result = light_suite.run("", "--dataloader-faults-report=r.json")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*= dataloader-faults =*")
    assert json.loads((light_suite.path / "r.json").read_text(encoding="utf-8"))["items"] == []
