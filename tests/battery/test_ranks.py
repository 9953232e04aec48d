"""What the battery takes for the samples of a rank, where its dataset does not say it alone."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults.battery.checks.ranks.generators import (
    SAME_NUMBERS,
    UsedGenerator,
    find_same_numbers,
)
from pytest_dataloader_faults.outcomes import Pass
from support.augmented import (
    Augmented,
    AugmentedStream,
    from_numpy,
    from_torch,
    seed_by_clock,
    seed_by_worker,
)
from support.corpus.ranks import SharedShuffle, place
from support.datasets import RecordStream
from support.facts import EPOCH_1, map_reference, ordinary, revised
from support.results import failure_of, result_of
from support.rows import slow


class KeepsEverySecondBatch(DataLoader[Any]):
    """Divides a stream that knows no rank, as loaders of trainers may."""

    def __iter__(self) -> Any:
        rank, ranks = place()
        return itertools.islice(super().__iter__(), rank, None, ranks)


def _loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    """Each rank has a part of the samples."""
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=2, num_workers=2, **options)
    return DataLoader(
        dataset, batch_size=2, num_workers=2, sampler=SharedShuffle(len(dataset)), **options
    )


_agree = functools.partial(result_of, check="ranks-agree", ranks=2, deadline=120)
_disagree = functools.partial(failure_of, check="ranks-agree", ranks=2, deadline=120)


def test_a_loader_may_divide_what_its_dataset_does_not(records):
    make = lambda: KeepsEverySecondBatch(RecordStream(records), 2, num_workers=2)  # noqa: E731

    assert _agree(make).verdict == "survived"


@pytest.mark.parametrize(
    ("library", "draw", "options"),
    [
        ("NumPy", from_numpy, {"worker_init_fn": seed_by_worker}),
        slow("torch", from_torch, {"generator": True}),
    ],
)
def test_ranks_must_not_augment_alike(library, draw, options):
    def make() -> DataLoader[Any]:
        seeded = {"generator": torch.Generator().manual_seed(0)} if "generator" in options else {}
        return _loader(Augmented(draw), **{**options, **seeded})

    result = _disagree(make)

    assert result.verdict == "corrupted", result.explanation
    assert result.sentence == (
        f"worker 0 of rank 0 and worker 0 of rank 1 drew the same random numbers from {library}."
    )
    assert result.cause == SAME_NUMBERS.phrase


def test_ranks_that_draw_from_other_states_pass():
    options = {"worker_init_fn": seed_by_clock, "persistent_workers": True}
    result = _agree(lambda: _loader(Augmented(random.random), **options))

    assert result.passed, result.explanation


@pytest.mark.slow
def test_workers_of_a_random_stream_are_compared_as_well():
    make = lambda: _loader(AugmentedStream(), worker_init_fn=lambda _: np.random.seed(1))  # noqa: E731, NPY002

    assert _disagree(make).verdict == "corrupted"


def test_two_workers_of_one_rank_are_compared():
    notes = (UsedGenerator(0, "torch", "1"), UsedGenerator(1, "torch", "1"))
    ranks = (revised(ordinary(Pass(EPOCH_1)), notes=notes), ordinary(Pass(EPOCH_1)))

    finding = find_same_numbers(revised(ordinary(Pass(EPOCH_1)), ranks=ranks), map_reference(16))

    assert finding is not None
    assert finding.sentence == "workers 0 and 1 of rank 0 drew the same random numbers from torch"
