"""The complete texts of errors of options, in golden files."""

import json

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin import _baseline, _named_datasets
from pytest_dataloader_faults.report import files
from pytest_dataloader_faults.report.model import Report
from support.reports import RUN, failed, item

WHERE = "--dataloader-faults-baseline"
ENTRY = {
    "nodeid": "a.py::test[open-error]",
    "test": "a.py::test",
    "check": "open-error",
    "status": "failed",
    "verdict": "hung",
    "reason": "",
}


def _text(**changes):
    """A baseline of one entry; a change to None leaves the field out."""
    fields = {name: value for name, value in {**ENTRY, **changes}.items() if value is not None}
    return json.dumps({"version": 1, "items": [fields]})


FILES = {
    "not JSON": "{",
    "nested too deeply": "[" * 100_000,
    "a list": json.dumps([{"id": "a.py::test[open-error]", "check": "open-error"}]),
    "no version": "{}",
    "no items": '{"version": 1}',
    "no object": '{"version": 1, "items": [1]}',
    "no verdict": _text(verdict=None),
    "misspelled field": _text(reason=None, reson="issue 2"),
    "unknown check": _text(check="open-eror"),
    "a pass": _text(verdict="survived"),
    "bad reason": _text(reason=5),
    "not failed": _text(status="flaky"),
    "no failure": _text(reason=None).replace('"hung"', "null"),
    "no reason": _text(verdict="not_exercised", reason=None),
    "other check": _text(check="pickles"),
    "other test": _text(test="a.py::other"),
    "no check": _text(nodeid="a.py::test"),
    "not of the test": _text(without_fault=True),
    "twice": json.dumps({"version": 1, "items": [ENTRY, ENTRY]}),
    "repeated key": _text().replace('"nodeid"', '"nodeid": "", "nodeid"'),
}


def test_baselines(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"missing": _error(_baseline.read, "missing.json", WHERE)}
    for title, text in FILES.items():
        (tmp_path / "baseline.json").write_text(text, encoding="utf-8")
        texts[title] = _error(_baseline.read, "baseline.json", WHERE)
    golden("baseline", texts)


def test_a_report_of_a_run_has_items_that_are_not_known_failures(tmp_path):
    path = tmp_path / "report.json"
    report = Report(runs=(RUN,), items=(item(), failed(check="pickles", status="flaky")))
    files.write(report, str(path))
    assert _baseline.read(str(path), WHERE).items == ()
    path.write_text(_text(check="quick"), encoding="utf-8")
    assert "'quick', which is not a check" in _error(_baseline.read, str(path), WHERE)
    path.write_text(_text(reason=" "), encoding="utf-8")
    assert [entry.reason for entry in _baseline.read(str(path), WHERE).items] == [""]


MODULE = """
class Data:
    def make(self): ...

def load(folder, scale, *, seed=0): ...
"""
VALUES = [
    "named_data",
    "src/named_data:load",
    "named_data.py:load",
    "nowhere:load",
    "named_data:lod",
    "named_data:zzz",
    "named_data:Data.make",
    "named_data:load",
    "named_data:load('train')",
    "named_data:load('train', 1, 0)",
    "named_data:load(fodler='train')",
    "named_data:load(data/train)",
    "named_data:load(data train)",
    "named_data:__name__(3)",
    "named_data:load(**{'folder': 1})",
    "C:\\data\\named_data.py:load",
    "broken_data:load",
    "lacking_data:load",
    "skipped_data:load",
    "importing_data:itertool",
    "importing_data:Chaind",
    "empty_data:load",
]
OTHER_MODULES = {
    "broken_data": "1 / 0",
    "lacking_data": "import nowhere",
    "skipped_data": "import pytest\npytest.skip('no data', allow_module_level=True)",
    "importing_data": "import itertools\nclass Chained: pass",
    "empty_data": "",
}


def test_named_datasets(golden, tmp_path, monkeypatch):
    """A value that names no function, and one whose arguments are wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {"named_data": MODULE, **OTHER_MODULES}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    errors = {value: _error(_named_datasets.factory_of, value) for value in VALUES}
    golden(
        "named-datasets",
        {value: text.replace(str(tmp_path), "FOLDER") for value, text in errors.items()},
    )


def _error(function, *arguments):
    with pytest.raises(InvalidArgumentError) as caught:
        function(*arguments)
    return str(caught.value)
