"""The reports of a run, and what pytest shows at its end."""

import json
import subprocess
import sys
from datetime import datetime, timezone
from importlib import resources
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from pytest_dataloader_faults import report as reports
from pytest_dataloader_faults.plugin._items import id_of, strip_check
from pytest_dataloader_faults.report.model import Report
from support.rows import rows
from support.suites import REPORT, failures_of, items_of, results_of, summary_of

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.corpus.caches import CheckedSpectrograms
from support.datasets import Records
from support.plugin_datasets import ZerosOnError, ZerosOnce

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error"])
one = pytest.mark.dataloader_faults(only="open-error")

@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "connection-error"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))

@pytest.fixture
def broken():
    raise ValueError("no disk: " + "x" * 1000 + "\\nsecond line")

def test_fixture(fault_check, broken):
    pass

@pytest.mark.parametrize("number", [-1, 1, "a-"])
def test_own(fault_check, number):
    raise LookupError("no such folder\\nsecond line")

def test_factory(fault_check):
    fault_check(lambda: 1 / 0)

def test_never_called(fault_check):
    pass

def test_later(fault_check, records, request):
    fault_check(lambda: Records(records))
    if "open-error" in request.node.name:
        raise ValueError("too late")

@one
@pytest.mark.xfail(reason="issue 3")
def test_expected(fault_check):
    fault_check(lambda: 1 / 0)

@pytest.fixture
def bad_teardown():
    yield
    raise ValueError("no end")

@pytest.mark.dataloader_faults(only="workers-agree")
def test_torn_down(bad_teardown, fault_check, records):
    fault_check(lambda: Records(records))

@pytest.fixture
def reworded(fault_check):
    def ask(make):
        try:
            fault_check(make)
        except pytest.fail.Exception as error:
            pytest.fail(f"our data: {error}")
    return ask

@pytest.fixture
def note(tmp_path):
    path = tmp_path / "note"
    path.touch()
    return path

@one
def test_flaky(fault_check, records, note):
    fault_check(lambda: ZerosOnce(records, note))

@pytest.mark.dataloader_faults(only="open-error", flaky="fail")
def test_flaky_fails(reworded, records, note):
    reworded(lambda: ZerosOnce(records, note))

@pytest.mark.dataloader_faults(only=["open-error", "truncated-file"])
def test_cached(fault_check, records):
    cache = records.parent / "cache"
    cache.mkdir()
    fault_check(lambda: CheckedSpectrograms(records, cache))

def test_of_the_user(read_errors):
    pytest.fail("first line\\nsecond line", pytrace=False)
