"""What is given where a fault is expected: the error says what to write instead."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults import explore, inject, run_trial, sweep
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError, ReadError, WorkerKilled
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.search import replay
from support.datasets import Records, write_records

SEVERAL = "[ReadError, OpenError()] is no fault, but several things. Give each fault as an argument"
CASES = {
    "class": (ReadError, "ReadError is no fault, but a class. Call it: ReadError()"),
    "worker": (WorkerKilled, "WorkerKilled is no fault, but a class. Call it: WorkerKilled()"),
    "list": ([ReadError, OpenError()], f"{SEVERAL} of its own, as by *faults, and call each class"),
    "tuple": ((OpenError(),), "[OpenError()] is no fault, but several things. Give each fault as"),
    "other class": (OSError, "<class 'OSError'> is no fault. Give faults, such as ReadError"),
}
each_case = pytest.mark.parametrize(("given", "told"), CASES.values(), ids=CASES)


@pytest.fixture(name="make")
def _make(tmp_path):
    records = write_records(tmp_path / "records")
    return lambda: Records(records)


@each_case
@pytest.mark.parametrize("call", [inject, FaultInjector().inject], ids=["inject", "injector"])
def test_where_faults_are_armed(call, given, told):
    """A class is to be called; what is in a list is to be given by itself."""
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        call(given)


@each_case
@pytest.mark.parametrize("call", [run_trial, replay])
def test_where_a_trial_is_run(call, make, given, told):
    """The same before anything is started."""
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        call(make, given)


@each_case
def test_within_the_faults_of_a_sweep(make, given, told):
    """The argument is named, too."""
    with pytest.raises(InvalidArgumentError, match=re.escape(f"faults: {told}")):
        sweep(make, faults=[given])


@pytest.mark.parametrize("given", [ReadError, ReadError(), 3], ids=repr)
def test_a_sweep_of_what_is_not_several(make, given):
    """A list is asked for."""
    with pytest.raises(
        InvalidArgumentError, match=r"faults=ReadError.* must be several|faults=3 m"
    ):
        sweep(make, faults=given)


def test_a_search_takes_kinds(make):
    """Faults that are given to a search are refused with the argument that it takes."""
    told = r"faults=\[ReadError\(\)\] is no argument of a search.*kinds=\[ReadError\]"
    with pytest.raises(InvalidArgumentError, match=told):
        explore(make, faults=[ReadError()])
