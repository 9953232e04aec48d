"""The fixture ``fault_check``: what it accepts, and what each result becomes in pytest."""

import re
import shlex

import pytest

from support.inner import run_forked
from support.suites import REPORT, failures_of, results_of

pytestmark = pytest.mark.usefixtures("engine")

SLOW = """
import time

from support.plugin_datasets import Numbers

class Slow(Numbers):
    def __getitem__(self, index):
        import slow_library
        time.sleep(0.1)
        return super().__getitem__(index)

def test_slow(fault_check):
    try:
        fault_check(Slow)
    finally:
        raise KeyboardInterrupt
"""


def test_the_first_check_says_how_long_all_will_take(suite):
    suite.pytester.makepyfile(slow_library="import time; time.sleep(1)")
    result = suite.run(SLOW)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    line = "dataloader-faults: test_inner.py::test_slow: 2? checks will take about * s, * s of it"
    result.stdout.fnmatch_lines([f"{line} to import slow_library, which the test's module should*"])
    # The test's result stands after the name of its file, as without this line.
    result.stdout.re_match_lines([r"test_inner\.py F?"])


SUITE = """
import pytest
from support.datasets import Records
from support.handed_over import DataModule
from support.plugin_datasets import Numbers, ZerosOnError
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract, part_of

mark = pytest.mark.dataloader_faults
one = mark(only="open-error")
known = mark(only="open-error", expected_failures={"open-error": "known since May"})

@one
def test_ready_loader(fault_check, records):
    result = fault_check(lambda: DataLoader(Records(records), num_workers=1, batch_size=2))
    assert {each.worker for each in result.outcome.workers} == {0}
    assert result.outcome.epochs[0].drawn[0] == (0, 1)
    assert result.check == fault_check.name
    assert result.passed
    assert result.outcome.fired

@one
def test_loader_and_files(fault_check, records):
    loader = {"num_workers": 3, "batch_size": 5}
    outcome = fault_check(lambda: Records(records), loader=loader, files="*/05.rec").outcome
    assert {each.worker for each in outcome.workers} == {0, 1, 2}
    assert outcome.epochs[0].drawn[0] == (0, 1, 2, 3, 4)
    assert {each.path for each in outcome.faults[0].firings} == {str(records / "05.rec")}

@mark(only="read-error")
def test_does_not_name_file(fault_check, records):
    fault_check(lambda: Records(records), contract=Contract(names_file=True))

@one
def test_twice(fault_check, records):
    fault_check(lambda: Records(records))
    fault_check(lambda: Records(records))

@one
def test_skips(fault_check):
    pytest.skip("of the test's own")

@mark(only=["open-error", "truncated-file", "worker-killed-sending"])
def test_no_files(fault_check):
    fault_check(Numbers, loader={"batch_size": 16})

@known
def test_known(fault_check, records):
    fault_check(lambda: ZerosOnError(records))

@known
def test_does_not_apply(fault_check):
    fault_check(Numbers)

@one
def test_module(fault_check, records):
    fault_check(lambda: DataModule(records))

@one
@pytest.mark.parametrize("part", ["val/0"])
def test_part(fault_check, records, part):
    fault_check(part_of(lambda: DataModule(records), part))
"""
NOT_APPLICABLE = {"open-error": "not_applicable"}
EXPECTED = {
    "ready_loader": {"open-error": "passed failed_cleanly"},
    "loader_and_files": {"open-error": "passed failed_cleanly"},
    "does_not_name_file": {"read-error": "failed failed_unclearly"},
    "twice": {"open-error": "error failed_cleanly"},
    "no_files": {**NOT_APPLICABLE, "truncated-file": "not_applicable"},
    "known": {"open-error": "xfailed corrupted"},
    "does_not_apply": NOT_APPLICABLE,
    "module": {"open-error": "failed not_exercised"},
    "part[val/0]": {"open-error": "failed corrupted"},
}


@pytest.fixture(name="ran", scope="module")
def _ran(run_suite):
    return run_suite(SUITE, "-rxs", REPORT)


def test_each_result_becomes_an_outcome_of_pytest(ran):
    folder, result = ran
    results = results_of(folder)
    assert results["no_files"].pop("worker-killed-sending").startswith("passed")
    assert results == EXPECTED
    result.assert_outcomes(passed=3, failed=4, skipped=4, xfailed=1)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED *of the test's own",
            "SKIPPED * open-error does not apply * its workers open no data file",
            "SKIPPED * truncated-file * neither its constructor nor its workers read a data file",
            "XFAIL *test_known[[]open-error]* known since May (corrupted)",
        ]
    )


