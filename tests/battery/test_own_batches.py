"""Batches that a dataset or its collate function makes as it likes."""

import re
from functools import partial

import pytest

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes.reference import divide
from support.datasets import Records, RecordStream
from support.own_batches import (
    ForSoManyWorkers,
    LosesShuffledShards,
    OpenedByInit,
    OwnBatches,
    mixed_up,
    open_handles,
    over_own_batches,
    pairs,
)
from support.results import failure_of
from support.specimens import ZerosOnError

pytestmark = pytest.mark.usefixtures("engine")


def _results(make, *names, **options):
    return check_dataset(make, only=names, on_fail=None, **options)


SURVIVES, FAILS = {"workers-agree": "survived"}, {"read-error": "failed_cleanly"}
FAILS_EARLY = {"missing-file": "failed_cleanly"}
PAIRED = {"collate_fn": pairs, "batch_size": 4}
CORRUPTED = {"read-error": "corrupted"}


@pytest.mark.parametrize(
    ("dataset", "loader", "expected"),
    [
        (ForSoManyWorkers, {}, SURVIVES | {"pickles": "survived"} | FAILS | FAILS_EARLY),
        (ZerosOnError, PAIRED, CORRUPTED),
    ],
)
def test_batches_that_are_more_than_stacked_samples(dataset, loader, expected, records):
    fails = [name for name, sentence in expected.items() if sentence.startswith("corrupted")]
    expected_failures = dict.fromkeys(fails, "its defect")
    options = {"loader": loader, "expected_failures": expected_failures}
    for result in _results(partial(dataset, records), *expected, **options):
        headline = f"{result.verdict}: {result.sentence}"
        assert re.match(expected[result.check], headline), result.explanation


@pytest.fixture(name="file")
def _file(records, tmp_path):
    path = tmp_path / "all.bin"
    path.write_bytes(b"".join(each.read_bytes() for each in sorted(records.iterdir())))
    return path


_OPENED = {"worker_init_fn": open_handles, "batch_size": 4}


def test_a_handle_that_worker_init_fn_opens(file):
    checks = ("workers-agree", "read-before-fork", "read-error")
    agree, reads_before, failed = _results(partial(OpenedByInit, file), *checks, loader=_OPENED)
    assert "survived" == agree.verdict
    assert "only workers can read it" in reads_before.sentence
    assert "failed_cleanly" == failed.verdict


def test_what_no_worker_can_read_either(file):
    def fail(_worker):
        message = "no handle today"
        raise LookupError(message)

    with pytest.raises(UnusableDatasetError, match=r"worker_init_fn raised.*no handle today"):
        _results(partial(OpenedByInit, file), "workers-agree", loader={"worker_init_fn": fail})


def test_a_collate_function_that_can_make_no_batch(records):
    def fails(samples):
        message = f"{len(samples)} is no number for me"
        raise AssertionError(message)

    with pytest.raises(UnusableDatasetError, match=r"[14] is no number for me"):
        _results(partial(Records, records), "workers-agree", loader={"collate_fn": fails})


def test_a_stream_and_a_collate_function_that_needs_several(records):
    loader = {"batch_size": 4, "collate_fn": mixed_up}
    with pytest.raises(UnusableDatasetError, match="cannot be split into samples"):
        _results(partial(RecordStream, records), "workers-agree", loader=loader)


def test_the_rows_of_each_worker_are_known(records):
    outcome = run_trial(partial(over_own_batches, OwnBatches, records))
    by_worker = divide(outcome).values()
    assert [sum(len(each.rows) for each in batches) for batches in by_worker] == [10, 5]
    rows = [row for each in outcome.delivered for row in each.rows]
    assert len(set(rows)) == 15


def test_a_defect_of_a_stream_that_makes_its_own_batches(records):
    make = partial(over_own_batches, LosesShuffledShards, records)
    result = failure_of(make, "read-error-once")
    assert "corrupted" == result.verdict
    assert "of 15 samples are missing" in result.sentence
