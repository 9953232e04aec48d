"""The complete texts of errors of options, in golden files."""

import json

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin import _baseline
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


def _error(function, *arguments):
    with pytest.raises(InvalidArgumentError) as caught:
        function(*arguments)
    return str(caught.value)
