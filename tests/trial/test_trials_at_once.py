"""Trials of one battery that run at once find what they find one by one, and leave nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import time
import warnings
from functools import partial
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import CheckFailedError, InvalidArgumentError
from support.corpus.locks import LocksByFlock
from support.datasets import CopiedRecords, Records, RecordStream
from support.inner import start_forked
from support.random_samples import OwnNoise
from support.refusals import missing_parts, refusal
from support.rows import slow
from support.specimens import IndexLeftOpen, ZerosOnError
from support.waiting import output_of, until

SOME = (
    "read-before-fork",
    "open-error",
    "permission-denied",
    "corrupted-file",
    "worker-killed-middle",
    "missing-before-init",
    "corrupted-before-init",
)


def _facts(make_dataset, jobs, on_fail=None, **options):
    """What does not differ from run to run, of each result."""
    results = check_dataset(make_dataset, jobs=jobs, on_fail=on_fail, **options)
    return [
        (each.check, each.verdict, each.applies, each.cause, each.reproduced, len(each.trials))
        for each in results
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Records, ZerosOnError, RecordStream, OwnNoise, LocksByFlock])
def test_results_do_not_depend_on_the_number_of_jobs(records, kind):
    one, two = (_facts(lambda: kind(records), jobs) for jobs in (1, 2))

    assert two == one
    assert [check for check, *_ in two] == list(CHECKS)


def test_each_part_has_its_own_results(records):
    def make_parts():
        return {"good": Records(records), "bad": ZerosOnError(records)}

    results = check_dataset(make_parts, only=SOME[:2], on_fail=None, jobs=3)
    assert [(each.check, each.part, each.passed) for each in results] == [
        ("read-before-fork", "good", True),
        ("read-before-fork", "bad", True),
        ("open-error", "good", True),
        ("open-error", "bad", False),
    ]


def test_ranks_run_alone(records):
    only = ("permission-denied", "ranks-agree")
    one, two = (_facts(lambda: Records(records), jobs, only=only, ranks=2) for jobs in (1, 2))

    assert two == one


class SeesOthers(Records):
    """Notes how many trials run at once, from the main process of its trial. Takes its time."""

    def __init__(self, folder, noted):
        super().__init__(folder)
        pytest_process = psutil.Process().parent().parent()
        commands = [each.cmdline() for each in pytest_process.children()]
        with open(noted, "a", encoding="ascii") as file:
            file.write(f"{commands.count(pytest_process.cmdline())} ")

    def __getitem__(self, index):
        time.sleep(0.03)
        return super().__getitem__(index)


class SeesOthersAndWrites(SeesOthers):
    """The same of a dataset that writes."""

    def __getitem__(self, index):
        Path(f"{self.paths[index]}.seen").write_bytes(b"")
        return super().__getitem__(index)


class SeesOthersAndLocks(SeesOthers):
    """The same of a dataset that locks a file."""

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return super().__getitem__(index)


class SeesOthersAndShares(SeesOthers):
    """The same of a dataset that reads by a descriptor of the process that forks the trials."""

    def __init__(self, folder, noted, file):
        super().__init__(folder, noted)
        self.file = file

    def __getitem__(self, index):
        os.pread(self.file.fileno(), 1, 0)
        return super().__getitem__(index)


def _most_at_once(make_dataset, noted, jobs, only):
    check_dataset(partial(make_dataset, noted=noted), only=only, on_fail=None, jobs=jobs)
    return max(map(int, noted.read_text().split()))


@pytest.mark.parametrize("jobs", [slow(1), 3])
def test_as_many_trials_run_as_there_are_jobs(records, tmp_path, jobs):
    make_dataset = partial(SeesOthers, records)
    assert jobs == _most_at_once(make_dataset, tmp_path / "noted", jobs, SOME[1:5])


@pytest.mark.parametrize("kind", [SeesOthersAndWrites, SeesOthersAndLocks, SeesOthersAndShares])
def test_trials_that_could_disturb_others_run_alone(records, tmp_path, kind):
    noted, only = tmp_path / "noted", SOME[:3]
    with open(records / "00.rec", "rb") as file:
        shared = {"file": file} if kind is SeesOthersAndShares else {}
        assert 1 == _most_at_once(partial(kind, records, **shared), noted, 2, only)


def test_trials_with_a_folder_run_alone(records):
    only = ("open-error", "write-error")
    one, two = (
        _facts(lambda folder: CopiedRecords(records, folder), jobs, only=only) for jobs in (1, 2)
    )

    assert two == one
    assert {verdict for _, verdict, *_ in two} <= {"failed_cleanly", "survived"}


class Jealous(Records):
    """Does not work while another process has it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lock = open(folder.parent / "lock", "wb")
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)


