"""Batteries whose workers come from a fork server, as by default from Python 3.14 on."""

import sys
import types

import pytest

from pytest_dataloader_faults import check_dataset
from support.datasets import Records
from support.results import failure_of
from support.served import KeepsFile
from support.specimens import ZerosOnError

SERVED = {"multiprocessing_context": "forkserver"}


KILLED = "worker-killed-sending"
FEW = ["workers-agree", "pickles", "open-error", "truncated-file", "worker-killed", KILLED]


def _verdicts(kind, records, loader, **options):
    results = check_dataset(lambda: kind(records), loader=loader, on_fail=None, **options)
    return {each.check: (each.verdict, each.passed) for each in results if each.applies}


@pytest.mark.slow
def test_few_verdicts_are_those_of_forked_workers(records):
    expected = dict.fromkeys(("open-error", "truncated-file"), "it returns zeros")
    assert _verdicts(ZerosOnError, records, SERVED, only=FEW, expected_failures=expected) == {
        "workers-agree": ("survived", True),
        "pickles": ("survived", True),
        "open-error": ("corrupted", False),
        "truncated-file": ("corrupted", False),
        "worker-killed": ("failed_cleanly", True),
    }


def test_what_is_opened_before_the_fork_is_not_shared(records):
    result = failure_of(lambda: KeepsFile(records), "workers-agree", loader=SERVED)
    assert result.verdict == "fails_without_fault"
    assert "__getstate__" in result.explanation


def test_what_a_worker_cannot_import_is_named(records, monkeypatch):
    module = types.ModuleType("found_by_nobody")
    module.Records = type("Records", (Records,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    result = failure_of(lambda: module.Records(records), "pickles")
    assert "cannot import found_by_nobody, which defines the dataset" in result.explanation
    assert "__getstate__" not in result.explanation
