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


@pytest.fixture(name="data_suite")
def _data_suite(suite):
    """A place with a module of datasets, and a test file that would fail."""
    suite.pytester.makepyfile(my_data=DATA, test_inner="def test_file(): assert False")
    return suite


def _ids(result) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.usefixtures("engine")
def test_datasets_are_tried_with_no_test_file(data_suite):
    result = data_suite.again("-v", *NAMED, FEW, "--dataloader-faults-report=r.json")
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
    items = json.loads((data_suite.path / "r.json").read_text())["items"]
    assert [each["nodeid"] for each in items] == IDS
    assert {each["test"] for each in items} == {each.partition("::")[0] for each in IDS}
    assert items[0]["file"] == "my_data.py"
    assert _ids(data_suite.again("-q", "--collect-only", "--lf", *NAMED, FEW)) == IDS[3:]


SELECTED = [
    ((), IDS),
    (("test_inner.py",), ["test_inner.py::test_file", *IDS]),
    (("-k", "make_zeros"), IDS[2:]),
    (("-k", "open-error"), IDS[1::2]),
    (("-m", "dataloader_faults", "."), IDS),
    (("-m", "gpu"), []),
]


@pytest.mark.parametrize(("options", "expected"), SELECTED)
def test_options_select_their_items(data_suite, options, expected):
    data_suite.pytester.makeini("[pytest]\ntestpaths = test_inner.py")
    assert _ids(data_suite.again("-q", "--collect-only", *NAMED, FEW, *options)) == expected


CONFTEST = """
def pytest_collection_modifyitems(items):
    for item in items:
        print(item.function.__name__, item.module.__name__, item.cls, *item.fixturenames)
"""


def test_hooks_read_them_as_test_functions(data_suite):
    data_suite.pytester.makeconftest(CONFTEST)
    options = "--dataloader-faults-only=workers-agree, pickles", "--dataloader-faults-report=r.md"
    result = data_suite.again("--collect-only", NAMED[0], *options)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines.count("make_records my_data None") == 2
    result.stdout.fnmatch_lines(
        ["dataloader-faults: no path was given, so no test file is collected; my_data:*"]
    )
    result.stdout.no_fnmatch_line("report: *")
    with_file = data_suite.again("--collect-only", NAMED[0], "test_inner.py")
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
    suite.pytester.makepyfile(my_data=ODD)
    options = [f"{OPTION}=my_data:{name}" for name in ("boom", "nothing", "Listed", "ready")]
    result = suite.again(
        "-rs", *options, "--dataloader-faults-only=persistent-workers,two-epochs,workers-agree"
    )
    result.assert_outcomes(failed=2, skipped=4, passed=6)
    unasked = "not run, because the dataset cannot be tested: see my_data"
    result.stdout.fnmatch_lines(
        [
            "make_dataset at */my_data.py:5 returned None, which is not a dataset*",
            "my_data:boom: 3 checks could not be run (see the error above); *",
            f"SKIPPED [[]2[]] my_data.py:1: {unasked}:boom::*",
            f"SKIPPED [[]2[]] my_data.py:5: {unasked}:nothing::*",
        ]
    )


def test_checks_are_left_out(data_suite):
    collection = data_suite.again(
        "-q", "--collect-only", NAMED[0], "--dataloader-faults-exclude=open-error"
    )
    assert IDS[0] in _ids(collection)
    assert IDS[1] not in _ids(collection)
    marked = data_suite.again("-q", "--collect-only", NAMED[0], "-m", "gpu")
    assert _ids(marked) == ["my_data:make_records::pin-memory"]


@pytest.mark.usefixtures("engine")
def test_an_object_that_cannot_be_tried_is_named_by_the_command_line(suite):
    suite.pytester.makepyfile(my_list="made = [lambda: 3]")
    options = "--dataloader-faults-only=two-epochs", "--tb=line"
    result = suite.again(f"{OPTION}=my_list:made", *options)
    message = "make_dataset returned a list of functions instead *(...)[]]"
    result.stdout.fnmatch_lines([f"*/my_list.py:1: {message}"])


