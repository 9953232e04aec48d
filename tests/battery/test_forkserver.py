"""Batteries whose workers come from a fork server, as by default from Python 3.14 on."""

import sys
import types

from support.datasets import Records
from support.results import failure_of

SERVED = {"multiprocessing_context": "forkserver"}


def test_what_a_worker_cannot_import_is_named(records, monkeypatch):
    module = types.ModuleType("found_by_nobody")
    module.Records = type("Records", (Records,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    result = failure_of(lambda: module.Records(records), "pickles")
    assert "cannot import found_by_nobody, which defines the dataset" in result.explanation
    assert "__getstate__" not in result.explanation
