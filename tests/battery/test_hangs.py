"""A dataset that hangs again and again is waited for once."""

from __future__ import annotations

import fcntl
import inspect
import select
import threading
import time
from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.process import deadline
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.baseline_cache import BaselineCache
from pytest_dataloader_faults.faults import SlowRead
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from support.datasets import Records, write_records

DEADLINE, IN_BETWEEN, MORE = 8, 3.0, 6.0


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
    memory = BaselineCache()
    how = {"call": 1, "home": None, "expected": None, "reproduce": "again"}
    pause = []
    make_dataset = partial(HangsOrIsSlow, records, pause)  # Of which no fault-free run is kept.
    found = {}
    for name in ("open-error", "permission-denied", "read-error-first"):
        found[name] = memory.ask(name, make_dataset, Settings(deadline=DEADLINE), **how).result
        pause[:] = [DEADLINE - 2]  # More than an early look takes.
    return found


def _deadlines(result):
    return [each.deadline for each in result.trials]


def test_the_first_hang_is_confirmed(results):
    """The second trial is looked at early, and is at the same line."""
    first = results["open-error"]

    whole, look = _deadlines(first)
    assert (first.verdict, first.reproduced, whole) == ("hung", True, DEADLINE)
    assert look < DEADLINE
    assert "confirmed: 2 of 2 trials failed" in first.explanation


def test_the_next_hang_is_known_by_its_line(results):
    """One trial shows it, also in another item, and the text says where two were."""
    lines, start = inspect.getsourcelines(HangsOrIsSlow)
    line = start + next(n for n, each in enumerate(lines) if "Event" in each)
    second = results["permission-denied"]

    assert (second.verdict, second.failed, len(second.trials)) == ("hung", True, 1)
    assert _deadlines(second)[0] < DEADLINE
    where = f"{__file__}:{line} in __getitem__, where two trials of open-error hung"
    assert f"it hangs at {where}" in second.explanation


def test_what_is_slow_elsewhere_is_waited_for(results):
    """It was not done at the early look, and it is no hang."""
    third = results["read-error-first"]

    assert (third.verdict, third.passed) == ("failed_cleanly", True), third.explanation
    assert _deadlines(third) == [DEADLINE]
    assert third.outcome.duration > DEADLINE - 2


class TriesForEver(Records):
    """Waits between its attempts, at the same line where it is while it hangs."""

    def __getitem__(self, index):
        while True:
            try:
                return super().__getitem__(index)
            except OSError:
                time.sleep(IN_BETWEEN)


@pytest.fixture(name="less_patience")
def _less_patience(monkeypatch):
    """A bound that a test can wait for."""
    monkeypatch.setattr(deadline, "MORE_SECONDS", MORE)


def test_a_wait_after_a_fault_that_passes_is_no_hang(records, less_patience):
    """It is at the line where the dataset hung before, and goes on."""
    found = check_dataset(
        lambda: TriesForEver(records),
        only=["read-error-first", "read-error-transient"],
        deadline=DEADLINE,
        on_fail=None,
    )
    verdicts = {each.check: (str(each.verdict), each.passed) for each in found}
    assert verdicts["read-error-first"] == ("hung", False)
    assert verdicts["read-error-transient"] == ("survived", True)


def test_who_sleeps_for_ever_is_waited_for_once(records, less_patience):
    """Until the bound in the first trial; all others are looked at early, and are at that line."""
    first, second = check_dataset(
        lambda: TriesForEver(records),
        only=["open-error", "read-error-first"],
        deadline=DEADLINE,
        on_fail=None,
    )
    looks = [each.at_deadline.more for each in (*first.trials, *second.trials)]

    assert [each.verdict for each in (first, second)] == ["hung", "hung"]
    assert 1 < looks[0] <= MORE + 1
    assert looks[1:] == [0, 0]
    assert first.cause == second.cause == "sleeps between retries for longer than its deadline"
    assert "--dataloader-faults-deadline=" in first.explanation
    assert "__getitem__ while it sleeps, where two trials of open-error hung" in second.explanation


