"""Workers that die after their first epoch: what comes before the death is always the same."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import WorkerKilled
from support.datasets import Records
from support.epochs import alone, epoch


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_death_in_the_second_epoch(records, prefetch, workers):
    """Fetches are counted over the life of a persistent worker."""
    loader = _persistent(Records(records), workers, prefetch)
    with inject(WorkerKilled(at=16 // workers + 3)):
        first, second = epoch(loader), epoch(loader)
    assert (16, None) == (len(first.batches), first.error)
    assert 2 * workers == len(second.batches)
    assert "DataLoader worker" in second.text


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_death_after_an_epoch_that_was_left_early(records, prefetch):
    """What was prefetched for the epoch that was left counts, too."""
    loader = _persistent(Records(records), 1, prefetch)
    with inject(WorkerKilled(at=12)):
        next(iter(loader))
        second = epoch(loader)
    assert 12 - 1 - (1 + prefetch) == len(second.batches)
    assert "DataLoader worker" in second.text


def _persistent(dataset, workers, prefetch):
    return alone(dataset, persistent_workers=True, num_workers=workers, prefetch_factor=prefetch)


class Stream(IterableDataset):
    """Eight samples, which take long to share, each tensor being a segment of its own."""

    def __iter__(self):
        return ([torch.full((1,), number) for _ in range(300)] for number in range(8))


@pytest.mark.parametrize(("prefetch", "epochs"), [(1, 2), (2, 1), (4, 2)])
def test_a_death_in_a_later_epoch_of_a_stream(prefetch, epochs):
    """An epoch of a stream takes one fetch more, which finds its end.

    What the loader asks for beyond that, the worker drops, and is no fetch.
    """
    loader = _persistent(Stream(), 1, prefetch)
    with inject(WorkerKilled(at=9 * epochs + 3)):
        whole = [epoch(loader) for _ in range(epochs)]
        last = epoch(loader)
    assert [(8, None)] * epochs == [(len(each.batches), each.error) for each in whole]
    assert 2 == len(last.batches)
    assert "DataLoader worker" in last.text
