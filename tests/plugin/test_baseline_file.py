"""A file of known failures: only new failures fail, and what no longer fails is told."""

import json
import os
import stat

import pytest

pytestmark = pytest.mark.usefixtures("engine")

BASELINE = "--dataloader-faults-baseline=baseline.json"
UPDATE = (BASELINE, "--dataloader-faults-update-baseline")
STRICT = "--dataloader-faults-strict-baseline"
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
ZEROS = "test_inner.py::test_zeros[open-error]"


def _entry(nodeid=ZEROS, check="open-error", verdict="corrupted", reason="", **fields):
    test = fields.pop("test", nodeid.partition("[")[0])
    last = {"without_fault": fields.pop("without_fault")} if "without_fault" in fields else {}
    failure = {"check": check, "status": "failed", "verdict": verdict, **last, "reason": reason}
    return {"nodeid": nodeid, "test": test, **fields, **failure}


def _text(*entries):
    return json.dumps({"version": 1, "items": list(entries)}, indent=2) + "\n"


def _write(suite, *entries):
    (suite.path / "baseline.json").write_text(_text(*entries))


def _read(suite):
    """The entries of the file, which has nothing else."""
    text = (suite.path / "baseline.json").read_text()
    entries = json.loads(text)["items"]
    assert text == _text(*entries)
    return entries


def test_a_file_is_written_and_its_failures_are_known(suite):
    result = suite.run(SUITE, *UPDATE)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["1 known failure written to baseline.json, 1 without a reason"])
    assert (suite.path / "baseline.json").read_text() == _text(_entry())

    second = suite.again("-rx", BASELINE, "--dataloader-faults-report=r.json")
    assert second.ret == pytest.ExitCode.OK
    second.assert_outcomes(passed=1, xfailed=1)
    second.stdout.fnmatch_lines([f"XFAIL {ZEROS} - listed in baseline.json (corrupted)"])
    assert "failed as expected (1 corrupted)" in " ".join(second.stdout.str().split())
    second.stdout.no_fnmatch_line("*no longer*")
    items = {each["nodeid"]: each for each in _report(suite, "r.json")}
    assert (items[ZEROS]["status"], items[ZEROS]["verdict"]) == ("xfailed", "corrupted")
    assert items[ZEROS]["reason"] == ""  # An update of a baseline from this report invents nothing.


def _report(suite, name):
    return json.loads((suite.path / name).read_text())["items"]


def test_reasons_stay_and_are_shown(suite):
    other_entries = [
        _entry("test_other.py::test_it[open-error]", reason="issue 2"),
        _entry(reason="b"),
    ]
    _write(suite, *other_entries)
    suite.run(SUITE, *UPDATE, "-k", "zeros")
    assert _read(suite) == [other_entries[1], other_entries[0]]
    result = suite.again("-rx", BASELINE, "-k", "zeros", "test_inner.py")
    result.assert_outcomes(xfailed=1, deselected=1)
    result.stdout.fnmatch_lines([f"XFAIL {ZEROS} - b (corrupted)"])


def test_another_verdict_and_another_item_fail(suite):
    _write(suite, _entry(verdict="hung", reason="b"))
    result = suite.run(SUITE, BASELINE)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["baseline.json expects hung. corrupted: samples*"])
    result.stdout.no_fnmatch_line("*matches no test*")
    suite.again(*UPDATE)
    assert _read(suite) == [_entry(reason="b")]


HEALED = _entry("test_inner.py::test_healthy[open-error]", verdict="hung", reason="issue 2")
GONE = _entry("test_inner.py::test_renamed[open-error]", reason="issue 2")
TOLD = [
    "baseline.json: 1 known failure no longer fails. Remove it, or run pytest with --data*:",
    "  test_inner.py::test_healthy[[]open-error]",
    "baseline.json: 1 known failure matches no test. Correct its id, remove it, or run pytest*",
    "  test_inner.py::test_renamed[[]open-error]",
]


FAILS_BY = (
    "the run fails because of {}: 1 known failure no longer fails, 1 known failure matches no test"
    " in baseline.json"
)


