"""What streams and workers do by themselves: the harness lives with it, and tells of it."""

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
from support.corpus.streams import WrongLength
from support.datasets import COUNT, Records

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
