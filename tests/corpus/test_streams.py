"""Streams: their ends, what they may leave out, and what they and workers do by themselves."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from pytest_dataloader_faults import Contract, check_dataset, run_trial
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.search import explore
from support.corpus.endless import (
    EndsAtAnError,
    FirstForAll,
    FirstOfEach,
    FirstThenEnds,
    FirstUnseeded,
    LastAgain,
    NoisyForAll,
    RacingForAll,
    RandomForAll,
    RandomPerWorker,
    Repeated,
    RepeatedForAll,
    ShuffledForAll,
    SkipsShards,
)
from support.corpus.streams import WrongLength
from support.datasets import COUNT, Records

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


def test_worker_that_repeats_its_last_sample(asked):
    """It has no samples of its own: they are those of the reference, and other checks apply."""
    agrees = asked(LastAgain, "workers-agree")
    error = asked(LastAgain, "read-error-next-epoch")

    assert agrees.verdict == "corrupted"
    assert "16 samples were delivered more often than in the reference" in agrees.explanation
    assert "random" not in agrees.explanation
    assert error.applies, error.explanation


def test_random_samples_have_an_end(asked):
    """What is not shown of them is not for want of one."""
    result = asked(FirstOfEach, "short-read")

    assert not result.applies
    assert "its samples are random, 16 of its own in each worker" in result.explanation
    assert "no end" not in result.explanation


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


NEVER = OpenError("*.rec", nth=10**6)
"""Has the opens of these files counted."""


def test_wrong_length_loses_nothing(records):
    """A stream that says it is half as long as it is comes whole."""
    (result,) = check_dataset(lambda: WrongLength(records), only="workers-agree")

    assert result.verdict == "survived"
    assert sum(len(each.rows) for each in result.outcome.delivered) == COUNT


class Draws(Records):
    """A number of a global generator, as a sample."""

    def __init__(self, folder: Any, draw: Any) -> None:
        super().__init__(folder)
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return float(self.draw())


@pytest.mark.parametrize(
    "draw", [np.random.normal, random.random, lambda: torch.rand(())], ids=["numpy", "py", "torch"]
)
def test_global_generators_repeat_nothing(draw, records):
    """No worker draws the numbers of another, and no epoch those of the one before."""
    outcome = run_trial(lambda: Draws(records, draw), epochs=2)

    drawn = Counter(row for each in outcome.delivered for row in each.rows)
    assert len(drawn) == 2 * COUNT


class Cached(Records):
    """Opens each file once per process."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


@pytest.mark.parametrize(("persistent", "opens"), [(False, 2 * COUNT), (True, COUNT)])
def test_cache_of_a_worker_ends_with_it(persistent, opens, records):
    """Fresh workers open every file once more; those that live on do not."""
    loader = {"num_workers": 2, "batch_size": 4, "persistent_workers": persistent}
    outcome = run_trial(lambda: Cached(records), NEVER, loader=loader, epochs=2)

    counts = [each for worker in outcome.workers for each in worker.files.values()]
    assert opens == sum(each.opens for each in counts)
    assert len(outcome.delivered) == 2 * COUNT / 4


def test_promise_of_samples_that_are_the_same(records):
    """Random samples break it before any fault, and the message names the difference."""
    told = r"deterministic=True, but sample 0 was different .*: .* differs from the first reading"
    with pytest.raises(UnusableDatasetError, match=told):
        check_dataset(
            lambda: Draws(records, random.random),
            only="workers-agree",
            contract=Contract(deterministic=True),
        )
