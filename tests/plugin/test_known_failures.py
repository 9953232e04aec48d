"""A file of known failures: only new failures fail, and what no longer fails is told."""

from __future__ import annotations

import json
import os
import stat

import pytest

pytestmark = pytest.mark.usefixtures("engine")

WRITE, KNOWN = "--dataloader-faults-write-known=known.json", "--dataloader-faults-known=known.json"
STRICT = "--dataloader-faults-known-strict"
SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

pytestmark = pytest.mark.dataloader_faults(only=["open-error", "worker-killed-first"])


def test_healthy(fault_check, records):
    fault_check(lambda: Records(records))


def test_zeros(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""
ZEROS = "test_inner.py::test_zeros[open-error]"


def _entry(nodeid=ZEROS, check="open-error", verdict="corrupted", reason="", **more):
    return {"id": nodeid, "check": check, **more, "verdict": verdict, "reason": reason}


def _write(suite, *entries):
    (suite.path / "known.json").write_text(json.dumps(entries))


def _read(suite):
    return json.loads((suite.path / "known.json").read_text())


def test_a_file_is_written_and_its_failures_are_known(suite):
    """The run that writes it fails. With the file it passes, and reports have the failure."""
    result = suite.run(SUITE, WRITE)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["1 known failure written to known.json, 1 without a reason"])
    line = json.dumps(_entry())
    assert (suite.path / "known.json").read_text() == f"[\n{line}\n]\n"

    known = suite.again("-rx", KNOWN, "--dataloader-faults-report=r.json")
    assert known.ret == pytest.ExitCode.OK
    known.assert_outcomes(passed=3, xfailed=1)
    known.stdout.fnmatch_lines([f"XFAIL {ZEROS} - known by known.json (corrupted)"])
    assert "1 failed as expected (1 corrupted)" in " ".join(known.stdout.str().split())
    known.stdout.no_fnmatch_line("*no longer*")
    items = {each["nodeid"]: each for each in _report(suite, "r.json")}
    assert (items[ZEROS]["status"], items[ZEROS]["verdict"]) == ("xfailed", "corrupted")


def _report(suite, name):
    return json.loads((suite.path / name).read_text())["items"]


def test_reasons_stay_and_are_shown(suite):
    """Also those of what a later run does not ask: it selects a part, and adds nothing else."""
    others = [_entry("test_other.py::test_it[open-error]", reason="issue 2"), _entry(reason="b")]
    _write(suite, *others)
    suite.run(SUITE, WRITE, "test_inner.py")
    assert _read(suite) == [others[1], others[0]]
    result = suite.again("-rx", KNOWN, "-k", "open-error")
    result.assert_outcomes(passed=1, xfailed=1, deselected=2)
    result.stdout.fnmatch_lines([f"XFAIL {ZEROS} - b (corrupted)"])


def test_another_verdict_and_another_item_fail(suite):
    """The failure says what the file has."""
    _write(suite, _entry(verdict="hung"))
    result = suite.run(SUITE, KNOWN)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["known.json has hung for it. corrupted: samples*"])
    result.stdout.no_fnmatch_line("*belongs to no item*")
    _write(suite)
    suite.again(KNOWN).assert_outcomes(passed=3, failed=1)


HEALED = _entry("test_inner.py::test_healthy[open-error]", verdict="hung")
GONE = _entry("test_inner.py::test_renamed[open-error]")
TOLD = [
    "known.json: 1 known failure no longer fails. Remove it, or write the file again, by --data*:",
    "  test_inner.py::test_healthy[[]open-error]",
    "known.json: 1 known failure belongs to no item. Correct its id, remove it, or write the*",
    "  test_inner.py::test_renamed[[]open-error]",
]


FAILS_BY = (
    "the run fails because of {}: 1 known failure no longer fails, 1 known failure matches no test"
    " in known.json"
)


def test_what_no_longer_fails_is_told(suite):
    """As is what no test has. A key of the ini file names the file; strict, it fails the run."""
    (suite.path / "sub").mkdir()
    suite.pytester.makeini("[pytest]\ndataloader_faults_known = known.json")
    _write(suite, _entry(), HEALED, GONE)
    result = suite.run(SUITE)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(TOLD, consecutive=True)
    strict = suite.again(STRICT)
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines(TOLD, consecutive=True)
    assert strict.outlines[-1] == FAILS_BY.format(STRICT)
    key = "dataloader_faults_known"
    suite.pytester.makeini(f"[pytest]\n{key} = known.json\n{key}_strict = true")
    by_key = suite.again("-m", "dataloader_faults")
    assert by_key.ret == pytest.ExitCode.TESTS_FAILED
    assert by_key.outlines[-1] == FAILS_BY.format(f"ini key {key}_strict")
    suite.again(WRITE)
    assert _read(suite) == [_entry()]
    assert suite.again().ret == pytest.ExitCode.OK


