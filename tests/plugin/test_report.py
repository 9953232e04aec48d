"""Reports of real runs: written by pytest, by pytest-xdist, and merged by the command."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from xml.etree import ElementTree as ET

import pytest

from pytest_dataloader_faults import report as reports
from pytest_dataloader_faults.plugin._report import id_of, ordered_items
from pytest_dataloader_faults.report import terminal
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import item as item_of

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
    ("connect-error", "Records"): ("not_applicable", None),
    ("workers-agree", "ZerosOnError"): ("passed", "survived"),
    ("open-error", "ZerosOnError"): ("failed", "corrupted"),
    ("connect-error", "ZerosOnError"): ("not_applicable", None),
}

pytestmark = pytest.mark.usefixtures("engine")


def _found(path):
    items = json.loads(path.read_text())["items"]
    statuses = {}
    for item in items:
        kind = item["test"].partition("[")[2].rstrip("]")
        statuses[item["check"], kind] = (item["status"], item["verdict"])
    return statuses


@pytest.fixture(name="written", scope="module")
def _written(run_suite):
    """A folder with the reports of a run in each form, and what was printed."""
    names = ["out/r.json", "r.md", "r.html"]
    options = [f"--dataloader-faults-report={name}" for name in names]
    return run_suite(SUITE, "-v", "--durations=2", "--junitxml=j.xml", *options)


def test_a_run_writes_its_reports(written):
    folder, result = written
    assert _found(folder / "out/r.json") == EXPECTED
    assert "1 corrupted" in (folder / "r.md").read_text()
    assert "<strong>1 of " in (folder / "r.html").read_text()
    assert "report: r.md" in result.stdout.lines
    _check_junit(folder / "j.xml")
    _check_json(json.loads((folder / "out/r.json").read_text()))


def test_with_v_there_is_a_table(written):
    lines = written[1].outlines
    rows = [line.split() for line in lines]
    assert ["test_files[Records]", "test_files[ZerosOnError]"] in rows
    assert ["open-error", "failed_cleanly", "corrupted"] in rows
    assert sum("s trial    test_inner.py::test_files" in line for line in lines) == 2
    assert any("PASSED (failed_cleanly)" in line for line in lines)


def _check_json(report):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(resources.files(reports).joinpath("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(report)
    for item in report["items"]:
        kinds = {event["kind"] for event in item["timeline"]}
        assert ({"fault", "epoch"} <= kinds) is (item["status"] == "failed"), item["nodeid"]
        assert bool(kinds) is (item["status"] == "failed"), item["nodeid"]
    (run,) = report["runs"]
    began = datetime.fromisoformat(run["began"])
    assert 0 < run["duration"] <= (datetime.now(timezone.utc) - began).total_seconds() + 1
    assert run["command"].startswith("pytest ")
    assert "--dataloader-faults-report=out/r.json" in run["command"]
    assert (run["seed"], run["commit"]) == (0, "")


def _check_junit(path):
    cases = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314  # our own file
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        cases[case.get("name")] = properties
    failed = cases["test_files[open-error-ZerosOnError]"]
    assert failed["dataloader_faults_check"] == "open-error"
    assert failed["dataloader_faults_verdict"] == "corrupted"
    assert failed["dataloader_faults_passed"] == "false"
    assert failed["dataloader_faults_fault"].startswith("OpenError(path=")
    assert float(failed["dataloader_faults_duration"]) > 0
    left_out = cases["test_files[connect-error-Records]"]
    assert left_out["dataloader_faults_check"] == "connect-error"
    assert not {"dataloader_faults_verdict", "dataloader_faults_passed"} & left_out.keys()


GROUPED = SUITE.replace("@pytest.mark.data", "@pytest.mark.xdist_group('one')\n@pytest.mark.data")
MODES = ["load", "loadfile", "loadscope", "loadgroup", "worksteal", "each", "no"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", MODES)
def test_xdist_gives_one_report(suite, arguments):
    pytest.importorskip("xdist")
    options = ["-p", "xdist", "-n", "0" if arguments == "no" else "2", "--dist", arguments]
    options += ["--dataloader-faults-only=open-error", "--dataloader-faults-report=r.json"]
    suite.run(GROUPED, "-q", *options)
    expected = {key: result for key, result in EXPECTED.items() if key[0] == "open-error"}
    assert _found(suite.path / "r.json") == expected
    items = json.loads((suite.path / "r.json").read_text())["items"]
    assert {each["test"] for each in items} == {
        "test_inner.py::test_files[Records]",
        "test_inner.py::test_files[ZerosOnError]",
    }


CRASH = """
import os

import pytest
from support.datasets import Records