"""
UNASKED = {"workers-agree": "error", "open-error": "not_run"}
EXPECTED = {
    "files[Records]": {
        "workers-agree": "passed survived",
        "open-error": "passed failed_cleanly",
        "connection-error": "not_applicable",
    },
    "files[ZerosOnError]": {
        "workers-agree": "passed survived",
        "open-error": "failed corrupted",
        "connection-error": "not_applicable",
    },
    "fixture": UNASKED,
    "own[-1]": UNASKED,
    "own[1]": UNASKED,
    "own[a-]": UNASKED,
    "factory": {"workers-agree": "failed not_exercised", "open-error": "not_run"},
    "never_called": UNASKED,
    "later": {"workers-agree": "passed survived", "open-error": "error failed_cleanly"},
    "expected": {"open-error": "xfailed not_exercised"},
    "torn_down": {"workers-agree": "error survived"},
    "flaky": {"open-error": "flaky corrupted"},
    "flaky_fails": {"open-error": "failed corrupted"},
    "cached": {"open-error": "passed failed_cleanly", "truncated-file": "passed failed_cleanly"},
}
COULD_NOT = "could not be run (see the error above)"


@pytest.fixture(name="ran", scope="module")
def _ran(run_suite):
    names = ["r.json", "out/r.md", "r.html"]
    options = [f"--dataloader-faults-report={name}" for name in names]
    return run_suite(SUITE, "-vv", "--durations=2", "--junitxml=j.xml", *options)


def test_each_item_has_its_status_and_its_verdict(ran):
    folder, result = ran
    assert results_of(folder) == EXPECTED
    sentences = {(each["name"], each["check"]): each["sentence"] for each in items_of(folder)}
    assert sentences["later", "open-error"] == "error in the test itself: ValueError: too late"
    assert sentences["fixture", "workers-agree"].startswith("error in the setup of the test: Val")
    assert (
        sentences["torn_down", "workers-agree"]
        == "error in the teardown of the test: ValueError: no end"
    )
    result.assert_outcomes(passed=8, failed=9, skipped=8, xfailed=1, errors=2, warnings=1)


def test_the_json_report_is_as_its_schema_says(ran):
    jsonschema = pytest.importorskip("jsonschema")
    report = json.loads((ran[0] / "r.json").read_text())
    schema = json.loads(resources.files(reports).joinpath("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(report)
    for item in items_of(ran[0]):
        if item["name"].startswith("files"):
            kinds = {event["kind"] for event in item["timeline"]}
            assert bool(kinds) == ({"fault", "epoch"} <= kinds) == (item["status"] == "failed")
    (run,) = report["runs"]
    began = datetime.fromisoformat(run["began"])
    assert 0 < run["duration"] <= (datetime.now(timezone.utc) - began).total_seconds() + 1
    assert run["command"].startswith("pytest ")
    assert "--dataloader-faults-report=out/r.md" in run["command"]
    assert run["seed"] == 0


def test_each_item_has_properties_in_junit(ran):
    cases = {}
    for case in ET.parse(ran[0] / "j.xml").iter("testcase"):  # noqa: S314  # our own file
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        start = "dataloader_faults_"
        cases[case.get("name")] = {
            name.removeprefix(start): properties[name] for name in properties
        }
    failed = cases["test_files[open-error-ZerosOnError]"]
    assert (failed["check"], failed["verdict"], failed["passed"]) == (
        *("open-error", "corrupted", "false"),
    )
    assert failed["fault"].startswith("OpenError(path=")
    assert float(failed["duration"]) > 0
    assert cases["test_factory[workers-agree]"]["verdict"] == "not_exercised"
    for name in ("files[connection-error-Records]", "fixture[open-error]", "own[workers-agree-1]"):
        assert cases[f"test_{name}"].keys() & {"check", "verdict", "passed"} == {"check"}


def test_pages_are_written_and_with_v_verdicts_are_shown(ran):
    folder, result = ran
    assert (
        "test_fixture: 2 checks could not be run (error in the setup"
        in (folder / "out/r.md").read_text()
    )
    assert 'class="badge not_run"' in (folder / "r.html").read_text()
    lines = result.outlines
    assert "report: out/r.md" in lines
    text = result.stdout.str()
    for shown in (
        "test_files[open-error-Records] PASSED (failed_cleanly)",
        "test_later[open-error] FAILED (failed_cleanly, error in the test)",
        "test_own[workers-agree--1] FAILED (not judged, error in the test)",
    ):
        assert shown in text


def test_the_summary_has_a_line_for_each_dataset_and_cause(ran):
    """What could not run is counted, and its error is not shown again."""
    summary = summary_of(ran[1]).partition(" ===")[0]
    for line in (
        "test_files[Records]: 2 checks passed (1 survived, 1 failed_cleanly), 1 not applicable;",
        "test_files[ZerosOnError]: 1 of 2 checks failed (1 corrupted), 1 passed (1 survived), 1 no",
        f"test_fixture: 2 checks {COULD_NOT};",
        f"test_factory: 2 checks {COULD_NOT};",
        "test_flaky_fails: 1 check failed (1 corrupted);",
    ):
        assert f"test_inner.py::{line}" in summary
    assert "returns a substitute for an unreadable sample: open-error" in summary
    for error in ("no disk", "no such folder", "ZeroDivisionError"):
        assert error not in summary
    note = "note: test_inner.py::test_cached: 16 files that the workers read (cache/00.npy"
    assert note in summary
    assert summary.count("like a cache") == 1


def test_pytests_short_summary_has_one_line_for_each_failure(ran):
    """In CI and with -vv, pytest would show each text in full again. JUnit's file has it all."""
    folder, result = ran
    above, _, summary = result.stdout.str().partition("= short test summary info =")
    lines = [line.partition("::test_")[2] for line in summary.splitlines()[1:]]
    for start in (
        "files[open-error-ZerosOnError] - corrupted: samples 0 to 15",
        "factory[workers-agree] - make_dataset() raised ZeroDivisionError",
        f"fixture[workers-agree] - ValueError: no disk: {'x' * 70}",
        "of_the_user - Failed: first line",
    ):
        assert sum(line.startswith(start) for line in lines) == 1, start
    assert max(map(len, lines)) < 250
    assert "second line" not in "\n".join(line for line in lines if "of_the_user" not in line)
    assert "reproduce: " not in summary.partition("test_of_the_user")[0]
    assert "reproduce: " in (folder / "j.xml").read_text()
    assert "flaky: 1 of 3 trials failed" in failures_of(result)["flaky_fails[open-error]"]
    assert "flaky: 1 of 3 trials failed" in above.partition("= warnings summary")[2]


