"""A file of expected failures, ``{test: {check: reason}}``, and texts of errors of options."""

import json
import stat
from fnmatch import fnmatch

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.plugin._report import parse_baseline

pytestmark = pytest.mark.usefixtures("engine")


BASELINE = "--dataloader-faults-baseline=baseline.json"
UPDATE = (BASELINE, "--dataloader-faults-update-baseline")
SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

pytestmark = pytest.mark.dataloader_faults(only="open-error")


def test_healthy(fault_check, records):
    fault_check(lambda: Records(records))


def test_zeros(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""
PLAIN = "def test_plain(): pass"
ZEROS, HEALTHY, OTHER = "test_inner.py::test_zeros", "test_inner.py::test_healthy", "b.py::test_it"


def _write(suite, entries):
    (suite.path / "baseline.json").write_text(json.dumps(entries))


def _read(suite):
    text = (suite.path / "baseline.json").read_text()
    entries = json.loads(text)
    assert text == json.dumps(entries, indent=2, sort_keys=True) + "\n"
    return entries


def test_a_file_is_written_and_its_failures_are_expected(suite):
    written = suite.run(SUITE, *UPDATE, "-k", "zeros")
    written.assert_outcomes(failed=1, deselected=1)
    written.stdout.fnmatch_lines(["1 known failure written to baseline.json, 1 without a reason"])
    assert _read(suite) == {ZEROS: {"open-error": ""}}
    shown = suite.again(BASELINE, "--runxfail", "-k", "zeros")
    shown.assert_outcomes(failed=1, deselected=1)


def test_what_passes_fails_until_it_is_removed(suite):
    _write(suite, {ZEROS: {"open-error": ""}, HEALTHY: {"open-error": "issue 2"}})
    mended = suite.run(SUITE, "-rx", BASELINE, "--dataloader-faults-report=r.json")
    mended.assert_outcomes(failed=1, xfailed=1)
    text = "expected to fail (issue 2), but passed. Remove it from expected_failures, or from the*"
    mended.stdout.fnmatch_lines([text])
    known = f"XFAIL {ZEROS}*open-error? - listed in baseline.json (corrupted)"
    mended.stdout.fnmatch_lines([known])
    items = json.loads((suite.path / "r.json").read_text())["items"]
    assert {each["status"]: each["reason"] for each in items} == {
        "failed": None,
        "xfailed": "listed in baseline.json",
    }

    updated = suite.again(*UPDATE, "-k", "healthy")
    updated.assert_outcomes(passed=1, deselected=1)
    written = "1 known failure written to baseline.json, 1 without a reason, 1 removed"
    updated.stdout.fnmatch_lines([written])
    assert _read(suite) == {ZEROS: {"open-error": ""}}


def test_an_update_keeps_what_did_not_run(suite):
    """That is a deselected test, another check, and a file that is skipped."""
    suite.pytester.makepyfile(b="import pytest; pytest.skip('no', allow_module_level=True)")
    others = {OTHER: {"open-error": "c"}, HEALTHY: {"open-error": "d"}}
    _write(suite, {ZEROS: {"pickles": "a", "open-error": "b"}, **others})
    suite.run(SUITE, *UPDATE, "-k", "zeros", "test_inner.py", "b.py")
    assert _read(suite) == {ZEROS: {"open-error": "b", "pickles": "a"}, **others}


NO_FAILURES_OF_CHECKS = """
import pytest
from support.plugin_datasets import Numbers, ZerosOnError

pickles = pytest.mark.dataloader_faults(only="pickles")


@pytest.mark.dataloader_faults(only="open-error")
def test_caught(fault_check, records):
    with pytest.raises(pytest.fail.Exception):
        fault_check(lambda: ZerosOnError(records))


@pickles
def test_no_dataset(fault_check):
    fault_check(lambda: None)


@pickles
def test_of_its_own(fault_check):
    fault_check(Numbers)
    assert 1 + 1 == 3
"""


def test_only_failures_of_checks_are_written(suite):
    result = suite.run(NO_FAILURES_OF_CHECKS, *UPDATE)
    result.assert_outcomes(passed=1, failed=2)
    note = "0 known failures written to baseline.json, 2 not written (not found by a check)"
    result.stdout.fnmatch_lines([note])
    assert _read(suite) == {}


ALONE = """
import pytest
from support.plugin_datasets import Numbers
from torch.utils.data import get_worker_info


class Fails(Numbers):
    def __getitem__(self, index):
        if index == 3 and get_worker_info():
            raise LookupError("no sample 3")
        return super().__getitem__(index)


@pytest.mark.dataloader_faults(only=["workers-agree", "two-epochs"])
def test_fails(fault_check):
    fault_check(Fails)
"""


def test_a_failure_without_a_fault_is_one_of_workers_agree(suite):
    suite.run(ALONE, *UPDATE, "-k", "two").assert_outcomes(failed=1, deselected=1)
    assert _read(suite) == {"test_inner.py::test_fails": {"workers-agree": ""}}
    suite.again(BASELINE).assert_outcomes(xfailed=1, skipped=1)


def test_the_options_need_a_file(light_suite):
    light_suite.run(PLAIN, UPDATE[1]).stderr.fnmatch_lines([f"ERROR: {UPDATE[1]} needs the base*"])
    problem = (
        "ERROR: baseline='baseline.json' from --dataloader-faults-baseline cannot be read: No*"
    )
    light_suite.again(BASELINE).stderr.fnmatch_lines([problem])
    light_suite.pytester.makeini("[pytest]\ndataloader_faults_baseline = sub/baseline.json")
    problem = "ERROR: baseline='sub/baseline.json' from ini key dataloader_faults_baseline cannot*"
    light_suite.again().stderr.fnmatch_lines([problem])
    assert light_suite.again(UPDATE[1]).ret == pytest.ExitCode.OK
    assert (light_suite.path / "sub/baseline.json").read_text() == "{}\n"


EDITED = '{\n  "b.py::test": {\n    "pickles": "new"\n  }\n}\n'


@pytest.mark.parametrize("text", [EDITED, "{"])
def test_what_is_edited_during_the_run_is_kept(light_suite, text):
    path = light_suite.path / "target.json"
    path.touch(0o600)
    path.write_text("{}")
    (light_suite.path / "baseline.json").symlink_to(path)
    (light_suite.path / "b.py").touch()
    source = f"from pathlib import Path\ndef test_it(): Path('target.json').write_text({text!r})"
    result = light_suite.run(source, *UPDATE)
    assert path.read_text() == text
    assert (light_suite.path / "baseline.json").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert result.ret == (pytest.ExitCode.OK if text == EDITED else pytest.ExitCode.USAGE_ERROR)
    problem = "the baseline was not written: baseline=*is not valid JSON"
    assert fnmatch(result.stdout.str(), f"*{problem}*") is (text != EDITED)


FILES = {
    "not JSON": "{",
    "a list": '["a.py::test"]',
    "no checks": '{"a.py::test": "open-error"}',
    "a report": '{"version": 1, "items": []}',
    "no reason": '{"a.py::test": {"open-error": null}}',
    "unknown check": '{"a.py::test": {"open-eror": "issue 2"}}',
}


def test_baselines(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"missing": _error("missing.json")}
    for title, text in FILES.items():
        (tmp_path / "baseline.json").write_text(text, encoding="utf-8")
        texts[title] = _error("baseline.json")
    golden("baseline", texts)


def _error(path):
    with pytest.raises(InvalidArgumentError) as caught:
        parse_baseline(path, f"baseline={path!r} from --dataloader-faults-baseline")
    return str(caught.value)


def test_a_test_that_is_missing_is_reported(light_suite):
    missing = ["test_gone.py::test_zeros", f"{ZEROS}_renamed"]
    light_suite.pytester.makepyfile(b="")
    _write(light_suite, {test: {"open-error": ""} for test in (*missing, OTHER)})
    result = light_suite.run(PLAIN, BASELINE)
    result.stdout.fnmatch_lines([f"baseline.json lists missing tests: {', '.join(missing)}"])
