"""A run without a fault in which a process is killed, as by the OOM killer: no result is lost."""

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery.batteries import Batteries
from support.corpus.deaths import FixedSegment
from support.datasets import Records
from support.results import failure_of


@dataclass
class KilledFactory:
    """Counts its calls in the file *log*, in whatever process, and kills its process at some.

    Attributes:
        kind: The class of the dataset.
        folder: What that gets.
        calls: The numbers of the fatal calls, from 1.
        in_worker: Whether a worker of that call's dataset is killed at its first sample instead.
        number: The signal.
    """

    log: Path
    kind: Callable[[Path], Any]
    folder: Path
    calls: Collection[int] = ()
    in_worker: bool = False
    number: int = signal.SIGKILL

    def __call__(self) -> Any:
        is_fatal = self.count_call() in self.calls
        if is_fatal and not self.in_worker:
            os.kill(os.getpid(), self.number)
        dataset = self.kind(self.folder)
        return KilledInWorker(dataset, self.number) if is_fatal else dataset

    def count_call(self) -> int:
        with self.log.open("ab") as file:
            file.write(b"x")
            file.flush()
            return file.tell()

    @property
    def count(self) -> int:
        return self.log.stat().st_size


class KilledInWorker(Dataset[Any]):
    def __init__(self, dataset: Any, number: int) -> None:
        self.whole, self.number, self.made_in = dataset, number, os.getpid()

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != self.made_in:
            os.kill(os.getpid(), self.number)
        return self.whole[index]


ONE_WORKER = {"num_workers": 1, "batch_size": 4}
BEFORE_INIT, OF_RANKS = "missing-file", "rank-stops"
FAULT_FREE = 2
"""The second call. The first is for the reference."""

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest_dataloader_faults.exceptions.FlakyCheckWarning"
)


@pytest.fixture(name="killed")
def _killed(records, tmp_path):
    return partial(KilledFactory, tmp_path / "calls", Records, records)


def _check(make_dataset, only, **options):
    results = check_dataset(make_dataset, only=only, on_fail=None, loader=ONE_WORKER, **options)
    return results[0] if isinstance(only, str) else results


def test_a_run_in_which_a_worker_is_killed_is_repeated(killed):
    result = _check(killed([FAULT_FREE], in_worker=True), BEFORE_INIT)

    assert (result.verdict, result.passed, result.notes) == ("failed_cleanly", True, ())


def test_what_is_killed_twice_fails_the_check_that_needs_it(killed):
    """Nobody knows whether the check applies, so it is not skipped."""
    result = _check(killed([FAULT_FREE, FAULT_FREE + 1]), BEFORE_INIT)
    headline, second, *_ = result.explanation.splitlines()

    assert (result.applies, result.failed, result.reproduced) == (True, True, True)
    assert "fails even without a fault while its files are monitored" in headline
    assert "SIGKILL" in headline
    assert f"{BEFORE_INIT} was not run" in second
    assert "was killed twice" in second
    assert result.outcome.schedule == ()


def test_the_epoch_that_was_killed_is_a_trial_of_workers_agree(killed):
    """One of three, so that a random crash of the dataset is still reported."""
    agree, error = _check(killed([FAULT_FREE]), ["workers-agree", "open-error"])

    assert (agree.verdict, agree.failed, agree.reproduced) == ("crashed", False, False)
    assert "flaky: 1 of 3 trials failed" in agree.explanation
    assert (error.verdict, error.outcome.request.loader["num_workers"]) == ("failed_cleanly", 1)


@pytest.fixture(name="run_check")
def _run_check():
    batteries = Batteries()

    def run_check(name, make_dataset, **settings):
        settings = Settings(loader=ONE_WORKER, **settings)
        options = {"call": 1, "expected_failures": {}, "reproduce": "again"}
        result, _ = batteries.run_check(name, make_dataset, settings, **options)
        return result

    return run_check


def test_no_run_that_was_killed_is_kept_for_the_next_item(killed, run_check):
    factory = killed([FAULT_FREE, FAULT_FREE + 1])
    results = [run_check(name, factory) for name in (BEFORE_INIT, "workers-agree", BEFORE_INIT)]

    assert [each.verdict for each in results] == ["crashed", "survived", "failed_cleanly"]


def test_a_job_that_is_killed_leaves_no_shared_memory(records):
    result = failure_of(partial(FixedSegment, records), "worker-killed")

    assert result.cause == "does not start after a job that was killed"
    assert not Path(f"/dev/shm/records-{records.stat().st_ino}").exists()