def test_a_failure_next_to_another_trial_does_not_count(records):
    results = check_dataset(lambda: Jealous(records), only=SOME[1:3], jobs=2)

    assert all(each.passed for each in results)


@pytest.mark.slow
def test_what_is_measured_is_measured_alone(records):
    only = ("open-error", "resource-growth", "permission-denied")
    one, two = (_facts(lambda: IndexLeftOpen(records), jobs, only=only) for jobs in (1, 2))

    assert two == one


def test_failures_do_not_depend_on_the_number_of_jobs(records):
    results, reported = [], []
    for jobs in (1, 3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            make_dataset = partial(ZerosOnError, records)
            results.append(_facts(make_dataset, jobs, on_fail="warn", only=SOME[:3]))
        reported.append([str(each.message).partition(":")[0] for each in found])

    assert results[0] == results[1]
    assert reported == [["open-error", "permission-denied"]] * 2


def test_a_failure_ends_the_trials_beside_it(records, left_behind):
    with pytest.raises(CheckFailedError, match=r"^open-error: "):
        check_dataset(lambda: ZerosOnError(records), only=SOME[1:3], jobs=3)
    assert left_behind() == []


def test_an_expected_failure_that_passes_is_run_alone(records):
    expected = {"open-error": "it returns zeros"}
    one, two = (
        _facts(lambda: Records(records), jobs, only=SOME[1:3], expected_failures=expected)
        for jobs in (1, 2)
    )

    assert two == one
    assert two[0][-1] == 2


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2", True, None])
def test_a_number_of_jobs_that_is_refused(records, jobs):
    text = refusal(InvalidArgumentError, check_dataset, lambda: Records(records), jobs=jobs)

    assert missing_parts(text, f"jobs={jobs!r}", "1 or more") == []


SCRIPT = """
import signal
import sys
from pathlib import Path
from pytest_dataloader_faults import check_dataset
from support.datasets import Records
from support.troublemakers import hang_forever
from torch.utils.data import get_worker_info
import os

class Hangs(Records):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            (Path(sys.argv[2]) / str(os.getppid())).touch()
            hang_forever()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    only = ["open-error", "permission-denied", "read-error"]
    check_dataset(lambda: Hangs(Path(sys.argv[1])), only=only, deadline=600, jobs=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGKILL)])
def test_an_interrupted_battery_leaves_nothing(records, tmp_path, left_behind, number):
    announced = tmp_path / "announced"
    announced.mkdir()
    with start_forked(SCRIPT, records, announced) as runner:
        assert until(lambda: len(os.listdir(announced)) == 2 or runner.poll() is not None, 60)
        below = psutil.Process(runner.pid).children(recursive=True)
        runner.send_signal(number)
        _, printed = output_of(runner, 30)
    assert runner.returncode == -number
    assert len(below) >= 10  # Twice a warden, a main process, a supervisor and two workers.
    assert number == signal.SIGKILL or printed.rstrip().endswith("KeyboardInterrupt")
    assert until(lambda: not any(map(psutil.Process.is_running, below)))
    assert left_behind() == []