@pytest.mark.parametrize("options", [(), ("-q",), ("-qq",)])
def test_the_last_line_says_why_a_strict_run_fails(light_suite, monkeypatch, options):
    """In red, and as an error of the job; the line of pytest's counts is green."""
    _write(light_suite, GONE)
    source = "def test_plain(): pass"
    told = "{}: 1 known failure matches no test in known.json".format(FAILS_BY.partition(":")[0])
    last = f"\x1b[31m{told.format(STRICT)}\x1b[0m"
    strict = light_suite.run(source, KNOWN, STRICT, "--color=yes", *options)
    assert (strict.ret, strict.outlines[-1]) == (pytest.ExitCode.TESTS_FAILED, last)
    assert "::error" not in strict.stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    in_job = light_suite.run(source, KNOWN, STRICT, "--color=yes", *options)
    assert in_job.outlines[-2:] == [f"::error::{told.format(STRICT)}", last]
    lenient = light_suite.run(source, KNOWN, *options)
    assert lenient.ret == pytest.ExitCode.OK
    lenient.stdout.no_fnmatch_line("*run fails*")


@pytest.mark.parametrize("selected", [("-k", "test_"), ("test_inner.py",), ("--ignore=sub",)])
def test_a_part_of_the_tests_misses_no_entry(suite, selected):
    """What no longer fails is told there, too."""
    _write(suite, _entry(), HEALED, GONE)
    result = suite.run(SUITE, KNOWN, STRICT, *selected)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(TOLD[:2], consecutive=True)
    result.stdout.no_fnmatch_line("*belongs to no item*")


def test_a_file_that_is_not_collected_misses_no_entry(suite):
    """Of a module that is skipped nothing is known. A run of the last failures is no whole run."""
    _write(suite, _entry("test_skipped.py::test_it[open-error]"))
    skipped = "import pytest; pytest.skip('not here', allow_module_level=True)"
    suite.pytester.makepyfile(test_skipped=skipped)
    result = suite.run("def test_plain(): assert False", KNOWN)
    result.assert_outcomes(failed=1, skipped=1)
    _write(suite, GONE)
    suite.again(KNOWN).stdout.fnmatch_lines(["*belongs to no item*"])
    suite.again(KNOWN, "--lf").stdout.no_fnmatch_line("*belongs to no item*")


def test_what_is_caught_or_expected_is_no_known_failure(suite):
    """A failure that the test itself or a mark expects is not written, nor is one of no check."""
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


@pytest.mark.dataloader_faults(only="pickles")
def test_no_dataset(fault_check):
    fault_check(lambda: None)


@pytest.mark.dataloader_faults(only="pickles")
def test_of_its_own(fault_check):
    fault_check(Numbers)
    assert 1 + 1 == 3
"""
    result = suite.run(source, WRITE)
    result.assert_outcomes(passed=1, xfailed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "0 known failures written to known.json",
            "2 failures are not among them, as no check found them",
        ]
    )
    assert (suite.path / "known.json").read_text() == "[]\n"


def test_runxfail_knows_nothing(suite):
    """This option of pytest shows each failure that is expected in full."""
    _write(suite, _entry())
    result = suite.run(SUITE, KNOWN, "--runxfail")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["corrupted: samples*"])


PARTS = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

KINDS = dict(zeros=ZerosOnError, healthy=Records)


class Module:
    def __init__(self, folder, train, val):
        self.folder, self.train, self.val = folder, KINDS[train], KINDS[val]

    def setup(self, stage):
        pass

    def train_dataloader(self):
        return _loader(self.train(self.folder))

    def val_dataloader(self):
        return _loader(self.val(self.folder))


def _loader(dataset):
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=4, num_workers=2)


@pytest.mark.dataloader_faults(only="open-error")
@pytest.mark.parametrize("train", ["zeros"])
def test_module(fault_check, records, train):
    fault_check(lambda: Module(records, train, open("val").read()))
"""


