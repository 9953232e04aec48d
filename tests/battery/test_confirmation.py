"""A trial that fails is repeated before its check fails, and the result says what came of that."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
import torch

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery._battery import Battery, Memory
from pytest_dataloader_faults.battery.asking import ask
from pytest_dataloader_faults.battery.sweeping import sweep
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    NotReproducedWarning,
)
from support.datasets import SIZE, Records
from support.specimens import ZerosOnError

CHECK = "read-error-first"
SLEEPS = "sleeps between retries for longer than its deadline"


class ZerosInTheFirstTrial(Records):
    """Gives zeros for what it cannot read, unless *note* was there when it was made."""

    def __init__(self, folder, note):
        super().__init__(folder)
        self.note = note
        self.is_first = not note.exists()

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            if not self.is_first:
                raise
            self.note.touch()
            return torch.zeros(SIZE, dtype=torch.uint8), index


@pytest.fixture(name="fails_once")
def _fails_once(records, tmp_path):
    """A factory of datasets, of which the first that comes under a fault is wrong."""
    return lambda: ZerosInTheFirstTrial(records, tmp_path / "note")


def test_a_failure_is_confirmed(records):
    """Two trials fail, and the text says so before the evidence."""
    (result,) = check_dataset(lambda: ZerosOnError(records), only=CHECK, on_fail=None)

    assert (result.verdict, result.failed, result.reproduced) == ("corrupted", True, True)
    assert (
        result.explanation.splitlines()[2] == "  confirmed: 2 of 2 trials failed."
    )  # After the advice.
    assert [each.fired > 0 for each in result.trials] == [True, True]
    assert result.outcome is result.trials[0]


def test_a_failure_that_is_not_reproduced_is_a_warning(fails_once):
    """One of three trials failed: the check does not fail, and the evidence is all there."""
    with pytest.warns(NotReproducedWarning, match="not reproduced: 1 of 3 trials failed"):
        (result,) = check_dataset(fails_once, only=CHECK)

    assert (result.verdict, result.passed, result.failed) == ("corrupted", False, False)
    assert (result.reproduced, len(result.trials)) == (False, 3)
    assert "trial 2: failed_cleanly" in result.explanation


def test_not_reproduced_can_be_made_a_failure(fails_once):
    """``not_reproduced="fail"`` is for those who want to look at each, and to repeat it so."""
    with pytest.raises(CheckFailedError, match="not reproduced: 1 of 3 trials failed") as failed:
        check_dataset(fails_once, only=CHECK, not_reproduced="fail")

    assert f"only='{CHECK}', not_reproduced='fail', " in str(failed.value).splitlines()[-1]


def test_an_unknown_choice_is_refused(records):
    """The text names the value and what is allowed."""
    message = r"not_reproduced='maybe' must be one of \('warn', 'fail'\)"
    with pytest.raises(InvalidArgumentError, match=message):
        check_dataset(lambda: Records(records), not_reproduced="maybe")


class Hangs(Records):
    """Waits forever for what it cannot read."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            time.sleep(600)
            raise


def test_a_hang_is_not_waited_for_twice_at_full_length(records):
    """The second one is looked at once an epoch would long be over, and is at the same line."""
    (result,) = check_dataset(lambda: Hangs(records), only=CHECK, deadline=6, on_fail=None)
    first, second = result.trials

    assert (result.verdict, result.failed) == ("hung", True)
    assert first.deadline == 6
    assert 2 <= second.deadline < 6 <= first.duration


def test_an_expected_failure_that_comes_and_goes_is_expected(fails_once):
    """It failed in the first trial, so it need not be repeated."""
    expected = {CHECK: "issue 7"}
    (result,) = check_dataset(fails_once, only=CHECK, expected_failures=expected)

    assert (result.verdict, result.failed, len(result.trials)) == ("corrupted", False, 1)


def test_an_expected_failure_has_to_pass_twice(records):
    """Only then it is to be taken off the list. Another pass is one trial."""
    other, result = check_dataset(
        lambda: Records(records),
        only=["open-error", CHECK],
        expected_failures={CHECK: "mended"},
        on_fail=None,
    )

    assert (result.verdict, result.failed, len(result.trials)) == ("failed_cleanly", True, 2)
    assert (other.verdict, other.failed, len(other.trials)) == ("failed_cleanly", False, 1)


def test_a_sweep_confirms_too(fails_once, records):
    """A step that fails once of three times is a warning; one that always fails ends the sweep."""
    with pytest.warns(NotReproducedWarning):
        swept = sweep(fails_once, max_trials=1)
    with pytest.raises(CheckFailedError, match="confirmed: 2 of 2 trials failed"):
        sweep(lambda: ZerosOnError(records), max_trials=1)

    assert swept.steps[0].passed


class DiesAtTimes(Records):
    """Its workers die or hang, as *trouble* does, while there is a *mark*, whatever the fault."""

    def __init__(self, folder, mark, trouble):
        super().__init__(folder)
        self.mark, self.trouble = mark, trouble

    def __getitem__(self, index):
        if self.mark.exists():
            sys.stderr.write("warning: this library is not fork-safe\n")
            self.trouble()
        return super().__getitem__(index)


def _dies():
    os.kill(os.getpid(), signal.SIGSEGV)


def _hangs():
    threading.Event().wait()


@pytest.mark.parametrize("trouble", [_dies, _hangs])
def test_a_dataset_that_dies_by_itself_is_told_so_once(records, tmp_path, trouble):
    """All checks have one cause, and quote what was printed; one more trial shows it."""
    mark = tmp_path / "mark"
    battery = Battery(lambda: DiesAtTimes(records, mark, trouble), Settings(deadline=3))
    mark.touch()  # The run without a fault went well.
    results = [ask(battery, name) for name in ("read-error-first", "truncated-half", "leftovers")]

    assert {each.cause for each in results} == {"hangs or dies at times without any fault"}
    for each in results:
        assert "it also fails with no fault" in each.explanation
        assert "It printed: warning: this library is not fork-safe" in each.explanation
    assert battery.memory.sound_runs == 0


def test_a_hang_of_the_fault_is_its_own(records):
    """Trials with no fault go well, and no more than a few of them are run."""
    battery = Battery(lambda: Hangs(records), Settings(deadline=4))
    results = [ask(battery, each) for each in (CHECK, "read-error-later", CHECK, CHECK)]

    assert {each.verdict for each in results} == {"hung"}
    assert {each.cause for each in results} == {
        "sleeps between retries for longer than its deadline"
    }
    assert battery.memory == Memory(battery.hangs, alone="", sound_runs=3)
