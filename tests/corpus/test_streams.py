"""Streams without an end, and what a stream of shards may leave out."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.search import explore
from support.corpus.endless import (
    EndsAtAnError,
    FirstForAll,
    FirstOfEach,
    FirstThenEnds,
    FirstUnseeded,
    NoisyForAll,
    RacingForAll,
    RandomForAll,
    RandomPerWorker,
    Repeated,
    RepeatedForAll,
    ShuffledForAll,
    SkipsShards,
)

SKIPS = Contract(may_skip=True)


@pytest.fixture(name="asked")
def _asked(ask_once):
    """The result of a check, of which the dataset has had other checks before."""
    return lambda dataset, check, contract=None: ask_once(dataset, check, contract=contract)


@pytest.mark.parametrize("check", ["workers-agree", "two-epochs", "pickles", "worker-killed-last"])
@pytest.mark.parametrize("dataset", [RandomPerWorker, Repeated])
def test_stream_without_an_end(dataset, check, asked):
    """It gets one in each worker, the same in all trials, and each result says so."""
    result = asked(dataset, check)

    assert result.passed, result.explanation
    assert "the stream does not end: the first 64 of each worker were taken" in result.explanation
    counts = {len(one.delivered) for one in result.outcome.passes if one.complete}
    assert counts <= {16, 32}


@pytest.mark.parametrize("dataset", [RandomForAll, RepeatedForAll])
def test_workers_that_read_the_same_shards_for_ever(dataset, asked):
    """They give the same samples in the same order."""
    result = asked(dataset, "workers-agree")

    assert (result.verdict, result.passed) == ("corrupted", False)
    assert "each worker gave the same samples in the same order" in result.explanation


def test_end_of_a_stream_that_has_none(asked):
    """An error that is taken for an end is found."""
    found = [asked(dataset, "read-error-transient") for dataset in (RandomPerWorker, EndsAtAnError)]

    assert [each.verdict for each in found] == ["failed_cleanly", "corrupted"]
    assert "the stream of worker 0 ended after" in found[1].explanation


@pytest.mark.parametrize("check", ["workers-agree", "two-epochs", "worker-killed-last"])
@pytest.mark.parametrize("dataset", [FirstOfEach, FirstUnseeded])
def test_random_samples_of_each_worker(dataset, check, asked):
    """As many come as workers draw, and the result says so."""
    result = asked(dataset, check)

    assert result.passed, result.explanation
    said = "samples are random, 16 of its own in each worker: compared by types and shapes"
    assert said in result.explanation
    counts = {len(one.delivered) for one in result.outcome.passes if one.complete}
    assert counts <= {4, 8}


@pytest.mark.parametrize("dataset", [FirstForAll, ShuffledForAll, RacingForAll, NoisyForAll])
def test_workers_that_all_give_the_whole_stream(dataset, asked):
    """In the same order or another, or with damage: nothing says that these samples are random."""
    result = asked(dataset, "workers-agree")

    assert (result.verdict, result.passed) == ("corrupted", False)


def test_error_that_ends_the_samples_of_a_worker(asked):
    """It is found where samples are random, too."""
    found = [asked(dataset, "read-error-transient") for dataset in (FirstOfEach, FirstThenEnds)]

    assert [each.verdict for each in found] == ["failed_cleanly", "corrupted"]
    assert "the stream of worker 0 ended after" in found[1].explanation


@pytest.mark.parametrize("dataset", [RandomPerWorker, FirstOfEach])
def test_search_of_a_stream_without_an_end(dataset, records):
    """Also where the loader has no workers, and where each worker's stream has an end."""
    found = explore(lambda: dataset(records), max_examples=4, database=None, derandomize=True)

    assert found.failure is None


@pytest.mark.parametrize(
    "check", ["file-missing", "open-error", "read-error-transient", "truncated-half"]
)
def test_shard_that_cannot_be_read_loses_all_its_samples(check, asked):
    """Whichever fault it was."""
    result = asked(SkipsShards, check, SKIPS)

    assert (result.verdict, result.passed) == ("survived", True), result.explanation
    assert "samples that faults hit are missing" in result.explanation
