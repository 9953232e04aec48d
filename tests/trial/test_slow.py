"""A trial that moves or sleeps at its deadline gets more time, and is not called hung."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._trial.process import deadline
from pytest_dataloader_faults.faults import OpenError, ReadError, ShortRead, SlowRead
from pytest_dataloader_faults.outcomes import Activity
from pytest_dataloader_faults.outcomes.stages import DONE
from support.datasets import COUNT, Records

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
    return run_trial(lambda: OnError(records, action), fault, deadline=DEADLINE)


def _sleeps_thrice(_path):
    for seconds in (1, 2, 3):
        time.sleep(seconds)


def _waits_for_long(_path):
    threading.Event().wait(DEADLINE + 3)


@pytest.mark.parametrize("action", [_sleeps_thrice, _waits_for_long])
def test_retries_after_a_sleep_may_come_to_their_end(records, reference, action):
    """The dataset raises later than its deadline, and that is a clean failure."""
    outcome = _try(records, action)

    assert (outcome.timed_out, outcome.phase) == (False, DONE)
    assert outcome.duration > DEADLINE
    assert outcome.judge(reference).verdict == "failed_cleanly"


def _polls(path):
    while path.name != "gone":
        time.sleep(0.2)


def test_who_polls_for_ever_gets_no_more_time(records, reference):
    """It sleeps for a moment only, so it is not between attempts; the sentence has the line."""
    outcome = _try(records, _polls)
    judgement = outcome.judge(reference)

    assert (judgement.verdict, outcome.at_deadline.activity) == ("hung", Activity.SLEEPS)
    assert outcome.at_deadline.more < MORE / 2
    line = _polls.__code__.co_firstlineno + 2
    assert (
        f"a worker sleeps, as between retries at {__file__}:{line} in _polls" in judgement.sentence
    )


@pytest.mark.parametrize(
    ("action", "activity"),
    [
        (lambda _path: threading.Event().wait(), "waits"),
        (lambda _path: time.sleep(600), "sleeps"),
    ],
    ids=["lock", "long sleep"],
)
def test_a_hang_costs_no_more_than_its_deadline(records, action, activity):
    """Nothing moves, and no sleep ends in time."""
    outcome = _try(records, action)

    assert (outcome.timed_out, outcome.at_deadline.activity) == (True, activity)
    assert (outcome.at_deadline.more, outcome.delivered) == (0, ())


def _tries_at_once(path):
    while True:
        try:
            path.read_bytes()
        except OSError:
            continue


@pytest.mark.parametrize("fault", [ReadError("*.rec"), OpenError("*.rec")], ids=["read", "open"])
def test_a_fault_that_fires_again_is_no_progress(records, fault):
    """Who tries again at once is hung, however many system calls it makes."""
    outcome = run_trial(
        lambda: OnError(records, _tries_at_once), fault, loader={"num_workers": 1}, deadline=1
    )

    assert outcome.fired > 1000
    assert (outcome.timed_out, outcome.at_deadline.activity) == (True, "computes")
    assert outcome.at_deadline.more == 0


def test_batches_that_come_are_waited_for(records, reference):
    """Each read takes a while, and all of them together longer than the deadline."""
    fault = SlowRead("*.rec", seconds=0.25)
    loader = {"num_workers": 1, "batch_size": 2}
    outcome = run_trial(lambda: Records(records), fault, loader=loader, deadline=DEADLINE)

    assert (outcome.timed_out, outcome.duration > DEADLINE) == (False, True)
    assert outcome.judge(reference).verdict == "survived"


def test_what_is_slow_beyond_the_bound_is_told_so(records, reference, monkeypatch):
    """The sentence says how many batches came, of how many."""
    monkeypatch.setattr(deadline, "MORE_SECONDS", 1.0)
    fault = SlowRead("*.rec", seconds=0.25)
    loader = {"num_workers": 1, "batch_size": 1}
    outcome = run_trial(lambda: Records(records), fault, loader=loader, deadline=DEADLINE)
    judgement = outcome.judge(reference)

    came = len(outcome.delivered)
    assert (judgement.verdict, 0 < came < COUNT) == ("hung", True)
    assert judgement.sentence.endswith(f" s more: {came} of {COUNT} batches came, and it goes on")


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
    """No batch comes for longer than the deadline, but bytes do."""
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "00.rec").write_bytes(bytes(LARGE))
    fault = ShortRead("*.rec", max_bytes=7)
    loader = {"num_workers": 1, "batch_size": 1}
    outcome = run_trial(lambda: ReadsSlowly(folder, 1 << 16), fault, loader=loader, deadline=1)

    assert (outcome.timed_out, len(outcome.delivered)) == (False, 1)
    assert outcome.duration > 1
