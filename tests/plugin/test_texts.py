"""The complete texts of errors of options, in golden files."""

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin._report import read_baseline

WHERE = "--dataloader-faults-baseline"
FILES = {
    "not JSON": "{",
    "nested too deeply": "[" * 100_000,
    "a list": '["a.py::test"]',
    "no checks": '{"a.py::test": "open-error"}',
    "a report": '{"version": 1, "items": []}',
    "no reason": '{"a.py::test": {"open-error": null}}',
    "unknown check": '{"a.py::test": {"open-eror": "issue 2"}}',
    "repeated test": '{"a.py::test": {"open-error": ""}, "a.py::test": {}}',
}


def test_baselines(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"missing": _error(read_baseline, "missing.json", WHERE)}
    for title, text in FILES.items():
        (tmp_path / "baseline.json").write_text(text, encoding="utf-8")
        texts[title] = _error(read_baseline, "baseline.json", WHERE)
    golden("baseline", texts)


def _error(function, *arguments):
    with pytest.raises(InvalidArgumentError) as caught:
        function(*arguments)
    return str(caught.value)
