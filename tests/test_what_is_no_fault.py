"""What is given where a fault is expected: the error says what to write instead."""

import re

import pytest

from pytest_dataloader_faults import explore, inject, run_trial, sweep
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError, ReadError, WorkerKilled
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.search import replay
from support.datasets import Records
from support.rows import rows

SEVERAL = "[ReadError, OpenError()] is a list, not a fault. Pass each fault as a separate argument"
CASES = {
    "class": (ReadError, "ReadError is a class, not a fault. Call it: ReadError()"),
    "worker": (WorkerKilled, "WorkerKilled is a class, not a fault. Call it: WorkerKilled()"),
    "list": ([ReadError, OpenError()], f"{SEVERAL}, for example with *faults, and call each class"),
    "tuple": ((OpenError(),), "[OpenError()] is a list, not a fault. Pass each fault as a"),
    "other class": (OSError, "<class 'OSError'> is not a fault. Pass faults, such as ReadError"),
}


@rows(("argument", "message"), CASES.values(), ids=CASES)
def test_where_faults_are_armed(argument, message):
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        inject(argument)


@rows("call", [FaultInjector().inject, run_trial, replay])
def test_where_they_are_passed_on(records, call):
    arguments = [lambda: Records(records)] if call in (run_trial, replay) else []
    with pytest.raises(InvalidArgumentError, match="ReadError is a class, not a fault"):
        call(*arguments, ReadError)


@rows(
    ("argument", "message"),
    [
        ([ReadError], "faults: ReadError is a class, not a fault"),
        (ReadError, "faults=ReadError.* must be a list"),
        (3, "faults=3 must be a list"),
    ],
)
def test_of_a_sweep(records, argument, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sweep(lambda: Records(records), faults=argument)


def test_a_search_takes_kinds(records):
    message = r"does not accept faults=\[ReadError\(\)\].*kinds=\[ReadError\]"
    with pytest.raises(InvalidArgumentError, match=message):
        explore(lambda: Records(records), faults=[ReadError()])