WRONG = """
class Data:
    def __getitem__(self, index): return index
    def make(self): return self


ready = Data()
number = 3


def make_two(one, two): ...
def make_data(): return Data()
"""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("packed:make_data", "It is in src: pass pytest's option -o pythonpath=src. Run pytest"),
        ("my_data:mke_data", "my_data has no 'mke_data'. Did you mean 'make_data' or 'make_two'?"),
        ("my_data:make_two(1)", "make_two requires 1 more argument (two)"),
    ],
)
def test_wrong_names_are_usage_errors(light_suite, value, problem):
    light_suite.pytester.makepyfile(my_data=WRONG)
    light_suite.pytester.mkdir("src").joinpath("packed.py").write_text(WRONG, "utf-8")
    result = light_suite.again(f"{OPTION}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: dataset={value!r} from {OPTION} " in result.stderr.str()
    assert problem in result.stderr.str()
    assert "lambda" not in result.stderr.str()
    assert not result.outlines


@pytest.mark.usefixtures("engine")
def test_they_may_have_arguments(data_suite):
    """Python literals, whatever they hold. The command is for a shell."""
    data_suite.pytester.makepyfile(
        my_data=f"{DATA}def make(kind, where=None): return globals()[kind](FOLDER)"
    )
    value = "my_data:make('ZerosOnError', where=['a::b[c]'])"
    options = f"{OPTION}={value}", "--dataloader-faults-only=open-error,workers-agree"
    result = data_suite.again("-v", *options, "--dataloader-faults-report=r.json")

    result.assert_outcomes(passed=1, failed=1)
    name = "my_data:make('ZerosOnError', where=%5B'a%3A%3Ab%5Bc%5D'%5D)"
    assert f"{name}::open-error FAILED (corrupted)" in result.stdout.str()
    output = " ".join(result.stdout.str().split())
    assert f"{name}: 1 of 2 checks failed (1 corrupted), 1 passed" in output
    only = "--dataloader-faults-only=open-error"
    assert f'  reproduce: pytest "{OPTION}={value}" {only}' in result.outlines
    items = json.loads((data_suite.path / "r.json").read_text("utf-8"))["items"]
    assert {each["test"] for each in items} == {name}


def test_wrong_checks_are_usage_errors(light_suite):
    light_suite.pytester.makepyfile(my_data=WRONG)
    option = f"{OPTION}=my_data:make_data"
    wrong = light_suite.again(option, "--dataloader-faults-only=open-eror")
    alone = light_suite.again("--dataloader-faults-only=open-eror")
    empty = light_suite.again(option, "--dataloader-faults-only=, ")
    assert {wrong.ret, alone.ret, empty.ret} == {pytest.ExitCode.USAGE_ERROR}
    only = "ERROR: --dataloader-faults-only"
    message = f"{only} contains 'open-eror', which is not a check. Did you mean 'open-error' or"
    assert message in wrong.stderr.str()
    assert f"{only}=[', '] must name one or more checks" in empty.stderr.str()
    assert message in alone.stderr.str()
    assert not alone.outlines  # It is found before the tests are collected.
    options = (f"--dataloader-faults-{name}=pickles" for name in ("only", "exclude"))
    assert "leave no check to run. Keep at least one" in light_suite.again(*options).stderr.str()


def test_a_choice_that_leaves_no_test_is_reported(light_suite):
    """Pytest says no more than that some were deselected, and exits with 5."""
    source = """
        import pytest

        @pytest.mark.dataloader_faults(only="pickles,open-error")
        def test_x(fault_check): ...
    """
    only = "--dataloader-faults-only=rank-read-error"
    result = light_suite.run(source, only)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert f"dataloader-faults: no test runs a check selected by {only}" in result.outlines
    collection = light_suite.again("--dataloader-faults-only=pickles", "--collect-only")
    collection.stdout.no_fnmatch_line("*no test runs a check*")


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
    light_suite.pytester.makeconftest(OTHER_ITEM)
    result = light_suite.run("", "--dataloader-faults-report=r.json")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*= dataloader-faults =*")
    assert json.loads((light_suite.path / "r.json").read_text(encoding="utf-8"))["items"] == []