@pytest.mark.dataloader_faults(only=["open-error", "connect-error"])
def test_files(fault_check, records):
    fault_check(lambda: Records(records))


def test_zz_crash():
    os._exit(3)
"""


def test_a_crashed_process_of_xdist_loses_nothing_that_was_finished(suite):
    """Its items were sent when they ended.

    By --dist load: pytest-xdist 3.8 never ends after a crash under loadfile, loadscope, loadgroup.
    """
    pytest.importorskip("xdist")
    report = "--dataloader-faults-report=r.json"
    suite.run(CRASH, "-q", "-p", "xdist", "-n", "1", "--max-worker-restart=0", report)
    assert _found(suite.path / "r.json") == {
        ("open-error", ""): ("passed", "failed_cleanly"),
        ("connect-error", ""): ("not_applicable", None),
    }


def test_checks_are_in_the_order_of_the_battery():
    names = ["workers-agree", "open-error", "truncated-half", "connect-error"]
    ended = [("a.py::one", names[2]), ("b.py::two", names[3]), ("b.py::two", names[0])]
    ended += [("a.py::one", names[1]), ("b.py::two", names[2]), ("a.py::one", names[0])]
    items = [asdict(item_of(test=test, check=check)) for test, check in ended]
    report = Report(items=ordered_items(items))
    assert [(each.test[-3:], each.check) for each in report.items] == [
        *(("one", each) for each in names[:3]),
        *(("two", each) for each in (names[0], *names[2:])),
    ]
    rows = ["".join(text for text, _ in row).split()[0] for row in terminal.table(report)]
    assert rows[1:] == names


def test_ids_have_no_group_of_xdist():
    item = SimpleNamespace(
        parent=SimpleNamespace(nodeid="a.py"), name="test_b[x]", nodeid="a.py::test_b[x]@one"
    )
    assert id_of(item) == "a.py::test_b[x]"


DASHES = """
import pytest


@pytest.mark.dataloader_faults(only="open-error")
@pytest.mark.parametrize("number", [-1, 1, "a-"])
def test_it(fault_check, number):
    raise LookupError("no such folder")
"""


def test_an_id_keeps_its_own_dashes(suite):
    suite.run(DASHES, "--dataloader-faults-report=found.json").assert_outcomes(failed=3)
    items = json.loads((suite.path / "found.json").read_text())["items"]
    name = "test_inner.py::test_it"
    assert [f"{name}[-1]", f"{name}[1]", f"{name}[a-]"] == [each["test"] for each in items]


def test_a_report_has_the_commit(pytester):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *arguments], cwd=pytester.path, check=True)
    command = [*git, "rev-parse", "HEAD"]
    head = subprocess.check_output(command, cwd=pytester.path, text=True)
    pytester.makepyfile("def test_nothing():\n    pass\n")
    pytester.runpytest("--dataloader-faults-report=r.json", "--dataloader-faults-seed=7")

    (run,) = json.loads((pytester.path / "r.json").read_text())["runs"]
    assert (run["commit"], run["seed"]) == (head.strip(), 7)


def test_shards_are_merged(written, tmp_path, capsys):
    data = json.loads((written[0] / "out/r.json").read_text())
    shards = []
    for name in ("Records", "ZerosOnError"):
        items = [each for each in data["items"] if name in each["nodeid"]]
        (tmp_path / f"{name}.json").write_text(json.dumps({**data, "items": items}))
        shards.append(str(tmp_path / f"{name}.json"))
    output = tmp_path / "all.json"
    assert main(["merge", *shards, "-o", str(output), "-o", str(tmp_path / "all.html")]) == 0
    assert _found(output) == EXPECTED
    assert "<strong>1 of " in (tmp_path / "all.html").read_text()
    assert main(["merge", shards[0], "-o", "x.pdf"]) == 2
    assert "must end in one of .html, .json, .md" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "nothing.json"), "-o", str(output)]) == 2


def test_the_command_is_installed():
    module = "from pytest_dataloader_faults.report.command import main; main(['--help'])"
    process = subprocess.run(
        [sys.executable, "-c", module], capture_output=True, text=True, check=True
    )
    assert "merge" in process.stdout


WITHOUT = """
import sys

for name in ("torch", "pytest", "hypothesis", "pyfakefs", "psutil", "numpy", "typing_extensions"):
    sys.modules[name] = None  # An import of it is an ImportError.
