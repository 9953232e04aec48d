"""Batches that a dataset or its collate function makes as it likes."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from support.datasets import Records, RecordStream
from support.nested_loaders import Swallowing
from support.own_batches import (
    Backwards,
    InWorkersOnly,
    InWorkersOnlyLeavingOut,
    LeavesOutWithMetadata,
    LosesShards,
    LosesTheLastShard,
    OpenedByInit,
    OpenedByInitOrZeros,
    OwnBatches,
    WithMetadata,
    ZerosForShards,
    mixed_up,
    open_handles,
    over_own_batches,
    pairs,
)

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


@pytest.fixture(name="file")
def _file(records, tmp_path):
    """One file of all records."""
    path = tmp_path / "all.bin"
    path.write_bytes(b"".join(each.read_bytes() for each in sorted(records.iterdir())))
    return path


_OPENED = {"worker_init_fn": open_handles, "batch_size": 4}


def test_a_handle_that_worker_init_fn_opens(file):
    """A worker reads the reference, and what needs the main process does not apply."""
    checks = ("workers-agree", "used-before", "read-error-first", "read-error-at-rest")
    agree, before, *failed = _results(partial(OpenedByInit, file), *checks, loader=_OPENED)
    assert "survived" == agree.verdict
    assert "only workers can read it" in before.sentence
    assert ["failed_cleanly"] * 2 == [each.verdict for each in failed]


@pytest.mark.slow
def test_such_a_handle_in_workers_of_a_fork_server(file):
    """The reference is the same."""
    loader = {**_OPENED, "multiprocessing_context": "forkserver"}
    (result,) = _results(partial(OpenedByInit, file), "workers-agree", loader=loader)
    assert "survived" == result.verdict


def test_such_a_handle_and_zeros(file):
    """What the dataset swallows is found."""
    (result,) = _results(partial(OpenedByInitOrZeros, file), "read-error-first", loader=_OPENED)
    assert "corrupted" == result.verdict


def test_a_stream_that_only_workers_can_read(records):
    """Its samples are those of one worker."""
    make = partial(InWorkersOnly, records)
    results = _results(make, "workers-agree", "read-error-first", "missing-at-rest")
    assert ["survived", "failed_cleanly", "failed_cleanly"] == [each.verdict for each in results]


def test_such_a_stream_that_leaves_out_samples(records):
    """It fails for that."""
    (result,) = _results(partial(InWorkersOnlyLeavingOut, records), "read-error-first")
    assert ("corrupted", True) == (result.verdict, "missing" in result.sentence)


def test_what_no_worker_can_read_either(file):
    """The error is that of the worker."""

    def fail(_worker):
        message = "no handle today"
        raise LookupError(message)

    with pytest.raises(UnusableDatasetError, match=r"worker_init_fn failed.*no handle today"):
        _results(partial(OpenedByInit, file), "workers-agree", loader={"worker_init_fn": fail})


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_makes_its_own_batches(records, workers):
    """Other numbers of workers make other batches of the same samples."""
    make = partial(over_own_batches, OwnBatches, records, workers)
    agree, failed = _results(make, "workers-agree", "file-missing")
    assert ("survived", "failed_cleanly") == (agree.verdict, failed.verdict)


@pytest.mark.parametrize(
    ("kind", "check", "told"),
    [
        (LosesShards, "read-error-transient", "of 15 samples are missing"),
        (LosesTheLastShard, "workers-agree", "5 of 15 samples are missing"),
        (ZerosForShards, "read-error-transient", "samples are wrong"),
        (Backwards, "workers-agree", "match no sample of the reference"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_defect_of_a_stream_that_makes_its_own_batches(records, kind, check, told, workers):
    """What is left out is told from what is made up, and counted in samples."""
    make = partial(over_own_batches, kind, records, workers)
    (result,) = _results(make, check)
    assert "corrupted" == result.verdict
    assert told in result.sentence