def test_what_no_longer_fails_is_reported(suite):
    keys = "dataloader_faults_baseline = baseline.json\ndataloader_faults_strict_baseline = true"
    suite.pytester.makeini(f"[pytest]\n{keys}")
    _write(suite, _entry(), HEALED, GONE)
    strict = suite.run(SUITE, "-m", "dataloader_faults")
    strict.assert_outcomes(passed=1, xfailed=1)
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines(TOLD, consecutive=True)
    assert strict.outlines[-1] == FAILS_BY.format("ini key dataloader_faults_strict_baseline")
    removed = [f"removed: {each['nodeid']} (issue 2)" for each in (HEALED, GONE)]
    assert [line for line in suite.again(*UPDATE).outlines if "removed" in line] == removed
    assert _read(suite) == [_entry()]


@pytest.mark.parametrize("options", [(), ("-q",), ("-qq",)])
def test_the_last_line_says_why_a_strict_run_fails(light_suite, monkeypatch, options):
    _write(light_suite, GONE)
    source = "def test_plain(): pass"
    reason = "{}: 1 known failure matches no test in baseline.json".format(
        FAILS_BY.partition(":")[0]
    )
    last_line = f"\x1b[31m{reason.format(STRICT)}\x1b[0m"
    strict = light_suite.run(source, BASELINE, STRICT, "--color=yes", *options)
    assert (strict.ret, strict.outlines[-1]) == (pytest.ExitCode.TESTS_FAILED, last_line)
    assert "::error" not in strict.stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    in_job = light_suite.run(source, BASELINE, STRICT, "--color=yes", *options)
    assert in_job.outlines[-2:] == [f"::error::{reason.format(STRICT)}", last_line]
    lenient = light_suite.run(source, BASELINE, *options)
    assert lenient.ret == pytest.ExitCode.OK
    assert "1 known failure matches no test" in lenient.stdout.str()
    lenient.stdout.no_fnmatch_line("*run fails*")


@pytest.mark.parametrize("selected", [("-k", "test_"), ("test_inner.py",), ("--ignore=sub",)])
def test_a_part_of_the_tests_misses_no_entry(light_suite, selected):
    (light_suite.path / "sub").mkdir()
    _write(light_suite, GONE)
    result = light_suite.run("def test_plain(): pass", BASELINE, STRICT, *selected)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*matches no test*")


def test_a_part_of_the_tests_may_have_known_failures_that_no_longer_fail(suite):
    _write(suite, _entry(), HEALED, GONE)
    result = suite.run(SUITE, BASELINE, STRICT, "-k", "healthy")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(TOLD[:2], consecutive=True)
    result.stdout.no_fnmatch_line("*matches no test*")


def test_a_file_that_is_not_collected_misses_no_entry(suite):
    _write(suite, _entry("test_skipped.py::test_it[open-error]"))
    skipped = "import pytest; pytest.skip('not here', allow_module_level=True)"
    suite.pytester.makepyfile(test_skipped=skipped)
    result = suite.run("def test_plain(): assert False", BASELINE)
    result.assert_outcomes(failed=1, skipped=1)
    _write(suite, GONE)
    suite.again(BASELINE).stdout.fnmatch_lines(["*matches no test*"])
    suite.again(BASELINE, "--lf").stdout.no_fnmatch_line("*matches no test*")


