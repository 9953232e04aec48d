"""``pytest-dataloader-faults run``: the battery on one dataset, without a test file."""

import json
import shlex
import sys
import tempfile

import pytest

from pytest_dataloader_faults.report.command import USAGE_ERROR, code_of
from support.datasets import write_records
from support.inner import PYTHONPATH, run_command_forked
from support.rows import rows

FILES = {
    "src/my_data.py": """
import os
from pathlib import Path
from support.datasets import Records
from support.plugin_datasets import ZerosOnError
from torch.utils.data import DataLoader
class Folder(ZerosOnError):
    def __init__(self, folder, *, scale):
        super().__init__(Path(folder))
        assert scale == 0.5
        assert os.environ["DATA_ROOT"] == "set by conftest.py"
    @classmethod
    def make_loader(cls, folder, batch_size=1):
        return DataLoader(Records(Path(folder)), batch_size=batch_size)
""",
    "conftest.py": """
import pytest
@pytest.fixture(autouse=True)
def data_root(monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "set by conftest.py")
""",
    "pytest.ini": """
[pytest]
addopts = --lf --strict-config
filterwarnings = error
testpaths = tests
python_files = check_*.py
python_functions = check_*
pythonpath = src
""",
    "script.py": "raise SystemExit(2)",
    "tests/check_other.py": "def check_other(): assert False",
}


@pytest.fixture(name="project")
def _project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    write_records(folder / "data/train")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def _run(project, *arguments):
    files = sorted([*project.rglob("*"), *project.parent.glob("temporary/*")])
    result = run_command_forked(project, project.parent, "run", *arguments)
    assert sorted([*project.rglob("*"), *project.parent.glob("temporary/*")]) == files
    return result


CLASS = ("my_data:Folder", "--arg", "data/train", "--kwarg", "scale=0.5")
LOADER = ("my_data:Folder.make_loader", "--arg=data/train", "--kwarg=batch_size=4")
ONLY = "--only=workers-agree,open-error"
CONFIGURED = [
    ((*CLASS, ONLY, "--contract=Contract(may_substitute=True)"), {"passed": 2}),
    ((*CLASS, ONLY, "--expected-failures={'open-error': 'known'}"), {"passed": 1, "xfailed": 1}),
    ((*LOADER, ONLY, "--", "-W", "error"), {"passed": 2}),
]


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_a_class_with_arguments_is_tested(project, tmp_path):
    options = [ONLY, "--samples", "8", f"--report={tmp_path / 'r.json'}"]
    result = _run(project, *CLASS, *options, "--", "-v")
    result.assert_outcomes(passed=1, failed=1, deselected=29)
    data = json.loads((tmp_path / "r.json").read_text("utf-8"))
    names = [f"test_my_data.py::test_Folder[{check}]" for check in ("workers-agree", "open-error")]
    verdicts = [(each["nodeid"], each["verdict"]) for each in data["items"]]
    assert verdicts == list(zip(names, ("survived", "corrupted"), strict=True))
    again = data["items"][1]["reproduce"]
    rest = "my_data:Folder --arg=data/train --kwarg=scale=0.5 --samples=8 -- -v"
    assert again == f"pytest-dataloader-faults run --only=open-error {rest}"
    assert data["runs"][0]["command"] == again.replace("--only=open-error", ONLY)
    _run(project, *shlex.split(again)[2:]).assert_outcomes(failed=1, deselected=30)


@pytest.mark.usefixtures("engine")
@rows("arguments, outcomes", CONFIGURED)
def test_the_test_can_be_configured(project, arguments, outcomes):
    _run(project, *arguments).assert_outcomes(**outcomes, deselected=29)


def test_the_test_is_removed_after_an_interrupt(project):
    hook = "def pytest_collection_finish(): raise KeyboardInterrupt"
    (project / "conftest.py").write_text(hook, "utf-8")
    assert _run(project, *CLASS).ret == pytest.ExitCode.INTERRUPTED


WRONG = [
    (("my_dta:Folder",), 2, "ModuleNotFoundError: No module named 'my_dta'"),
    (("my_data:Foldr",), 2, "AttributeError: module 'my_data' has no attribute 'Foldr'"),
    (("script:main",), 2, "script exits: put its script below if __name__ == '__main__'"),
    (("my_data:Folder",), 1, "Folder requires 1 argument (folder)*--arg to the command run"),
    (CLASS[:3], 1, "missing 1 required keyword-only argument: 'scale'"),
    ((*CLASS, "--contract=Contract(a=1)"), 1, "Contract got an unexpected keyword argument 'a'"),
    ((*CLASS, "--contract=("), 4, "'(' must be Python code: '(' was never closed"),
    ((*CLASS, "--expected-failures={'x': 'y'}"), 4, "expected_failures contains 'x', which is not"),
    ((*CLASS, "--expected-failures=open-error"), 4, "'open-error' must be a dict with a reason"),
    (("my_data.py:Folder",), 4, "'my_data.py:Folder' must be module:function, such as"),
    ((*CLASS, "--", "--dataloader-faults-update-baseline"), 4, "run cannot use a baseline"),
    (("my_data",), 4, "'my_data' must be module:function, such as my_package.data:make_dataset"),
    ((*CLASS, "--kwarg", "scale"), 4, "argument --kwarg: 'scale' must be NAME=VALUE, such as"),
    ((*CLASS, "--only=pickle"), 4, "contains 'pickle', which is not a check. Did you mean"),
    ((*CLASS, "a"), 4, "unrecognized arguments: a. Pass arguments of the class or function with"),
]


@pytest.mark.usefixtures("engine")
@rows("arguments, status, text", WRONG)
def test_mistakes_are_explained(project, arguments, status, text):
    result = _run(project, *arguments)
    assert result.ret == status
    (result.stderr if status == USAGE_ERROR else result.stdout).fnmatch_lines([f"*{text}*"])


def test_values_are_literals_or_text():
    values = ["3", "[1, 'a']  # letters", "'3'", "data/train", "", "007", "(" * 9999]
    codes = ["3", "[1, 'a']", "'3'", "'data/train'", "''", "'007'", repr("(" * 9999)]
    assert list(map(code_of, values)) == codes
