"""A trial that fails is repeated before its check fails, and the result says what came of that."""

import os

import pytest
import torch

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import run_check
from pytest_dataloader_faults.exceptions import FlakyCheckWarning
from support.datasets import SIZE, Records

CHECK = "read-error"


def append(note):
    with note.open("a") as file:
        file.write(".")


class ZerosInTheFirstTrial(Records):
    """Gives zeros for what it cannot read, unless *note* was not empty when it was made."""

    def __init__(self, folder, note):
        super().__init__(folder)
        self.note = note
        self.is_first = not note.stat().st_size

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError:
            if not self.is_first:
                raise
            append(self.note)
            return torch.zeros(SIZE, dtype=torch.uint8), index


@pytest.fixture(name="fails_once")
def _fails_once(records, tmp_path):
    """A factory of datasets, of which the first that comes under a fault is wrong."""
    (tmp_path / "note").touch()  # What a trial creates after a fault is removed.
    return lambda: ZerosInTheFirstTrial(records, tmp_path / "note")


def test_a_failure_that_is_not_reproduced_is_a_warning(fails_once):
    with pytest.warns(FlakyCheckWarning, match="flaky: 1 of 3 trials failed"):
        (result,) = check_dataset(fails_once, only=CHECK)

    assert (result.verdict, result.passed, result.failed) == ("corrupted", False, False)
    assert (result.reproduced, len(result.trials)) == (False, 3)
    assert "trial 2: failed_cleanly" in result.explanation


def test_an_expected_failure_that_comes_and_goes_is_expected(fails_once):
    expected = {CHECK: "issue 7"}
    (result,) = check_dataset(fails_once, only=CHECK, expected_failures=expected)

    assert (result.verdict, result.failed, len(result.trials)) == ("corrupted", False, 1)


class WrongOnce(Records):
    """Sample 0 is wrong in another process while there is a *mark*, which goes with it."""

    def __init__(self, folder, mark):
        super().__init__(folder)
        self.mark, self.failed, self.pid = mark, mark.with_suffix(".failed"), os.getpid()

    def __getitem__(self, index):
        if index == 0 and os.getpid() != self.pid and self.mark.exists():
            self.mark.unlink()
            return torch.zeros(SIZE, dtype=torch.uint8), index
        return super().__getitem__(index)


NO_FAULT = ("two-epochs",)


def _fail_once(kind, records, mark, *names):
    battery = Battery(lambda: kind(records, mark))
    for name in names:
        failed = mark.with_suffix(".failed")
        failed.touch() if name in NO_FAULT else failed.unlink(missing_ok=True)
        mark.touch()
        yield run_check(battery, name)


def test_a_result_depends_on_its_own_trials_only(records, tmp_path):
    results = list(_fail_once(WrongOnce, records, tmp_path / "mark", *NO_FAULT))

    for each in results:
        assert (each.failed, each.reproduced, len(each.trials)) == (False, False, 3)
        assert each.cause == "fails intermittently without a fault"