def test_what_is_caught_or_expected_is_no_known_failure(suite):
    """A failure that the test itself or a mark expects is not written, nor is one of no check.

    A report has the first as an expected failure.
    """
    source = """
import pytest
from support.plugin_datasets import Numbers, ZerosOnError

open_error = pytest.mark.dataloader_faults(only="open-error")


@open_error
def test_caught(fault_check, records):
    with pytest.raises(pytest.fail.Exception):
        fault_check(lambda: ZerosOnError(records))


@open_error
@pytest.mark.xfail
def test_marked(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


@pytest.mark.dataloader_faults(only="open-error", expected_failures={"open-error": "why"})
def test_expected(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


@pytest.mark.dataloader_faults(only="pickles", expected_failures={"pickles": "why"})
def test_fixed(fault_check):
    fault_check(Numbers)


@pytest.mark.dataloader_faults(only="pickles")
def test_no_dataset(fault_check):
    fault_check(lambda: None)


@pytest.mark.dataloader_faults(only="pickles")
def test_of_its_own(fault_check):
    fault_check(Numbers)
    assert 1 + 1 == 3
"""
    result = suite.run(source, *UPDATE, "--dataloader-faults-report=r.json")
    result.assert_outcomes(passed=1, xfailed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "0 known failures written to baseline.json",
            "3 failures are not in the file, because no check found them",
        ]
    )
    statuses = {
        each["test"].partition("::test_")[2]: each["status"] for each in _report(suite, "r.json")
    }
    expected = dict.fromkeys(["caught", "marked", "expected"], "xfailed")
    assert statuses == {
        **expected,
        "fixed": "failed",
        "no_dataset": "failed",
        "of_its_own": "error",
    }
    assert _read(suite) == []


def test_strict_needs_known_failures(light_suite):
    result = light_suite.run("def test_plain(): pass", STRICT)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"ERROR: {STRICT} needs the baseline: add --dataloader-faults-baseline=FILE"
    assert message in result.stderr.str()


def test_runxfail_knows_nothing(suite):
    _write(suite, _entry())
    result = suite.run(SUITE, BASELINE, "--runxfail", "-k", "zeros")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["corrupted: samples*"])


def _glob(nodeid):
    return nodeid.replace("[", "[[]")


ALONE = """
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info


class Fails(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 3 and get_worker_info():
            raise LookupError("no sample 3")
        return torch.tensor(index)


@pytest.mark.dataloader_faults(only=["workers-agree", "two-epochs"])
def test_fails(fault_check):
    fault_check(Fails)
"""


def test_a_dataset_that_fails_with_no_fault_is_known_by_its_test(suite):
    suite.run(ALONE, *UPDATE, "-k", "two").assert_outcomes(failed=1, deselected=1)
    fields = {"check": "workers-agree", "verdict": "fails_without_fault", "without_fault": True}
    entry = _entry("test_inner.py::test_fails", **fields)
    assert _read(suite) == [entry]
    suite.again(BASELINE, STRICT).assert_outcomes(xfailed=1, skipped=1)
    healed = suite.run(ALONE.replace("index == 3", "False"), BASELINE)
    healed.assert_outcomes(passed=2)
    healed.stdout.fnmatch_lines(
        ["*no longer fails*", "  test_inner.py::test_fails, without a fault"]
    )


@pytest.mark.slow
def test_checks_of_ranks_are_known(suite):
    source = """
import pytest
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(range(16)[worker.id :: worker.num_workers] if worker else range(16))


@pytest.mark.dataloader_faults(only="ranks-agree")
def test_ranks(fault_check):
    fault_check(Stream)
"""
    ranks = "--dataloader-faults-ranks=2"
    result = suite.run(source, *UPDATE, ranks)
    result.assert_outcomes(failed=1)
    (entry,) = _read(suite)
    assert (entry["check"], entry["nodeid"]) == (
        "ranks-agree",
        "test_inner.py::test_ranks[ranks-agree]",
    )
    suite.again(BASELINE, STRICT, ranks).assert_outcomes(xfailed=1)
    skipped = suite.again(BASELINE, STRICT)
    skipped.assert_outcomes(skipped=1)
    assert skipped.ret == pytest.ExitCode.OK


SOMETIMES = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


class ZerosInTheFirstTrial(ZerosOnError):
    def __init__(self, folder):
        super().__init__(folder)
        self.note = folder.parent / "note"
        self.is_first = not self.note.stat().st_size

    def __getitem__(self, index):
        if not self.is_first:
            return Records.__getitem__(self, index)
        found = super().__getitem__(index)
        if not found[0].any():
            with self.note.open("a") as file:
                file.write(".")
        return found


@pytest.mark.dataloader_faults(only="read-error")
def test_sometimes(fault_check, records):
    (records.parent / "note").touch()
    fault_check(lambda: ZerosInTheFirstTrial(records), files="*.rec")
