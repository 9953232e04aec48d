"""A dataset that hangs again and again is waited for once."""

import errno
import fcntl
import inspect
import select
import threading
import time
from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.process import clock
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.batteries import Batteries
from pytest_dataloader_faults.faults import SlowRead
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from pytest_dataloader_faults.outcomes.repeats import deciding_trial
from pytest_dataloader_faults.steps import run_epochs
from support.datasets import Records, write_records

DEADLINE, IN_BETWEEN, MORE = 6, 3.0, 4.0


class HangsOrIsSlow(Records):
    """Waits forever for what it cannot open, and *pause* seconds for what it cannot read."""

    def __init__(self, folder, pause):
        super().__init__(folder)
        self.pause = pause

    def __getitem__(self, index):
        path = self.paths[index]
        try:
            file = path.open("rb", buffering=0)
        except OSError:
            threading.Event().wait()
            raise
        with file:
            try:
                return file.read()
            except OSError:
                time.sleep(sum(self.pause))
                raise


@pytest.fixture(scope="module", name="results")
def _results(tmp_path_factory):
    """Those of three checks, each of an item of its own."""
    records = write_records(tmp_path_factory.mktemp("data") / "records")
    batteries = Batteries()
    options = {"call": 1, "expected_failures": {}, "reproduce": "again"}
    pause = []
    make_dataset = partial(HangsOrIsSlow, records, pause)
    results = {}
    for name in ("open-error", "descriptor-exhaustion", "read-error"):
        results[name], _ = batteries.run_check(
            name, make_dataset, Settings(deadline=DEADLINE), **options
        )
        pause[:] = [DEADLINE - 2]  # More than an early look takes.
    return results


def _deadlines(result):
    return [each.request.deadline for each in result.trials]


def test_the_first_hang_is_confirmed(results):
    result = results["open-error"]

    deadline, look = _deadlines(result)
    assert (result.verdict, result.reproduced, deadline) == ("hung", True, DEADLINE)
    assert look < DEADLINE
    assert "confirmed: 2 of 2 trials failed" in result.explanation


def test_the_next_hang_is_known_by_its_line(results):
    lines, start = inspect.getsourcelines(HangsOrIsSlow)
    line = start + next(n for n, each in enumerate(lines) if "Event" in each)
    second = results["descriptor-exhaustion"]

    assert (second.verdict, second.failed, len(second.trials)) == ("hung", True, 1)
    assert _deadlines(second)[0] < DEADLINE
    where = f"{__file__}:{line} in __getitem__, where two trials of open-error also hung"
    assert f"it hangs at {where}" in second.explanation


def test_what_is_slow_elsewhere_is_waited_for(results):
    third = results["read-error"]

    assert (third.verdict, third.passed) == ("failed_cleanly", True), third.explanation
    assert _deadlines(third) == [DEADLINE]
    assert third.outcome.duration > DEADLINE - 2


class TriesForAWhile(Records):
    """Tries again and again: forever, or for three seconds if it has no descriptor.

    It is always at one line. Its pauses are short, and in poll(2), which counts as no sleep.
    """

    def __getitem__(self, index):
        began = None
        while True:
            try:
                with (began and self.pause()) or open(self.paths[index], "rb", buffering=0) as file:
                    return file.read()
            except OSError as error:
                began = began or time.monotonic()
                if error.errno == errno.EMFILE and time.monotonic() - began > IN_BETWEEN:
                    raise

    def pause(self):
        select.poll().poll(2)


def test_a_retry_at_the_line_of_a_hang_is_waited_for(records):
    first_result, second = check_dataset(
        lambda: TriesForAWhile(records),
        only=["open-error", "descriptor-exhaustion"],
        loader={"num_workers": 1},
        deadline=DEADLINE,
        on_fail=None,
    )
    assert (first_result.verdict, second.verdict) == ("hung", "failed_cleanly"), second.explanation


SLOWER = 0.5


def test_what_is_slow_is_no_place_of_a_hang(records, monkeypatch):
    monkeypatch.setattr(clock, "MORE_SECONDS", 2.0)
    battery = Battery(lambda: Records(records), Settings(deadline=2.0))
    result = battery.run_faults(SlowRead("*.rec", seconds=SLOWER), processes=run_epochs())
    cause = likely_cause(*deciding_trial(result), battery.fault_free_run.outcome)

    first_activity, second = (each.end.at_deadline for each in result.trials)
    assert result.verdict == "hung"
    assert (first_activity.extension > 1, second.extension) == (True, 0)
    assert battery.hangs == {}
    assert "slow under this fault" in cause.phrase
    assert cause.overrides


class PollsLock(Records):
    """Reads under a lock for which the other worker polls, as filelock does: healthy."""

    def __getitem__(self, index):
        with open(self.paths[0].parent.parent / "lock", "w") as lock:
            while not _is_locked(lock):
                time.sleep(0.005)
            return super().__getitem__(index)


def _is_locked(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_worker_that_polls_for_the_lock_of_one_that_hangs_is_no_hang(records):
    (result,) = check_dataset(
        lambda: PollsLock(records), files="*.rec", only="hung-read", deadline=DEADLINE
    )
    assert (result.verdict, len(result.trials)) == ("failed_cleanly", 1)
    assert "DataLoader timed out" in result.outcome.exception.message