def test_each_part_has_an_entry(suite):
    """A failure of another part is new; the entry of one that is healed is told."""
    nodeid = "test_inner.py::test_module[open-error-zeros]"
    (suite.path / "val").write_text("healthy")
    suite.run(PARTS, WRITE).assert_outcomes(failed=1)
    assert _read(suite) == [_entry(nodeid, part="train")]
    suite.again(KNOWN, STRICT).assert_outcomes(xfailed=1)
    (suite.path / "val").write_text("zeros")
    result = suite.again(KNOWN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["val: corrupted: *"])
    suite.again(WRITE, KNOWN)
    assert _read(suite) == [_entry(nodeid, part="train"), _entry(nodeid, part="val")]
    suite.again(KNOWN, STRICT).assert_outcomes(xfailed=1)
    (suite.path / "val").write_text("healthy")
    healed = suite.again(KNOWN)
    healed.assert_outcomes(xfailed=1)
    healed.stdout.fnmatch_lines(["*1 known failure no longer fails*", f"  {_glob(nodeid)}, part*"])


CALLS = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError

KINDS = dict(zeros=ZerosOnError, healthy=Records)


@pytest.mark.dataloader_faults(only="open-error")
def test_two(fault_check, records):
    for name in open("kinds").read().split():
        fault_check(lambda: KINDS[name](records))
"""


def test_each_call_of_a_test_has_an_entry(suite):
    """A failure of the second call is not the known one of the first."""
    nodeid = "test_inner.py::test_two[open-error]"
    (suite.path / "kinds").write_text("zeros healthy")
    suite.run(CALLS, WRITE).assert_outcomes(failed=1)
    assert _read(suite) == [_entry(nodeid)]
    (suite.path / "kinds").write_text("healthy zeros")
    suite.again(KNOWN).assert_outcomes(failed=1)
    suite.again(WRITE)
    assert _read(suite) == [_entry(nodeid, call=2)]
    suite.again(KNOWN, STRICT).assert_outcomes(xfailed=1)


def _glob(nodeid):
    return nodeid.replace("[", "[[]")


DATA = """
from pathlib import Path

from support.datasets import write_records
from support.plugin_datasets import ZerosOnError

FOLDER = Path(__file__).parent / "records"
if not FOLDER.exists():
    write_records(FOLDER)


def make_zeros():
    return ZerosOnError(FOLDER)
"""


def test_datasets_of_the_command_line_have_entries(suite):
    """An entry of a dataset that a run does not name is not missing."""
    suite.pytester.makepyfile(my_data=DATA)
    named = "--dataloader-faults-dataset=my_data:make_zeros", "--dataloader-faults-only=open-error"
    suite.again(WRITE, *named).assert_outcomes(failed=1)
    assert _read(suite) == [_entry("my_data:make_zeros::open-error")]
    suite.again(KNOWN, STRICT, *named).assert_outcomes(xfailed=1)
    result = suite.run("def test_plain(): pass", KNOWN, STRICT)
    assert result.ret == pytest.ExitCode.OK


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


@pytest.mark.dataloader_faults(only=["workers-agree", "pickles", "two-epochs"])
def test_fails(fault_check):
    fault_check(Fails)
"""


def test_a_dataset_that_fails_with_no_fault_is_known_by_its_test(suite):
    """Whichever item is first says so, and the others are skipped."""
    suite.run(ALONE, WRITE, "-k", "pickles").assert_outcomes(failed=1, deselected=2)
    entry = _entry("test_inner.py::test_fails", "workers-agree", "broken")
    assert _read(suite) == [entry]
    suite.again(KNOWN, STRICT).assert_outcomes(xfailed=1, skipped=2)
    suite.again(KNOWN, STRICT, "-k", "two").assert_outcomes(xfailed=1, deselected=2)
    healed = suite.run(ALONE.replace("index == 3", "False"), KNOWN)
    healed.assert_outcomes(passed=3)
    healed.stdout.fnmatch_lines(["*no longer fails*", "  test_inner.py::test_fails, with no fault"])


def test_checks_of_ranks_are_known(suite):
    """With the option that asks them; without it they are skipped, and not told."""
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
    result = suite.run(source, WRITE, ranks)
    result.assert_outcomes(failed=1)
    (entry,) = _read(suite)
    assert (entry["check"], entry["id"]) == (
        "ranks-agree",
        "test_inner.py::test_ranks[ranks-agree]",
    )
    suite.again(KNOWN, STRICT, ranks).assert_outcomes(xfailed=1)
    skipped = suite.again(KNOWN, STRICT)
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
        self.is_first = not self.note.exists()

    def __getitem__(self, index):
        if not self.is_first:
            return Records.__getitem__(self, index)
        found = super().__getitem__(index)
        if not found[0].any():
            self.note.touch()
        return found