from pytest_dataloader_faults.report.command import main
sys.exit(main(sys.argv[1:]))
"""


def test_reports_are_merged_where_only_jinja_is_installed(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(Report().to_dict()), "utf-8")
    outputs = [tmp_path / "all.html", tmp_path / "all.md"]
    command = [sys.executable, "-c", WITHOUT]
    options = [option for each in outputs for option in ("-o", each)]
    subprocess.run([*command, "merge", path, *options], check=True)
    assert all(each.exists() for each in outputs)
    subprocess.run([*command, "compare", path, path], check=True)


def test_an_unknown_ending_is_refused_at_once(light_suite):
    result = light_suite.run("", "--dataloader-faults-report=r.pdf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "report='r.pdf' must end in one of" in result.stderr.str()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/proc/nowhere.json", "No such file or directory: '/proc/nowhere.json'"),
        ("/dev/null/r.json", "Not a directory: '/dev/null/r.json'"),
        ("file/r.json", "Not a directory: '*file/r.json'"),
    ],
)
def test_a_report_that_cannot_be_written_fails_the_run(light_suite, path, reason):
    (light_suite.path / "file").write_text("")
    reports = [f"--dataloader-faults-report={each}" for each in (path, "r.md")]
    result = light_suite.run("def test_plain(): pass", *reports)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"the report {path} was not written: *{reason}"
    result.stdout.fnmatch_lines(["report: r.md", message])
    result.stdout.no_fnmatch_line(f"report: {path}*")
    assert ".tmp" not in result.stdout.str()


def test_a_job_of_github_is_reported(suite, monkeypatch):
    summary = suite.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = suite.run(DASHES, "-q")
    commands = [line for line in result.stdout.lines if line.startswith("::error ")]
    assert len(commands) == 3
    assert summary.exists()


def _no_folder(path):
    return path / "missing" / "summary.md"


def _folder(path):
    return path


def _full(path):
    return Path("/dev/full")


def _fifo(path):
    os.mkfifo(path / "fifo")
    return path / "fifo"


@pytest.mark.parametrize("make", [_no_folder, _folder, _full, _fifo])
def test_a_job_summary_that_cannot_be_written_costs_a_line(suite, monkeypatch, make):
    summary = make(suite.path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = suite.run(DASHES, "-q", "--dataloader-faults-report=r.md")
    result.assert_outcomes(failed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    problem = f"the summary of the GitHub job was not written: *{summary}'"
    result.stdout.fnmatch_lines(["*LookupError: no such folder", "report: r.md", problem])
    assert sum("was not written" in line for line in result.outlines) == 1
    assert "3 failed" in result.outlines[-1]


def test_a_problem_is_reported_in_red_as_the_last_line(light_suite, monkeypatch):
    """Below the line in which pytest counts the tests, which is green; in a GitHub job as an error.

    A test may change the working directory.
    """
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    source = "import os\ndef test_plain(tmp_path): os.chdir(tmp_path)"
    reports = [f"--dataloader-faults-report={each}" for each in ("file/r.md", "r.md")]
    (light_suite.path / "file").write_text("")
    result = light_suite.run(source, "-q", "--color=yes", *reports)
    *_, counts, command, last_line = result.outlines
    assert "1 passed" in counts
    assert command.startswith("::error::the report file/r.md was not written: ")
    assert last_line.startswith("\x1b[31mthe report file/r.md was not written: ")
    assert (light_suite.path / "r.md").exists()


def test_the_clock_may_be_set_while_tests_run(light_suite):
    source = """
import time
from unittest import mock

def test_plain():
    mock.patch("time.time", lambda: 1.0).start()
"""
    try:
        light_suite.run(source, "--dataloader-faults-report=r.json", "-p", "no:cacheprovider")
    finally:
        mock.patch.stopall()
    (run,) = json.loads((light_suite.path / "r.json").read_text())["runs"]
    assert 0 <= run["duration"] < 100


AROUND = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

pytestmark = pytest.mark.dataloader_faults(only=["open-error"])


@pytest.mark.xfail(reason="issue 3")
def test_expected(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


def test_never_asks(fault_check):
    pass


def test_fails_later(fault_check, records):
    fault_check(lambda: Records(records))
    assert 0


@pytest.fixture
def bad_setup():
    raise ValueError("no disk")


def test_set_up(bad_setup, fault_check):
    pass


@pytest.fixture
def bad_teardown():
    yield
    raise ValueError("no end")


def test_torn_down(bad_teardown, fault_check, records):
    fault_check(lambda: Records(records))
"""