def test_nothing_is_said_of_tests_that_run_no_check(light_suite):
    """Whatever their items are."""
    other = """
        import pytest

        class Item(pytest.Item):
            def runtest(self):
                raise AssertionError("not ours")

        def pytest_collection_modifyitems(session, items):
            items.append(Item.from_parent(session, name="other"))
    """
    light_suite.pytester.makeconftest(other)
    result = light_suite.run("def test_plain(): assert False", REPORT)
    result.assert_outcomes(failed=2)
    result.stdout.no_fnmatch_line("*= dataloader-faults =*")
    assert items_of(light_suite.path) == []


KILLED = """
import os
import signal

def test_files(fault_check):
    fault_check(list)

def test_zz_killed():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_keeps_what_it_found(suite):
    reports = [f"--dataloader-faults-report={name}" for name in ("r.json", "r.html")]
    suite.run(KILLED, "--dataloader-faults-only=pickles", *reports)
    assert results_of(suite.path) == {"files": {"pickles": "failed not_exercised"}}
    (run,) = json.loads((suite.path / "r.json").read_text())["runs"]
    assert not run["is_complete"]
    assert "ended early" in (suite.path / "r.html").read_text()


def test_ids_have_no_group_of_xdist():
    item = SimpleNamespace(
        parent=SimpleNamespace(nodeid="a.py"), name="test_b[x]", nodeid="a.py::test_b[x]@one"
    )
    assert id_of(item) == "a.py::test_b[x]"


@rows(
    ("nodeid", "test"),
    [
        ("a.py::test[read-error]", "a.py::test"),
        ("a.py::test[coco-read-error]", "a.py::test[coco]"),
        ("a.py::test[read-error-coco]", "a.py::test[coco]"),
        ("a.py::test[a-read-error-b]", "a.py::test[a-b]"),
    ],
)
def test_items_of_one_test_belong_together(nodeid, test):
    assert strip_check(nodeid, "read-error") == test


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


def test_reports_that_cannot_be_written_fail_the_run(light_suite):
    """Other reports are written. A test may change the working directory."""
    (light_suite.path / "file").write_text("")
    problems = {
        "/proc/nowhere.json": "No such file or directory: '/proc/nowhere.json'",
        "/dev/null/r.json": "Not a directory: '/dev/null/r.json'",
        "file/r.md": "Not a directory: '*file/r.md'",
    }
    source = "import os\ndef test_plain(tmp_path): os.chdir(tmp_path)"
    reports = [f"--dataloader-faults-report={each}" for each in (*problems, "r.md")]
    result = light_suite.run(source, "-q", "--color=yes", *reports)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for path, reason in problems.items():
        message = f"\x1b[[]31mthe report {path} was not written: *{reason}*"
        result.stdout.fnmatch_lines([message])
    assert "report: r.md" in result.outlines
    assert (light_suite.path / "r.md").exists()
    assert ".tmp" not in result.stdout.str()

    refused = light_suite.again("--dataloader-faults-report=r.pdf")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "report='r.pdf' must end in one of" in refused.stderr.str()


OWN = """
import pytest

@pytest.mark.dataloader_faults(only="open-error")
@pytest.mark.parametrize("number", [-1, 1, "a-"])
def test_it(fault_check, number):
    raise LookupError("no such folder")
"""


def test_a_job_of_github_is_reported(light_suite, monkeypatch):
    summary = light_suite.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = light_suite.run(OWN)
    assert sum(line.startswith("::error ") for line in result.outlines) == 3
    assert summary.exists()


@rows("summary", ["missing/summary.md", "folder", "/dev/full"])
def test_a_job_summary_that_cannot_be_written_costs_a_line(light_suite, monkeypatch, summary):
    path = light_suite.path / summary
    (light_suite.path / "folder").mkdir(exist_ok=True)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    result = light_suite.run(OWN, "--dataloader-faults-report=r.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    problem = "the summary of the GitHub job was not written: [[]Errno *"
    result.stdout.fnmatch_lines(["*LookupError: no such folder", "report: r.md", problem])
    assert sum("was not written" in line for line in result.outlines) == 1
    assert "3 failed" in result.outlines[-1]