@pytest.mark.dataloader_faults(only="read-error-first")
def test_sometimes(fault_check, records):
    fault_check(lambda: ZerosInTheFirstTrial(records), files="*.rec")
"""


def test_what_fails_in_one_trial_of_three_is_not_mended(suite):
    """It is a warning, as it is without the file. Where that is a failure, it may be known."""
    fail = "--dataloader-faults-not-reproduced=fail"
    suite.run(SOMETIMES, WRITE, fail).assert_outcomes(failed=1)
    assert [each["verdict"] for each in _read(suite)] == ["corrupted"]
    suite.again(KNOWN, STRICT, fail).assert_outcomes(xfailed=1, warnings=1)
    result = suite.again(KNOWN, STRICT)
    result.assert_outcomes(passed=1, warnings=1)
    assert result.ret == pytest.ExitCode.OK


def test_merged_reports_have_known_failures(suite):
    """They are expected there, too."""
    from pytest_dataloader_faults.report.command import main

    _write(suite, _entry())
    names = [str(suite.path / name) for name in ("a.json", "b.json", "all.json", "all.html")]
    suite.run(SUITE, KNOWN, f"--dataloader-faults-report={names[0]}", "-k", "healthy")
    suite.again(KNOWN, f"--dataloader-faults-report={names[1]}", "-k", "zeros")
    assert main(["merge", *names[:2], "-o", names[2], "-o", names[3]]) == 0
    statuses = {each["nodeid"]: each["status"] for each in _report(suite, "all.json")}
    assert statuses[ZEROS] == "xfailed"
    assert len(statuses) == 4
    assert "corrupted (expected)" in (suite.path / "all.html").read_text()


@pytest.mark.timeout(300)  # Two processes import torch.
def test_processes_of_xdist_share_one_file(suite):
    """The main process writes it once, from what the others report, and tells the same."""
    pytest.importorskip("xdist")
    xdist = "-p", "xdist", "-n", "2", "--dist", "loadgroup"
    source = SUITE.replace("def test_zeros", "@pytest.mark.xdist_group('z')\ndef test_zeros")
    result = suite.run(source, WRITE, *xdist)
    result.assert_outcomes(passed=3, failed=1)
    assert result.outlines.count("1 known failure written to known.json, 1 without a reason") == 1
    assert _read(suite) == [_entry()]
    _write(suite, _entry(reason="a"), HEALED, GONE)
    known = suite.again(KNOWN, STRICT, *xdist)
    known.assert_outcomes(passed=3, xfailed=1)
    assert known.ret == pytest.ExitCode.TESTS_FAILED
    known.stdout.fnmatch_lines(TOLD, consecutive=True)
    assert known.outlines[-1] == FAILS_BY.format(STRICT)
    suite.again(WRITE, *xdist)
    assert _read(suite) == [_entry(reason="a")]


GOOD = json.dumps(_entry())
REFUSED = [
    ("{", "is no file of known failures: it is not JSON: Expecting property name*"),
    ("[" * 100_000, "is no file of known failures: its lists and objects are nested too deeply*"),
    ("{}", "must have a list of entries, got {}*"),
    ("[1]", "entry 1 must be an object with id, check, verdict, reason, part, call, got 1*"),
    (
        GOOD.replace('"corrupted"', '"hung", "verdict": "corrupted"'),
        "an object must have each key once, got 'verdict' more than once in {'id': *",
    ),
    ('[{"check": "pickles"}]', "entry 1: id=None must be the id of an item, such as*"),
    (f'[{GOOD}, {{"id": ""}}]', "entry 2: id='' must be the id of an item, such as*"),
    (GOOD.replace('open-error", "v', 'open-eror", "v'), "check names 'open-eror'*'open-error'?*"),
    (GOOD.replace("corrupted", "survived"), "verdict='survived' must be a verdict of a failure*"),
    (GOOD.replace('""', "null"), "reason=None must be a text, which may be empty*"),
    (GOOD.replace("verdict", "verdit"), "has 'verdit', which no entry has. Did you mean*"),
    (GOOD.replace('"verdict"', '"call": 1, "verdict"'), "call=1 must be the number of a call*"),
    (GOOD.replace('open-error", "v', 'quick", "v'), "check names 'quick', which is no check*"),
    (f"[{GOOD}, {GOOD}]", f"entries 1 and 2 are both about {_glob(ZEROS)}. Leave one*"),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_a_bad_file_is_a_usage_error(light_suite, text, problem):
    """The error names the file and what is wrong with it, and says what to do; no test runs."""
    text = text if text.startswith(("[", "{}", "{")) and not text.startswith('{"') else f"[{text}]"
    (light_suite.path / "known.json").write_text(text)
    result = light_suite.run("def test_plain(): pass", KNOWN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: known='known.json' from --dataloader-faults-known*{problem}"]
    )
    result.stderr.fnmatch_lines(["*Correct it, or remove the file and write it again: pytest --d*"])


def test_no_file_is_a_usage_error(light_suite):
    """Except where it is written; no path is one, too."""
    suite = light_suite
    result = suite.run("def test_plain(): pass", KNOWN)
    problem = "cannot be read: No such file or directory. Give the path of a file of known failures"
    advice = "or write one: pytest --dataloader-faults-write-known=known.json"
    result.stderr.fnmatch_lines(
        [f"ERROR: known='known.json' from --data*known {problem}, {advice}"]
    )
    suite.again("--dataloader-faults-known=").stderr.fnmatch_lines(["ERROR: known='' from --d*"])
    suite.again("--dataloader-faults-write-known=").stderr.fnmatch_lines(["ERROR: known='' from *"])
    suite.pytester.makeini("[pytest]\ndataloader_faults_known = sub/known.json")
    suite.again().stderr.fnmatch_lines(["ERROR: known='sub/known.json' from ini key data*"])
    assert suite.again("--dataloader-faults-write-known=sub/known.json").ret == pytest.ExitCode.OK
    assert (suite.path / "sub/known.json").read_text() == "[]\n"
    assert suite.again("--collect-only", WRITE).ret == pytest.ExitCode.OK
    assert not (suite.path / "known.json").exists()


def test_a_file_that_cannot_be_written_is_told(light_suite):
    """The exit status is that of a usage error, as for a report."""
    (light_suite.path / "taken").write_text("")
    result = light_suite.run("def test_plain(): pass", "--dataloader-faults-write-known=taken/a")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["the known failures were not written: *"])


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
    make(light_suite.path / "known.json")
    result = light_suite.run("def test_plain(): pass", KNOWN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    problem = f"it must be a regular file, got {kind}. Correct*"
    result.stderr.fnmatch_lines([f"ERROR: known='known.json' from *: {problem}"])


@pytest.mark.timeout(60)
def test_known_failures_are_written_to_what_is_there(light_suite):
    """A device and a FIFO stay; a file keeps its mode, and a link stays one."""
    path = light_suite.path / "known.json"
    path.symlink_to("/dev/null")
    written = light_suite.run("def test_plain(): pass", WRITE)
    assert written.ret == pytest.ExitCode.OK
    assert os.readlink(path) == "/dev/null"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    path.unlink()
    os.mkfifo(path)
    unread = light_suite.again(WRITE)
    assert unread.ret == pytest.ExitCode.USAGE_ERROR
    told = "the known failures were not written: *no process reads this FIFO. Start its reader *"
    unread.stdout.fnmatch_lines([told])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert light_suite.again(WRITE).ret == pytest.ExitCode.OK
        assert os.read(reader, 100) == b"[]\n"
    finally:
        os.close(reader)

    path.unlink()
    (light_suite.path / "target.json").write_text("[]")
    (light_suite.path / "target.json").chmod(0o600)
    path.symlink_to("target.json")
    assert light_suite.again(WRITE).ret == pytest.ExitCode.OK
    assert path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_many_entries_are_told_in_few_lines(light_suite):
    """One line says how many more there are."""
    names = [f"test_inner.py::test_{number:02}[open-error]" for number in range(25)]
    _write(light_suite, *map(_entry, names))
    result = light_suite.run("def test_plain(): pass", KNOWN)
    shown = [f"  {_glob(name)}" for name in names[:20]]
    told = ["known.json: 25 known failures belong to no item. Correct their ids, remove them,*"]
    result.stdout.fnmatch_lines([*told, *shown, "  ... and 5 more"], consecutive=True)
    result.assert_outcomes(passed=1)