def test_a_test_that_fails_by_itself_is_in_its_report(suite):
    suite.run(AROUND, "-v", "--dataloader-faults-report=r.json", "--dataloader-faults-report=r.md")
    items = json.loads((suite.path / "r.json").read_text())["items"]
    items_by_test = {each["test"].partition("::test_")[2]: each for each in items}
    assert {name: (each["status"], each["verdict"]) for name, each in items_by_test.items()} == {
        "expected": ("xfailed", "corrupted"),
        "never_asks": ("error", None),
        "fails_later": ("error", "failed_cleanly"),
        "set_up": ("error", None),
        "torn_down": ("error", "failed_cleanly"),
    }
    assert items_by_test["fails_later"]["sentence"] == "error in the test itself: assert 0"
    assert items_by_test["set_up"]["sentence"].endswith(
        "error in the setup of the test: ValueError: no disk"
    )
    assert "fault_check was never called" in items_by_test["never_asks"]["sentence"]
    rows = (suite.path / "r.md").read_text().splitlines()
    assert sum(row.startswith("| :x:") for row in rows) == 4


UNTRIED = """
import pytest
from support.datasets import Records

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "pickles"])


@pytest.fixture
def broken():
    raise ValueError("fixture")


def test_fixture(fault_check, broken):
    pass


def test_own(fault_check):
    raise LookupError("no such folder")


def test_factory(fault_check):
    fault_check(lambda: 1 / 0)


def test_later(fault_check, records, request):
    fault_check(lambda: Records(records))
    if "pickles" in request.node.name:
        raise ValueError("later: too late")
"""


@pytest.fixture(name="untried", scope="module")
def _untried(run_suite):
    """The folder, and what is printed where three of four tests can try nothing."""
    names = ("r.json", "r.md", "r.html")
    options = [f"--dataloader-faults-report={name}" for name in names]
    return run_suite(UNTRIED, "-v", "--tb=no", "--junitxml=j.xml", *options)


def test_what_did_not_run_has_no_verdict(untried):
    items = json.loads((untried[0] / "r.json").read_text())["items"]
    results = {}
    for item in items:
        name = item["test"].partition("::test_")[2]
        results.setdefault(name, []).append((item["status"], item["verdict"]))
    unasked = [("not_run", None)] * 2
    assert results["fixture"] == results["own"] == [("error", None), *unasked]
    assert results["factory"] == [("failed", "not_exercised"), *unasked]


def test_pages_tell_what_did_not_run_from_what_does_not_apply(untried):
    text = (untried[0] / "r.md").read_text()
    assert "| test | verdicts | not applicable | not run | seconds |" in text
    assert "test\\_fixture | 1 not judged \\(error in the test\\) | 0 | 2 |" in text
    assert text.count("- workers-agree: **error in the setup of the test: ValueError: fixture") == 1
    page = (untried[0] / "r.html").read_text()
    assert 'class="badge not_run"' in page
    assert ">not run<" in page
    assert "not applicable" not in page


def test_each_item_has_properties_in_junit(untried):
    properties = {}
    for case in ET.parse(untried[0] / "j.xml").iter("testcase"):  # noqa: S314  # our own file
        properties[case.get("name")] = [
            (element.get("name").removeprefix("dataloader_faults_"), element.get("value"))
            for element in case.iter("property")
        ]
    for test in ("fixture", "own"):
        for check in ("workers-agree", "open-error", "pickles"):
            assert properties[f"test_{test}[{check}]"] == [("check", check)]
    failure, *skipped = (
        dict(properties[f"test_factory[{check}]"]) for check in _checks(properties)
    )
    assert (failure["verdict"], failure["passed"]) == ("not_exercised", "false")
    assert not [each for each in skipped if {"verdict", "passed"} & each.keys()]


def _checks(properties):
    return [
        name[len("test_factory[") : -1] for name in properties if name.startswith("test_factory")
    ]


def test_without_tracebacks_the_summary_has_the_errors(untried):
    output = " ".join(untried[1].stdout.str().split())
    assert "see the error above" not in output
    quoted = "3 checks could not be run (error in the setup of the test: ValueError: fixture)"
    assert f"test_fixture: {quoted};" in output
    assert "(error in the test itself: LookupError: no such folder);" in output
    assert (
        "ZeroDivisionError"
        in output.partition("test_factory: 3 checks could not be run (")[2][:200]
    )
    assert "1 check (pickles): error in the test itself: ValueError: later: too late" in output


def test_verdicts_have_no_nested_brackets(untried):
    output = untried[1].stdout.str()
    assert "FAILED (survived, error in the test)" in output
    assert "FAILED (not judged, error in the test)" in output


OTHER_ITEM = """
import pytest


class Item(pytest.Item):
    def runtest(self):
        raise AssertionError("not ours")


def pytest_collection_modifyitems(session, items):
    items.append(Item.from_parent(session, name="other"))
"""


def test_an_item_of_another_plugin_is_left_alone(light_suite):
    light_suite.pytester.makeconftest(OTHER_ITEM)
    result = light_suite.run("", "--dataloader-faults-report=r.json")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*= dataloader-faults =*")
    assert json.loads((light_suite.path / "r.json").read_text(encoding="utf-8"))["items"] == []
