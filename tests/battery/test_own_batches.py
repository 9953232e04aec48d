"""Batches that a dataset or its collate function makes as it likes."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from support.datasets import Records, RecordStream
from support.nested_loaders import Swallowing
from support.own_batches import LeavesOutWithMetadata, WithMetadata, mixed_up, pairs

pytestmark = pytest.mark.usefixtures("engine")


def _results(make, *names, **how):
    return check_dataset(make, only=names, on_fail=None, **how)


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


@pytest.mark.parametrize("collate", [mixed_up, pairs])
def test_a_collate_function_that_needs_several_samples(records, collate):
    """Batches are compared as wholes."""
    loader = {"batch_size": 4, "collate_fn": collate}
    results = _results(
        partial(Records, records), "workers-agree", "read-error-first", "truncated-at-rest",
        loader=loader,
    )  # fmt: skip
    assert ["survived", "failed_cleanly", "failed_cleanly"] == [each.verdict for each in results]


@pytest.mark.parametrize("collate", [mixed_up, pairs])
def test_such_a_function_over_a_dataset_that_gives_zeros(records, collate):
    """A batch with a sample that could not be read is not that of the reference."""
    loader = {"batch_size": 4, "collate_fn": collate}
    (result,) = _results(partial(Swallowing, records), "read-error-first", loader=loader)
    assert "corrupted" == result.verdict


@pytest.mark.parametrize("make", [partial(WithMetadata), partial(Records)])
def test_a_collate_function_that_can_make_no_batch(records, make):
    """It is refused with its own error."""

    def fails(samples):
        message = f"{len(samples)} is no number for me"
        raise AssertionError(message)

    with pytest.raises(UnusableDatasetError, match="1 is no number for me"):
        _results(partial(make, records), "workers-agree", loader={"collate_fn": fails})


def test_a_stream_and_a_collate_function_that_needs_several(records):
    """Its batches have no indices, so that there is nothing to compare as wholes."""
    loader = {"batch_size": 4, "collate_fn": mixed_up}
    with pytest.raises(UnusableDatasetError, match="cannot be taken apart into samples"):
        _results(partial(RecordStream, records), "workers-agree", loader=loader)
