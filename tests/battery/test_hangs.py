"""A dataset that hangs again and again is waited for once."""

import inspect
import threading
import time
from functools import partial

import pytest

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery import shares
from pytest_dataloader_faults.battery.batteries import Batteries
from support.datasets import Records, write_records
from support.waiting import allowed


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
    records = write_records(tmp_path_factory.mktemp("data") / "records")
    batteries = Batteries()
    options = {"call": 1, "expected_failures": {}, "reproduce": "again"}
    settings, pause = Settings(deadline=allowed(2.0)), []
    make_dataset = partial(HangsOrIsSlow, records, pause)
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "_MIN_SECONDS_KNOWN_HANG", allowed(1.0))
        patch.setattr(shares, "_EPOCHS_KNOWN_HANG", 0)  # An epoch may be slow on a busy machine.
        for name in ("open-error", "descriptor-exhaustion", "read-error"):
            results[name], _ = batteries.run_check(name, make_dataset, settings, **options)
            pause[:] = [sum(_deadlines(results["open-error"])) / 2]  # More than an early look.
    return results


def _deadlines(result):
    return [each.request.deadline for each in result.trials]


def test_the_first_hang_is_confirmed(results):
    result = results["open-error"]

    deadline, look = _deadlines(result)
    assert (result.verdict, result.reproduced) == ("hung", True)
    assert look < deadline
    assert "confirmed: 2 of 2 trials failed" in result.explanation


def test_the_next_hang_is_known_by_its_line(results):
    lines, start = inspect.getsourcelines(HangsOrIsSlow)
    line = start + next(n for n, each in enumerate(lines) if "Event" in each)
    first, second = results["open-error"], results["descriptor-exhaustion"]

    assert (second.verdict, second.failed, len(second.trials)) == ("hung", True, 1)
    assert _deadlines(second)[0] < _deadlines(first)[0]
    where = f"{__file__}:{line} in __getitem__, where two trials of open-error also hung"
    assert f"it hangs at {where}" in second.explanation


def test_what_is_slow_elsewhere_is_waited_for(results):
    deadline, look = _deadlines(results["open-error"])
    third = results["read-error"]

    assert (third.verdict, third.passed) == ("failed_cleanly", True), third.explanation
    assert _deadlines(third) == [deadline]
    assert third.outcome.duration > (deadline + look) / 2
