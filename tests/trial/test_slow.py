"""A trial that moves or sleeps at its deadline gets more time, and is not called hung."""

import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial.process import deadline
from pytest_dataloader_faults.faults import OpenError, ReadError, ShortRead, SlowRead
from pytest_dataloader_faults.outcomes import Activity
from pytest_dataloader_faults.outcomes.stages import DONE
from support.datasets import COUNT, Records
from support.judging import judge_trial

DEADLINE, MORE, LARGE = 3.0, 12.0, 200_000


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch):
    """A bound that a test can wait for."""
    monkeypatch.setattr(deadline, "MORE_SECONDS", MORE)


class OnError(Records):
    """Does *action* with the path of what it cannot read, and then raises."""

    def __init__(self, folder, action):
        super().__init__(folder)
        self.action = action

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            self.action(self.paths[index])
            raise


def _try(records, action, fault=None):
    fault = fault or ReadError("*.rec")
    loader = {"num_workers": 1, "batch_size": COUNT}  # So that it fails once.
    return run_trial(lambda: OnError(records, action), fault, loader=loader, deadline=DEADLINE)


def _sleeps_thrice(_path):
    for seconds in (1, 2, 3):
        time.sleep(seconds)


def _waits_for_long(_path):
    threading.Event().wait(DEADLINE + 3)


_PROGRAM = "import select, time; [select.poll().poll(1000 * seconds) for seconds in (1, 2, 3)]"


def _waits_for_a_program_that_sleeps(_path):
    """As curl between its retries: poll(2) of no descriptor."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    "action", [_sleeps_thrice, _waits_for_long, _waits_for_a_program_that_sleeps]
)
def test_retries_after_a_sleep_may_come_to_their_end(records, reference, action):
    outcome = _try(records, action)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > DEADLINE
    assert judge_trial(outcome, reference).verdict == "failed_cleanly"


def _polls(path):
    while path.name != "gone":
        time.sleep(0.2)


def test_who_polls_for_ever_gets_no_more_time(records, reference):
    outcome = _try(records, _polls)
    judgement = judge_trial(outcome, reference)

    assert (judgement.verdict, outcome.end.at_deadline.activity) == ("hung", Activity.SLEEPS)
    assert outcome.end.at_deadline.extension < MORE / 2
    line = _polls.__code__.co_firstlineno + 2
    assert (
        f"a worker was sleeping, probably between retries at {__file__}:{line} in _polls"
        in judgement.sentence
    )


class Generated(DataLoader):
    """Starts its workers at the first batch, as a loader does whose ``__iter__`` is a generator."""

    def __iter__(self):
        yield from super().__iter__()


def test_workers_that_start_at_the_first_batch_are_watched(records):
    outcome = run_trial(
        lambda: Generated(OnError(records, _polls), num_workers=1),
        ReadError("*.rec"),
        deadline=DEADLINE,
    )

    (worker,) = outcome.workers
    assert outcome.end.at_deadline.activity is Activity.SLEEPS
    assert outcome.end.at_deadline.asleep == (worker.pid,)


@pytest.mark.parametrize(
    ("action", "activity"),
    [(lambda _path: threading.Event().wait(), "waits"), (lambda _path: time.sleep(600), "sleeps")],
    ids=["lock", "long sleep"],
)
def test_a_hang_costs_no_more_than_its_deadline(records, action, activity):
    outcome = _try(records, action)

    assert (outcome.timed_out, outcome.end.at_deadline.activity) == (True, activity)
    assert (outcome.end.at_deadline.extension, outcome.delivered) == (0, ())


def _tries_at_once(path):
    while True:
        try:
            path.read_bytes()
        except OSError:
            continue


@pytest.mark.parametrize("fault", [ReadError("*.rec"), OpenError("*.rec")], ids=["read", "open"])
def test_a_fault_that_fires_again_is_no_progress(records, fault):
    outcome = run_trial(
        lambda: OnError(records, _tries_at_once), fault, loader={"num_workers": 1}, deadline=1
    )

    assert outcome.fired > 1000
    assert (outcome.timed_out, outcome.end.at_deadline.activity) == (True, "computes")
    assert outcome.end.at_deadline.extension == 0


def test_batches_that_come_are_waited_for(records, reference):
    fault = SlowRead("*.rec", seconds=0.25)
    loader = {"num_workers": 1, "batch_size": 2}
    outcome = run_trial(lambda: Records(records), fault, loader=loader, deadline=DEADLINE)

    assert (outcome.timed_out, outcome.duration > DEADLINE) == (False, True)
    assert judge_trial(outcome, reference).verdict == "survived"


def test_what_is_slow_beyond_the_bound_is_reported(records, reference, monkeypatch):
    monkeypatch.setattr(deadline, "MORE_SECONDS", 1.0)
    fault = SlowRead("*.rec", seconds=0.25)
    loader = {"num_workers": 1, "batch_size": 1}
    outcome = run_trial(lambda: Records(records), fault, loader=loader, deadline=DEADLINE)
    judgement = judge_trial(outcome, reference)

    delivered = len(outcome.delivered)
    assert (judgement.verdict, 0 < delivered < COUNT) == ("hung", True)
    assert judgement.sentence.endswith(
        f" s: {delivered} of {COUNT} batches delivered, and the epoch was still making progress"
    )


class ReadsSlowly(Records):
    """Reads one large file by *size* bytes at a time."""

    def __init__(self, folder, size):
        super().__init__(folder)
        del self.paths[1:]
        self.size = size

    def __getitem__(self, index):
        with self.paths[index].open("rb", buffering=0) as file:
            parts = list(iter(partial(file.read, self.size), b""))
        return torch.tensor(sum(map(len, parts)))


def test_a_sample_that_is_read_slowly_is_waited_for(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "00.rec").write_bytes(bytes(LARGE))
    fault = ShortRead("*.rec", max_bytes=7)
    loader = {"num_workers": 1, "batch_size": 1}
    outcome = run_trial(lambda: ReadsSlowly(folder, 1 << 16), fault, loader=loader, deadline=1)

    assert (outcome.timed_out, len(outcome.delivered)) == (False, 1)
    assert outcome.duration > 1
