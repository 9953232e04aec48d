"""The fixture ``fault_check``: items, verdicts, and what each verdict becomes in pytest."""

from __future__ import annotations

import re
import shlex

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS
from support.inner import run_forked
from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")

HEALTHY = """
import pytest
from support.datasets import Records


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "connect-error"])
def test_healthy(fault_check, records):
    result = fault_check(lambda: Records(records))
    assert result.check == fault_check.name
    assert result.passed
    assert result.outcome.fired or not result.outcome.schedule
"""

ZEROS = """
import pytest
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error-transient"])
def test_x(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""

HANGS = """
import pytest
from support.plugin_datasets import WaitsOnError


@pytest.mark.dataloader_faults(only=["open-error", "permission-denied"], deadline=2)
def test_x(fault_check, records):
    fault_check(WaitsOnError(records))
"""

NEVER_CALLED = """
def test_x(fault_check):
    pass
"""

CALLED_TWICE = """
import pytest
from support.datasets import Records


@pytest.mark.dataloader_faults(only="workers-agree")
def test_x(fault_check, records):
    fault_check(lambda: Records(records))
    fault_check(lambda: Records(records))
"""

NOT_CALLED_BUT = """
import pytest


@pytest.mark.dataloader_faults(only="open-error")
class TestOwn:
    def test_raises(self, fault_check):
        raise RuntimeError("of the test's own")

    def test_skips(self, fault_check):
        pytest.skip("of the test's own")
"""

NO_FILES = """
import pytest
from support.plugin_datasets import Numbers


@pytest.mark.dataloader_faults(only=["open-error", "truncated-half", "worker-killed-first"])
def test_x(fault_check):
    fault_check(Numbers)


@pytest.mark.dataloader_faults(only="worker-killed-middle")
def test_one_batch(fault_check):
    fault_check(Numbers, loader={"batch_size": 16})
"""

EXPECTED = """
import pytest
from support.datasets import Records
from support.plugin_datasets import Numbers, ZerosOnError

pytestmark = pytest.mark.dataloader_faults(
    only="open-error", expected_failures={"open-error": "known since May"}
)


