"""Batches that a dataset or its collate function makes as it likes."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset
from support.own_batches import LeavesOutWithMetadata, WithMetadata

pytestmark = pytest.mark.usefixtures("engine")


def _results(make, *names, **how):
    return check_dataset(make, only=names, on_fail=None, **how)


def _verdicts(make, *names, **how):
    return [(each.check, str(each.verdict)) for each in _results(make, *names, **how)]


def test_samples_with_empty_parts(records):
    """They are compared one by one."""
    make = partial(WithMetadata, records)
    results = _results(make, "workers-agree", "read-error-first")
    assert ["survived", "failed_cleanly"] == [each.verdict for each in results]


def test_samples_with_empty_parts_that_are_left_out(records):
    """A dataset that leaves some out fails for that."""
    (result,) = _results(partial(LeavesOutWithMetadata, records), "read-error-first")
    assert "corrupted" == result.verdict
    assert "missing" in result.sentence
