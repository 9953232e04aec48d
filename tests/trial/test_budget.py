"""A budget of samples: how many a loader draws, which ones, and in which batches."""

from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pytest_dataloader_faults._trial.samplers import choose_size, limit_samples, spread_indices
from pytest_dataloader_faults._trial.samples.draws import draws_of
from support.rows import rows

MANY = range(1000)


def sampled(loader):
    """The batches of indices that *loader* draws."""
    return [list(each.indices) for each in draws_of(loader)]


def drawn(loader, limit=16):
    """The same, under a budget."""
    limit_samples(loader, loader, limit)
    return sampled(loader)


@given(st.integers(1, 500), st.integers(1, 600))
def test_spread_indices(count, limit):
    indices = spread_indices(count, limit)
    assert len(indices) == len(set(indices)) == min(count, limit)
    assert set(indices) <= set(range(count))


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 100))
def test_fewer_are_among_more(count, limit, other_limit):
    fewer, larger = sorted([limit, other_limit])
    assert spread_indices(count, fewer) == spread_indices(count, larger)[:fewer]


@given(st.integers(64, 10**12))
def test_the_gaps_are_of_one_size(count):
    bounds = [*sorted(spread_indices(count, 64)), count]
    gaps = [high - low for low, high in pairwise(bounds)]
    assert max(gaps) - min(gaps) <= 1


def test_batches_are_spread_over_the_dataset():
    batches = drawn(DataLoader(MANY, batch_size=4, num_workers=2))
    assert [4] * 4 == list(map(len, batches))
    assert [0, 62, 125, 187] == batches[0]
    assert list(chain(*batches)) == sorted(chain(*batches))


def test_a_shuffled_loader_shuffles_them():
    loader = DataLoader(MANY, batch_size=4, shuffle=True)
    drawn_once = drawn(loader)
    second = sampled(loader)
    assert drawn_once != second
    assert sorted(chain(*drawn_once)) == sorted(chain(*second)) == sorted(spread_indices(1000, 16))


@pytest.mark.parametrize(("size", "sizes"), [(32, [32] * 2), (100, [64] * 2)])
def test_each_worker_makes_a_batch_of_the_loaders_size(size, sizes):
    """Large ones get smaller."""
    assert sizes == list(map(len, drawn(DataLoader(MANY, batch_size=size, num_workers=2))))


@rows(
    ("affordable", "possible", "chosen"),
    [(256, 256, (256, 64)), (255, 255, (128, 64)), (64, 127, (64, 16)), (9, 9, (64, 16))],
)
def test_batches_get_smaller_only_if_there_is_no_time(affordable, possible, chosen):
    loader = DataLoader(MANY, batch_size=100, num_workers=2)
    assert choose_size(loader, 64, affordable, possible) == chosen


def test_a_small_dataset_is_looked_at_whole():
    loader = DataLoader(range(10), batch_size=8, num_workers=2)
    assert [8, 2] == list(map(len, drawn(loader)))
    assert type(loader.batch_sampler) is BatchSampler


OWN = {
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 1000, 1000), "batch_size": 4},
    "subset": lambda: {"sampler": SubsetRandomSampler(MANY), "batch_size": 4},
    "replacement": lambda: {"sampler": RandomSampler(MANY, replacement=True), "batch_size": 4},
    "list": lambda: {"sampler": list(reversed(MANY)), "batch_size": 4},
    "batches": lambda: {"batch_sampler": [[at, at + 1, at + 2, at + 3] for at in MANY[:-3:4]]},
    "torchs": lambda: {"batch_sampler": BatchSampler(SequentialSampler(MANY), 4, drop_last=True)},
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_a_sampler_of_the_user(options):
    torch.manual_seed(0)
    all_batches = sampled(DataLoader(MANY, **options()))
    torch.manual_seed(0)
    batches = drawn(DataLoader(MANY, num_workers=1, **options()))
    if options is OWN["torchs"]:
        assert [0, 62, 125, 187, 250, 312, 375, 437] == list(chain(*batches[:2]))
    else:
        assert len(batches[0]) * len(batches) in (16, 64)
        assert all_batches[: len(batches)] == batches