def test_fails(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


def test_passes(fault_check, records):
    fault_check(lambda: Records(records))


def test_does_not_apply(fault_check):
    fault_check(Numbers)
"""


OPTIONS = ("--dataloader-faults-seed=7", "--dataloader-faults-deadline=25")


@pytest.fixture(name="result", scope="module")
def _result(run_suite):
    """What is printed of a healthy dataset, and of one that swallows errors."""
    return run_suite(HEALTHY + ZEROS, "-v", "-p", "no:cacheprovider", *OPTIONS)[1]


def test_a_test_becomes_an_item_per_check(result):
    assert re.findall(r"test_inner\.py::test_(\w+\[.*?\] [A-Z]+)", result.stdout.str()) == [
        "healthy[workers-agree] PASSED",
        "healthy[open-error] PASSED",
        "healthy[connect-error] SKIPPED",
        "x[workers-agree] PASSED",
        "x[open-error] FAILED",
        "x[read-error-transient] FAILED",
    ]


def test_a_failure_has_a_sentence_evidence_and_a_way_to_repeat(result):
    """The failure is the verdict, which fault fired where, what came, and one command.

    A seed or deadline of the command line is part of what has to be repeated.
    """
    text = result.stdout.str().split("\n_____")[1]
    lines = [line for line in text.splitlines() if line.strip("= ")]
    assert lines[0].strip("_ ") == "test_x[open-error]"
    assert re.match(
        r"corrupted: samples 0 to 15 are identical \(all zeros\), .*, and no exc", lines[1]
    )
    assert lines[2].startswith("  A placeholder, such as zeros, was returned for a sample that")
    assert lines[3] == "  confirmed: 2 of 2 trials failed."
    assert re.match(
        r"  fault: OpenError\(path=.*\) \(matched \d+ op.*, fired \d+ times, ment", lines[4]
    )
    assert re.match(r"    in worker [01] \(pid \d+\), fetch 1: openat /.*\d\d\.rec", lines[5])
    assert re.match(r"  delivered 4 of 4 batches requested, epoch complete \(.* s\)", lines[-2])
    assert lines[-1].startswith("  reproduce: pytest 'test_inner.py::test_x[open-error]'")
    assert set(OPTIONS) <= set(shlex.split(lines[-1]))
    assert "Traceback" not in text
    assert "_fault_check.py" not in text


@pytest.mark.parametrize("folder", [slow("."), "deeper"])
def test_the_line_that_reproduces_reruns_that_item_alone(suite, folder):
    """The printed command, typed where pytest was started, gives the same item and verdict."""
    suite.pytester.makeini("[pytest]\naddopts = -p dataloader_faults")
    suite.pytester.mkdir("deeper")
    path = suite.pytester.makepyfile(test_inner=ZEROS)
    start = suite.path / folder
    output = run_forked(start, str(path), "-k", "transient").stdout.str()
    command = re.search(r"reproduce: pytest (.*read-error-transient.*)", output)
    assert command
    again = run_forked(start, *shlex.split(command[1])).stdout.str()
    assert re.search(r"^=+ 1 failed in .* =+$", again, re.MULTILINE)
    assert _verdict(output) == _verdict(again) == "corrupted"


def _verdict(output: str) -> str:
    match = re.search(r"_+ test_x\[read-error-transient\] _+\n(\w+):", output)
    return match[1] if match else "no verdict"


def test_items_know_where_another_one_hung(suite):
    result = suite.run(HANGS)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "hung: the epoch neither finished nor raised an exception within 2 s.",
            "  confirmed: 2 of 2 trials failed.",
            "hung: the epoch neither finished nor raised an exception within * s.",
            "  it hangs at *plugin_datasets.py:* in substitute, where two trials of open-error*",
        ]
    )


def test_never_called_fails(suite):
    """A test that asks for the battery and never uses it has shown nothing: one item says so."""
    result = suite.run(NEVER_CALLED, "-k", "pickles or open-error")
    result.assert_outcomes(failed=1, skipped=1, deselected=len(CHECKS) - 2)
    result.stdout.fnmatch_lines(["fault_check was never called: call fault_check(lambda: *"])


def test_a_second_call_is_an_error(suite):
    result = suite.run(CALLED_TWICE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a test can call fault_check once. Write one test per dataset*"])


def test_never_called_does_not_hide_the_tests_own_end(suite):
    result = suite.run(NOT_CALLED_BUT, "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    assert "never called" not in result.stdout.str()


def test_checks_that_do_not_apply_skip_with_the_reason(suite):
    """A dataset that reads no file cannot be asked about files: skipped, never passed."""
    result = suite.run(NO_FILES, "-rs")
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED * open-error does not apply * its workers open no data file",
            "SKIPPED * truncated-half * its workers read no data file",
            "SKIPPED * worker-killed-middle * worker 0 makes 1 batch*",
        ]
    )


def test_expected_failures_are_xfailed_and_must_fail(suite):
    """A failure that was announced is an xfail; one that no longer fails must be taken off."""
    result = suite.run(EXPECTED, "-rxs")
    result.assert_outcomes(xfailed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["XFAIL *test_fails[[]open-error]* known since May (corrupted)"])
    result.stdout.fnmatch_lines(["expected to fail (known since May), but passed. Remove it*"])


def test_data_that_a_fixture_writes_for_each_check_stays(suite, engine):
    """It is younger than the first check, and was there before each of the others."""
    source = """
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
    checks = ("read-error", "read-error-halfway", "permission-denied")
    result = suite.run(source, f"--dataloader-faults-only={','.join(checks)}")

    result.assert_outcomes(failed=len(checks))
    result.stdout.no_fnmatch_line("*does not recover*")
