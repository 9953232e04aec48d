"""``pytest-dataloader-faults run``: the battery on one dataset, without a test file."""

import json
import sys

import pytest

from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.run_command import USAGE_ERROR, dataset_value, value_of
from support.datasets import write_records
from support.inner import PYTHONPATH, run_command_forked
from support.rows import rows

DATA = """
from pathlib import Path

from torch.utils.data import DataLoader

from support.datasets import Records
from support.plugin_datasets import ZerosOnError


class Folder(ZerosOnError):
    def __init__(self, folder, *, scale):
        super().__init__(Path(folder))
        assert scale == 0.5


def make_loader(folder, batch_size=1):
    return DataLoader(Records(Path(folder)), batch_size=batch_size)
"""
SCRIPT = """import argparse
argparse.ArgumentParser().parse_args(["--lr"])
"""
CONFIGURATION = """
[pytest]
addopts = --lf --strict-config
filterwarnings = error
testpaths = tests
"""


@pytest.fixture(name="project")
def _project(tmp_path, monkeypatch):
    """A project with a module, data, a configuration and a test that would fail."""
    folder = tmp_path / "project"
    write_records(folder / "data/train")
    (folder / "tests").mkdir()
    (folder / "tests/test_other.py").write_text("def test_other(): assert False", "utf-8")
    (folder / "my_data.py").write_text(DATA, "utf-8")
    (folder / "script.py").write_text(SCRIPT, "utf-8")
    (folder / "pytest.ini").write_text(CONFIGURATION, "utf-8")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE", "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def _files(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


CLASS = ("my_data:Folder", "--arg", "data/train", "--kwarg", "scale=0.5")
CALLED = "my_data:Folder('data/train', scale=0.5)"


@pytest.mark.usefixtures("engine")
def test_a_class_with_arguments_is_tested(project, tmp_path):
    file_names = _files(project)
    report = tmp_path / "r.json"
    options = ["--only", "workers-agree,open-error", "--samples", "8", "--json", str(report)]
    options += ["--html", str(tmp_path / "r.html"), "--", "-v"]
    result = run_command_forked(project, tmp_path, "run", *CLASS, *options)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    pattern = CALLED.replace("[", "[[]")
    result.stdout.fnmatch_lines(
        [
            f"{pattern}::workers-agree PASSED (survived) *",
            f"{pattern}::open-error FAILED (corrupted) *",
            f'  reproduce: pytest "--dataloader-faults-dataset={pattern}" --dataloader-faults-*',
            f"{pattern}: 1 of 2 checks failed (1 corrupted), 1*",
        ]
    )
    result.stdout.no_fnmatch_line("*test_other*")
    data = json.loads(report.read_text("utf-8"))
    assert {each["test"] for each in data["items"]} == {CALLED}
    command = f"pytest-dataloader-faults run {' '.join([*CLASS, *options])}"
    assert data["runs"][0]["command"] == command
    assert "open-error" in (tmp_path / "r.html").read_text("utf-8")
    assert _files(project) == file_names


@pytest.mark.usefixtures("engine")
def test_a_function_may_return_a_loader(project, tmp_path):
    target = ("my_data:make_loader", "--arg", "data/train", "--kwarg", "batch_size=4")
    result = run_command_forked(project, tmp_path, "run", *target, "--only=pickles,open-error")

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2)


def test_options_choose_the_checks(project, tmp_path):
    without = CONFIGURATION.replace("--lf", "-p no:cacheprovider")
    (project / "pytest.ini").write_text(without, "utf-8")
    options = ["--quick", "--exclude=pickles", "--ranks=2", "--", "--collect-only", "-q"]
    result = run_command_forked(project, tmp_path, "run", *CLASS, *options)

    assert result.ret == pytest.ExitCode.OK
    assert f"{CALLED}::workers-agree" in result.outlines
    assert f"{CALLED}::pickles" not in result.outlines
    assert sum("::" in line for line in result.outlines) == 7


WRONG = [
    (("my_dta:Folder",), "ERROR: 'my_dta:Folder' cannot be used: there is no module 'my_dta' in "),
    (
        ("my_data:Foldr",),
        "ERROR: 'my_data:Foldr' cannot be used: my_data has no 'Foldr'. Did you mean 'Folder'?",
    ),
    (
        CLASS[:3],
        "cannot be called: Folder requires 1 more argument (scale). Pass arguments with --arg",
    ),
    ((*CLASS, "--ranks=1"), "ranks='1' from --ranks must be an int from 2 to 8, or 'none'"),
    (
        (*CLASS, "--only=pickle"),
        "--only contains 'pickle', which is not a check. Did you mean 'pickles'",
    ),
    (("my_data", "--arg", "data/train"), ": add a class or function of my_data, as in"),
    (("my_data:Folder", "data/a"), ": data/a. Pass arguments of the class or function with --arg"),
    (("my_data:Folder", "--arg", "-x"), "expected one argument. Put an equals sign before"),
    (
        ("my_data:Folder", *CLASS[1:3], "--arg=0.5"),
        "too many positional arguments. It accepts folder, scale (by name only)",
    ),
    (
        ("script:Folder",),
        "SystemExit: 2 at {folder}/script.py:2. Move code that is only for a script below",
    ),
    ((*CLASS, "--quik"), "unrecognized arguments: --quik. Did you mean '--quick'?"),
    ((*CLASS, "--html", "r.txt"), "argument --html: 'r.txt' must end in .html"),
    ((*CLASS, "--kwarg", "scale"), "argument --kwarg: 'scale' must be NAME=VALUE, such as size="),
    ((*CLASS, "--kwarg", "scale=1"), "argument --kwarg: 'scale' must be passed once"),
]


@pytest.mark.usefixtures("engine")
@rows("arguments, text", WRONG)
def test_a_wrong_command_line_is_a_usage_error(project, tmp_path, arguments, text):
    result = run_command_forked(project, tmp_path, "run", *arguments)

    assert (result.ret, result.outlines) == (USAGE_ERROR, [])
    assert text.format(folder=project) in result.stderr.str()
    assert "Traceback" not in result.stderr.str()
    assert USAGE_ERROR == pytest.ExitCode.USAGE_ERROR


VALUES = [
    ("3", 3),
    ("-0.5", -0.5),
    ("None", None),
    ("True", True),
    ("[1, 'a']", [1, "a"]),
    ("'3'", "3"),
    ("data/train", "data/train"),
    ("split=train", "split=train"),
    ("", ""),
    ("...", "..."),
    ("1e999", "1e999"),
    ("2024-10-11", "2024-10-11"),
    ("007", "007"),
    ("(" * 9999, "(" * 9999),
]


@rows("text, value", VALUES)
def test_values_are_literals_or_text(text, value):
    parsed = value_of(text)

    assert (parsed, type(parsed)) == (value, type(value))
    call = dataset_value("my_data:make", [parsed], {"one": parsed})
    assert call == f"my_data:make({value!r}, one={value!r})"


def test_help_names_the_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    output = capsys.readouterr().out
    for name in "--arg --kwarg --quick --only --exclude --ranks --html --json".split():
        assert f"  {name} " in output