class WaitsOrRetries(Records):
    """At one line, waits forever for what it cannot open, and a while for what it cannot read."""

    def __getitem__(self, index):
        path, wait = self.paths[index], None
        try:
            with path.open("rb", buffering=0) as file:
                wait = DEADLINE - 2
                return file.read()
        except OSError:
            threading.Event().wait(wait)
            raise


def test_a_retry_at_the_line_of_a_hang_is_waited_for(records):
    """At the early look it sleeps there, which is no hang."""
    first, second = check_dataset(
        lambda: WaitsOrRetries(records),
        only=["open-error", "read-error-first"],
        deadline=DEADLINE,
        on_fail=None,
    )
    assert (first.verdict, second.verdict) == ("hung", "failed_cleanly"), second.explanation


class TriesForAWhile(Records):
    """Tries again and again: forever, or where it has no permission for three seconds.

    It is always at one line. Its pauses are short, and in poll(2), which counts as no sleep.
    """

    def __getitem__(self, index):
        began, pause = time.monotonic(), select.poll()
        while True:
            try:
                with pause.poll(2) or open(self.paths[index], "rb", buffering=0) as file:
                    return file.read()
            except PermissionError:
                if time.monotonic() - began > IN_BETWEEN:
                    raise
            except OSError:
                continue


def test_who_tries_again_at_the_line_of_a_hang_has_all_of_its_time(records):
    """It is always at that line, and may have a limit that a look does not see."""
    first, second = check_dataset(
        lambda: TriesForAWhile(records),
        only=["open-error", "permission-denied"],
        loader={"num_workers": 1},
        deadline=DEADLINE,
        on_fail=None,
    )
    assert (first.verdict, second.verdict) == ("hung", "failed_cleanly"), second.explanation


SLOWER = 0.5


def test_what_is_slow_is_no_place_of_a_hang(records, monkeypatch):
    """It reads at the same line in each trial; the second one has no more than its deadline."""
    monkeypatch.setattr(deadline, "MORE_SECONDS", 2.0)
    battery = Battery(lambda: Records(records), Settings(deadline=2.0))
    found = battery.run_faults(SlowRead("*.rec", seconds=SLOWER))
    cause = likely_cause(found.trial.outcome, found.trial.judgement, battery.baseline.fault_free)

    first, second = (each.outcome.at_deadline for each in found.trials)
    assert found.trial.judgement.verdict == "hung"
    assert (first.more > 1, second.more) == (True, 0)
    assert battery.hangs == {}
    assert cause.phrase.startswith("is slow under this fault")
    assert cause.overrides


class WaitsOnError(Records):
    """Waits forever for what it cannot have."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except (OSError, ValueError):
            threading.Event().wait()
            raise


class LocksOnError(Records):
    """Takes a lock that it has, where it cannot have something."""

    def __getitem__(self, index):
        lock = threading.Lock()
        with lock:
            try:
                return super().__getitem__(index)
            except (OSError, ValueError):
                return self._again(index, lock)

    def _again(self, index, lock):
        with lock:
            return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WaitsOnError, LocksOnError])
def test_each_hang_after_the_first_is_one_look(kind, records):
    """A dataset that hangs in every check costs one deadline, and some seconds for each check."""
    results = check_dataset(lambda: kind(records), on_fail=None)
    hung = [
        each.trials
        for each in results
        if each.verdict == "hung" and each.check != "read-error-transient"
    ]
    first, *looks = [one.deadline for trials in hung for one in trials]

    assert len(hung) > 8
    assert [len(trials) for trials in hung] == [2, *[1] * len(hung[1:])]
    assert max(looks) < first


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
    """The loader's timeout counts from the hang, whatever the other worker does."""
    (result,) = check_dataset(
        lambda: PollsLock(records), files="*.rec", only="hung-read", deadline=DEADLINE
    )
    assert (result.verdict, len(result.trials)) == ("failed_cleanly", 1)
    assert "DataLoader timed out" in result.outcome.exception.message
