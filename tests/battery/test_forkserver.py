"""Batteries whose workers come from a fork server, as by default from Python 3.14 on."""

import sys
import types

import pytest

from pytest_dataloader_faults import check_dataset
from support.datasets import Records
from support.served import KeepsFile
from support.specimens import ZerosOnError

SERVED = {"multiprocessing_context": "forkserver"}


KILLED = "worker-killed-sending"
FEW = ["workers-agree", "pickles", "open-error", "truncated-half", "worker-killed-first", KILLED]


def _verdicts(kind, records, loader, only):
    results = check_dataset(lambda: kind(records), loader=loader, only=only, on_fail=None)
    return {each.check: (each.verdict, each.passed) for each in results if each.applies}


@pytest.mark.parametrize("only", [FEW, pytest.param(None, marks=pytest.mark.slow)], ids=str)
def test_verdicts_are_those_of_forked_workers(records, only):
    """But for what torch itself cannot do there: it waits forever for half a message."""
    forked = _verdicts(ZerosOnError, records, {"multiprocessing_context": "fork"}, only)
    served = _verdicts(ZerosOnError, records, SERVED, only)
    assert forked.pop(KILLED) == ("failed_cleanly", True)
    assert served == forked
    assert len(served) > (len(only) - 2 if only else 20)


def test_what_is_opened_before_the_fork_is_not_shared(records):
    (result,) = check_dataset(
        lambda: KeepsFile(records), only="workers-agree", loader=SERVED, on_fail=None
    )
    assert (str(result.verdict), result.passed) == ("fails_without_fault", False)
    assert "__getstate__" in result.explanation


def test_what_a_worker_cannot_import_is_named(records, monkeypatch):
    module = types.ModuleType("found_by_nobody")
    module.Records = type("Records", (Records,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (result,) = check_dataset(lambda: module.Records(records), only="pickles", on_fail=None)
    assert not result.passed
    assert "cannot import found_by_nobody, which defines the dataset" in result.explanation
    assert "__getstate__" not in result.explanation