def test_failures_say_what_to_change(ran):
    failures = failures_of(ran[1])
    for name, line in {
        "does_not_name_file[read-error]": "failed_unclearly: OSError does not name the file, as t*",
        "twice[open-error]": "*a test can call fault_check once. Write one test per dataset*",
        "module[open-error]": "    @pytest.mark.parametrize('part', ['train', 'val/0'])",
        "part[open-error-val/0]": "corrupted: samples 0 to 15 *",
    }.items():
        pytest.LineMatcher(failures[name].splitlines()).fnmatch_lines([line.replace("['", "[[]'")])


ZEROS = """
import pytest
from support.plugin_datasets import ZerosOnError

@pytest.mark.dataloader_faults(only=["open-error", "closed-descriptor"])
def test_x(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""
OPTIONS = ("--dataloader-faults-seed=7", "--dataloader-faults-deadline=25")


def test_a_failure_has_a_sentence_evidence_and_a_way_to_repeat_it(suite):
    """The printed command, typed where pytest was started, gives the same item and verdict.

    A seed or deadline of the command line is part of it.
    """
    suite.pytester.makeini("[pytest]\naddopts = -p dataloader_faults")
    suite.pytester.mkdir("deeper")
    path = suite.pytester.makepyfile(test_inner=ZEROS)
    result = run_forked(suite.path / "deeper", str(path), "-k", "closed", *OPTIONS)
    text = failures_of(result)["x[closed-descriptor]"]
    lines = [line for line in text.splitlines() if line]
    for line, pattern in {
        0: r"corrupted: samples? .* \(all zeros\), .*, and no exc",
        1: "  A placeholder, such as zeros, was returned for a sample that",
        2: "  confirmed: 2 of 2 trials failed.",
        3: r"  fault: ClosedDescriptor\(path=.*\) \(matched \d+ op.*, fired \d+ times?, ment",
        4: r"    in worker [01] \(pid \d+\), fetch 1: \w+ /.*\d\d\.rec",
        -2: r"  delivered 4 of 4 batches requested, epoch complete \(.* s\)",
        -1: r"  reproduce: pytest '\S*test_inner.py::test_x\[closed-descriptor\]'",
    }.items():
        assert re.match(pattern, lines[line])
    assert "Traceback" not in text
    assert "_fault_check.py" not in text

    command = shlex.split(lines[-1].partition("reproduce: pytest ")[2])
    assert set(OPTIONS) <= set(command)
    again = run_forked(suite.path / "deeper", *command)
    again.assert_outcomes(failed=1)
    assert lines[0] in again.outlines


UNPARAMETRIZED = """
import unittest

import pytest

class TestCase(unittest.TestCase):
    @pytest.mark.usefixtures("fault_check")
    def test_method(self):
        pass

def test_late(request):
    request.getfixturevalue("fault_check")
"""


def test_a_test_that_cannot_be_parametrized_fails_with_advice(light_suite):
    result = light_suite.run(UNPARAMETRIZED)
    output = result.stdout.str()
    assert output.count("fault_check must be a parameter of the test function") >= 2
    assert "call check_dataset() in the method" in output
    assert "AttributeError" not in output
    assert result.ret == 1


DELETES = """
import os
import shutil
from pathlib import Path
import pytest
from support.datasets import Records

class Deletes(Records):
    def __getitem__(self, index):
        scratch = Path(f"scratch-{index}")
        scratch.touch()  # Its inode may become that of a later record.
        scratch.unlink()
        try:
            return super().__getitem__(index)
        except OSError:
            os.remove(self.paths[index])
            raise

@pytest.fixture
def folder():
    folder = Path("records")
    folder.mkdir()
    for number in range(16):
        (folder / f"{number:02}.rec").write_bytes(bytes(64))
    yield folder.resolve()
    assert len(os.listdir(folder)) == 16
    shutil.rmtree(folder)

def test_it(fault_check, folder):
    fault_check(lambda: Deletes(folder))
"""


def test_data_that_a_fixture_writes_for_each_check_stays(suite):
    """It is younger than the first check, and was there before each of the others."""
    checks = ("read-error", "open-error")
    result = suite.run(DELETES, f"--dataloader-faults-only={','.join(checks)}")

    result.assert_outcomes(failed=len(checks))
    result.stdout.no_fnmatch_line("*does not recover*")
