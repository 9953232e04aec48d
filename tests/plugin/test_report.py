"""Reports of real runs: written by pytest, by pytest-xdist, and merged by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from xml.etree import ElementTree as ET

import pytest

from pytest_dataloader_faults import report as reports
from pytest_dataloader_faults.report.command import main

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "connect-error"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))
"""
EXPECTED = {
    ("workers-agree", "Records"): ("passed", "survived"),
    ("open-error", "Records"): ("passed", "failed_cleanly"),
    ("connect-error", "Records"): ("not_applicable", "not_exercised"),
    ("workers-agree", "ZerosOnError"): ("passed", "survived"),
    ("open-error", "ZerosOnError"): ("failed", "corrupted"),
    ("connect-error", "ZerosOnError"): ("not_applicable", "not_exercised"),
}

pytestmark = pytest.mark.usefixtures("engine")


def _found(path):
    items = json.loads(path.read_text())["items"]
    found = {}
    for item in items:
        kind = item["test"].partition("[")[2].rstrip("]")
        found[item["check"], kind] = (item["status"], item["verdict"])
    return found


def test_a_run_writes_its_reports(suite):
    """In each form that was asked for, also without a terminal; folders are made."""
    names = ["out/r.json", "r.md", "r.gitlab.json", "r.html"]
    options = [f"--dataloader-faults-report={name}" for name in names]
    result = suite.run(SUITE, "-v", "--junitxml=j.xml", *options)
    assert _found(suite.path / "out/r.json") == EXPECTED
    assert "1 corrupted" in (suite.path / "r.md").read_text()
    assert len(json.loads((suite.path / "r.gitlab.json").read_text())) == 1
    assert "<strong>1 of " in (suite.path / "r.html").read_text()
    assert "report: r.md" in result.stdout.lines
    assert any("PASSED (failed_cleanly)" in line for line in result.stdout.lines)
    _check_junit(suite.path / "j.xml")
    _check_json(json.loads((suite.path / "out/r.json").read_text()))


def _check_json(report):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(resources.files(reports).joinpath("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(report)
    for item in report["items"]:
        kinds = {event["kind"] for event in item["timeline"]}
        assert ("fault" in kinds) is (item["check"] == "open-error"), item["nodeid"]
        assert ("batch" in kinds) is (item["check"] != "connect-error"), item["nodeid"]


def _check_junit(path):
    found = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314  # our own file
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        found[case.get("name")] = properties
    failed = found["test_files[open-error-ZerosOnError]"]
    assert failed["dataloader_faults_check"] == "open-error"
    assert failed["dataloader_faults_verdict"] == "corrupted"
    assert failed["dataloader_faults_passed"] == "false"
    assert failed["dataloader_faults_fault"].startswith("OpenError(path=")
    assert failed["dataloader_faults_engine"] == "kernel"
    assert float(failed["dataloader_faults_duration"]) > 0


@pytest.mark.parametrize("how", ["load", "loadfile", "worksteal", "each"])
@pytest.mark.slow
def test_xdist_gives_one_report(suite, how):
    """In every mode of distribution."""
    pytest.importorskip("xdist")
    options = ["-p", "xdist", "-n", "2", "--dist", how, "--dataloader-faults-report=r.json"]
    suite.run(SUITE, "-q", *options)
    assert _found(suite.path / "r.json") == EXPECTED


CRASH = (
    SUITE
    + """

def test_zz_crash():
    import os
    os._exit(3)
"""
)


def test_a_crashed_process_of_xdist_loses_nothing_that_was_finished(suite):
    """Its items were sent when they ended."""
    pytest.importorskip("xdist")
    options = ["-p", "xdist", "-n", "1", "--dataloader-faults-report=r.json"]
    suite.run(CRASH, "-q", *options)
    assert _found(suite.path / "r.json") == EXPECTED


def test_shards_are_merged(suite, capsys):
    """By the command; the report is that of the whole run."""
    for number, name in enumerate(("Records", "ZerosOnError")):
        suite.run(SUITE, "-q", "-k", name, f"--dataloader-faults-report={number}.json")
    shards = [str(suite.path / f"{number}.json") for number in range(2)]
    output = suite.path / "all.json"
    assert main(["merge", *shards, "-o", str(output), "-o", str(suite.path / "all.html")]) == 0
    assert _found(output) == EXPECTED
    assert "<strong>1 of " in (suite.path / "all.html").read_text()
    assert main(["merge", shards[0], "-o", "x.pdf"]) == 2
    assert "must end in one of .gitlab.json, .html, .json, .md" in capsys.readouterr().err
    assert main(["merge", str(suite.path / "nothing.json"), "-o", str(output)]) == 2


def test_the_command_is_installed():
    """With a help that names what it can do."""
    module = "from pytest_dataloader_faults.report.command import main; main(['--help'])"
    found = subprocess.run(
        [sys.executable, "-c", module], capture_output=True, text=True, check=True
    )
    assert "merge" in found.stdout


def test_an_unknown_ending_is_refused_at_once(suite):
    """Before any test runs."""
    result = suite.run(SUITE, "--dataloader-faults-report=r.pdf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "report='r.pdf' must end in one of" in result.stderr.str()


def test_a_report_that_cannot_be_written_fails_the_run(suite):
    """The summary says why."""
    (suite.path / "file").write_text("")
    result = suite.run(SUITE, "-k", "workers-agree", "--dataloader-faults-report=file/r.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "the report file/r.json was not written" in result.stdout.str()


@pytest.mark.parametrize("is_off", [False, True])
def test_a_job_of_github_is_told(suite, monkeypatch, is_off):
    """By annotations and the job's summary, unless that is turned off."""
    summary = suite.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    options = ["--dataloader-faults-github=off"] if is_off else []
    result = suite.run(SUITE, "-q", "-k", "ZerosOnError", *options)
    found = [line for line in result.stdout.lines if line.startswith("::error ")]
    assert len(found) == (0 if is_off else 1)
    assert summary.exists() is not is_off