"""


def test_what_fails_in_one_trial_of_three_is_not_mended(suite):
    fail = "--dataloader-faults-flaky=fail"
    suite.run(SOMETIMES, *UPDATE, fail).assert_outcomes(failed=1)
    assert [each["verdict"] for each in _read(suite)] == ["corrupted"]
    suite.again(BASELINE, STRICT, fail).assert_outcomes(xfailed=1, warnings=1)
    result = suite.again(BASELINE, STRICT)
    result.assert_outcomes(passed=1, warnings=1)
    assert result.ret == pytest.ExitCode.OK


def test_merged_reports_have_known_failures(suite, capsys):
    from pytest_dataloader_faults.report.command import main

    _write(suite, _entry(reason="issue 1"))
    names = [str(suite.path / name) for name in ("a.json", "b.json", "all.json", "all.html")]
    suite.run(SUITE, BASELINE, f"--dataloader-faults-report={names[0]}", "-k", "healthy")
    suite.again(BASELINE, f"--dataloader-faults-report={names[1]}", "-k", "zeros")
    assert main(["merge", *names[:2], "-o", names[2], "-o", names[3]]) == 0
    statuses = {each["nodeid"]: each["status"] for each in _report(suite, "all.json")}
    assert statuses[ZEROS] == "xfailed"
    assert len(statuses) == 2
    assert "corrupted (expected)" in (suite.path / "all.html").read_text()
    with_report = suite.again("-rx", "--dataloader-faults-baseline=all.json", STRICT, "-k", "zeros")
    with_report.assert_outcomes(xfailed=1, deselected=1)
    assert with_report.ret == pytest.ExitCode.OK
    with_report.stdout.fnmatch_lines([f"XFAIL {ZEROS} - issue 1 (corrupted)"])
    assert main(["compare", str(suite.path / "baseline.json"), names[2]]) == 0
    assert capsys.readouterr().out.endswith("failures: 1 before, 1 now (nothing changed)\n")


XDIST = "-p", "xdist", "-n", "2", "--dist", "loadgroup"
GROUPED = SUITE.replace("def test_zeros", "@pytest.mark.xdist_group('z')\ndef test_zeros")


@pytest.mark.slow
@pytest.mark.timeout(300)  # Two processes import torch.
def test_processes_of_xdist_read_one_file(suite):
    pytest.importorskip("xdist")
    _write(suite, _entry(reason="a"), HEALED, GONE)
    strict = suite.run(GROUPED, BASELINE, STRICT, *XDIST)
    strict.assert_outcomes(passed=1, xfailed=1)
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines(TOLD, consecutive=True)
    assert strict.outlines[-1] == FAILS_BY.format(STRICT)


def test_a_bad_file_is_a_usage_error(light_suite):
    (light_suite.path / "baseline.json").write_text("[" * 100_000)
    result = light_suite.run("def test_plain(): pass", BASELINE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    where = "ERROR: baseline='baseline.json' from --dataloader-faults-baseline is not a baseline: "
    problem = "its lists and objects are nested too deeply*"
    result.stderr.fnmatch_lines([f"{where}*{problem}"])
    result.stderr.fnmatch_lines(["*Fix it, or delete the file and rewrite it with --dat*"])


def test_no_file_is_a_usage_error(light_suite):
    suite = light_suite
    result = suite.run("def test_plain(): pass", BASELINE)
    problem = "cannot be read: No such file or directory. Pass the path of a baseline, or write one"
    where = "ERROR: baseline='baseline.json' from --dataloader-faults-baseline"
    result.stderr.fnmatch_lines([f"{where} {problem} with {UPDATE[1]}"])
    suite.again("--dataloader-faults-baseline=").stderr.fnmatch_lines(
        ["ERROR: baseline='' from --dataloader-faults-baseline must be*"]
    )
    suite.again(UPDATE[1]).stderr.fnmatch_lines([f"ERROR: {UPDATE[1]} needs the baseline: add*"])
    suite.pytester.makeini("[pytest]\ndataloader_faults_baseline = sub/baseline.json")
    suite.again().stderr.fnmatch_lines(["ERROR: baseline='sub/baseline.json' from ini key data*"])
    assert suite.again(UPDATE[1]).ret == pytest.ExitCode.OK
    assert (suite.path / "sub/baseline.json").read_text() == _text()
    assert suite.again("--collect-only", *UPDATE).ret == pytest.ExitCode.OK
    assert not (suite.path / "baseline.json").exists()


@pytest.mark.parametrize("update", [UPDATE[1:], ()])
def test_a_report_at_the_path_of_the_baseline_is_a_usage_error(light_suite, update):
    _write(light_suite, _entry(reason="issue 2"))
    (light_suite.path / "link.html").symlink_to("baseline.json")
    for name in ("./baseline.json", "link.html"):
        report = f"--dataloader-faults-report={name}"
        result = light_suite.run("def test_plain(): pass", BASELINE, report, *update)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {report} would overwrite the baseline, because *"])
    assert _read(light_suite) == [_entry(reason="issue 2")]


def test_a_file_that_cannot_be_written_is_reported(light_suite):
    (light_suite.path / "taken").write_text("")
    options = ("--dataloader-faults-baseline=taken/a", UPDATE[1])
    result = light_suite.run("def test_plain(): pass", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["the baseline was not written: *"])


def _fifo(path):
    os.mkfifo(path)


def _folder(path):
    path.mkdir()


def _full(path):
    path.symlink_to("/dev/full")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "kind"), [(_fifo, "a FIFO"), (_folder, "a folder"), (_full, "a device")]
)
def test_what_is_no_regular_file_is_a_usage_error(light_suite, make, kind):
    """Reading it might never end."""
    make(light_suite.path / "baseline.json")
    result = light_suite.run("def test_plain(): pass", BASELINE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    problem = f"cannot be read: it must be a regular file, got {kind}. Pass the path*"
    result.stderr.fnmatch_lines([f"ERROR: baseline='baseline.json' from * {problem}"])


def test_a_link_to_a_baseline_stays_one(light_suite):
    path = light_suite.path / "baseline.json"
    (light_suite.path / "target.json").write_text(_text())
    (light_suite.path / "target.json").chmod(0o600)
    path.symlink_to("target.json")
    written = light_suite.run("def test_plain(): pass", *UPDATE)
    assert written.ret == pytest.ExitCode.OK
    assert path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_many_entries_are_reported_in_few_lines(light_suite):
    names = [f"test_inner.py::test_{number:02}[open-error]" for number in range(25)]
    _write(light_suite, *map(_entry, names))
    result = light_suite.run("def test_plain(): pass", BASELINE)
    keys = [f"  {_glob(name)}" for name in names[:20]]
    expected = ["baseline.json: 25 known failures match no test. Correct their ids, remove them,*"]
    result.stdout.fnmatch_lines([*expected, *keys, "  ... and 5 more"], consecutive=True)
    result.assert_outcomes(passed=1)
    removed = [f"removed: {_glob(name)}" for name in names[:20]]
    written = ["0 known failures written to baseline.json", *removed, "  ... and 5 more"]
    light_suite.again(*UPDATE).stdout.fnmatch_lines(written, consecutive=True)


@pytest.mark.parametrize(
    ("text", "status"),
    [(_text(_entry(reason="new")), pytest.ExitCode.OK), ("{", pytest.ExitCode.USAGE_ERROR)],
)
def test_what_is_edited_during_the_run_is_kept(light_suite, text, status):
    _write(light_suite, _entry(reason="old"))
    source = f"""
from pathlib import Path


def test_plain():
    Path("baseline.json").write_text({text!r})
"""
    result = light_suite.run(source, *UPDATE, "test_inner.py")
    assert result.ret == status
    assert (light_suite.path / "baseline.json").read_text() == text
    problem = "the baseline was not written: *baseline.json' from * is not a baseline: *JSON*"
    if status:
        result.stdout.fnmatch_lines([problem])
