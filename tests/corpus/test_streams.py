"""Streams: their ends, what they may leave out, and what they and workers do by themselves."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from pytest_dataloader_faults import Contract, check_dataset, run_trial
from pytest_dataloader_faults.faults import OpenError
from support.corpus.endless import (
    FirstOfEach,
    LastAgain,
    RandomPerWorker,
    SkipsShards,
)
from support.corpus.streams import WrongLength
from support.datasets import COUNT, Records

SKIPS = Contract(may_skip=True)


@pytest.fixture(name="check_once")
def _check_once(ask_once):
    """The result of a check, of which the dataset has had other checks before."""

    def check_once(dataset, check, contract=None, *, fails=False):
        return ask_once(dataset, check, fails=fails, contract=contract)

    return check_once


ENDLESS = "samples were compared by shapes, the first 64 of each worker"
RANDOM = "samples were compared by shapes, 16 different samples per worker"


@pytest.mark.parametrize(
    ("dataset", "check", "note", "most"),
    [
        (RandomPerWorker, "workers-agree", ENDLESS, 16),
        (RandomPerWorker, "worker-killed", ENDLESS, 16),
        (FirstOfEach, "workers-agree", RANDOM, 4),
        (FirstOfEach, "two-epochs", RANDOM, 4),
    ],
)
def test_stream_of_random_samples_or_without_an_end(dataset, check, note, most, check_once):
    result = check_once(dataset, check)

    assert result.passed, result.explanation
    assert note in result.explanation
    passes = result.outcome.epochs
    assert {len(each.delivered) for each in passes if each.complete} <= {most, 2 * most}


def test_worker_that_repeats_its_last_sample(check_once):
    agrees = check_once(LastAgain, "workers-agree", fails=True)
    error = check_once(LastAgain, "read-error-once")

    assert agrees.verdict == "corrupted"
    assert "16 samples were delivered more often than in the reference" in agrees.explanation
    assert agrees.cause == "repeats samples of a worker's own part"
    assert "get_worker_info" not in agrees.explanation
    assert "random" not in agrees.explanation
    assert error.applies, error.explanation


def test_random_samples_have_an_end(check_once):
    result = check_once(FirstOfEach, "short-read")

    assert not result.applies
    assert "its samples are random, and each worker draws its own 16" in result.explanation
    assert "no end" not in result.explanation


def test_shard_that_cannot_be_read_loses_all_its_samples(check_once):
    result = check_once(SkipsShards, "missing-file", SKIPS)

    assert (result.verdict, result.passed) == ("survived", True), result.explanation
    assert "samples hit by a fault are missing" in result.explanation


NEVER = OpenError("*.rec", nth=10**6)
"""Has the opens of these files counted."""


def test_wrong_length_loses_nothing(records):
    (result,) = check_dataset(lambda: WrongLength(records), only="workers-agree")

    assert result.verdict == "survived"
    assert sum(len(each.samples) for each in result.outcome.delivered) == COUNT


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
    outcome = run_trial(lambda: Draws(records, draw), epochs=2)

    drawn = Counter(row for each in outcome.delivered for row in each.digests)
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
    loader = {"num_workers": 2, "batch_size": 4, "persistent_workers": persistent}
    outcome = run_trial(lambda: Cached(records), NEVER, loader=loader, epochs=2)

    counts = [each for worker in outcome.workers for each in worker.files.values()]
    assert opens == sum(each.opens for each in counts)
    assert len(outcome.delivered) == 2 * COUNT / 4
