"""What is given where a fault is expected: the error says what to write instead."""

import re

import pytest

from pytest_dataloader_faults import explore, inject, run_trial, sweep
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError, ReadError, WorkerKilled
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.search import replay
from support.datasets import Records, write_records
from support.rows import rows

SEVERAL = "[ReadError, OpenError()] is a list, not a fault. Pass each fault as a separate argument"
CASES = {
    "class": (ReadError, "ReadError is a class, not a fault. Call it: ReadError()"),
    "worker": (WorkerKilled, "WorkerKilled is a class, not a fault. Call it: WorkerKilled()"),
    "list": ([ReadError, OpenError()], f"{SEVERAL}, for example with *faults, and call each class"),
    "tuple": ((OpenError(),), "[OpenError()] is a list, not a fault. Pass each fault as a"),
    "other class": (OSError, "<class 'OSError'> is not a fault. Pass faults, such as ReadError"),
}
each_case = rows(("argument", "message"), CASES.values(), ids=CASES)


@pytest.fixture(name="make")
def _make(tmp_path):
    records = write_records(tmp_path / "records")
    return lambda: Records(records)


@each_case
@rows("call", [inject, FaultInjector().inject])
def test_where_faults_are_armed(call, argument, message):
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        call(argument)


@each_case
@rows("call", [run_trial, replay])
def test_where_a_trial_is_run(call, make, argument, message):
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        call(make, argument)


@each_case
def test_within_the_faults_of_a_sweep(make, argument, message):
    with pytest.raises(InvalidArgumentError, match=re.escape(f"faults: {message}")):
        sweep(make, faults=[argument])


@rows("argument", [ReadError, ReadError(), 3])
def test_a_sweep_of_what_is_not_several(make, argument):
    with pytest.raises(InvalidArgumentError, match=r"faults=ReadError.* must be a list|faults=3 m"):
        sweep(make, faults=argument)


def test_a_search_takes_kinds(make):
    message = r"does not accept faults=\[ReadError\(\)\].*kinds=\[ReadError\]"
    with pytest.raises(InvalidArgumentError, match=message):
        explore(make, faults=[ReadError()])
