"""Workers that die, leave or stop as they begin a certain sample."""

from __future__ import annotations

import signal

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import WorkerExited, WorkerHung, WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from support.epochs import alone, epoch

SAMPLES = 12
SAMPLE = 5
KINDS = [
    pytest.param(WorkerKilled(sample=SAMPLE), f"signal {signal.SIGKILL}", id="killed"),
    pytest.param(WorkerExited(3, sample=SAMPLE), "exit 3", id="exited"),
    pytest.param(WorkerHung(sample=SAMPLE), "hang", id="hung"),
    pytest.param(WorkerHung(hold_gil=True, sample=SAMPLE), "hang", id="hung with the lock"),
    pytest.param(WorkerKilled(signal.SIGSTOP, sample=SAMPLE), "signal 19", id="stopped"),
]
HANGS = "hang", "signal 19"


class Numbers(Dataset):
    """Sample *i* is *i*."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Batches(Numbers):
    """The same, asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Stream(IterableDataset):
    """The samples of each worker: its id, and their number."""

    def __iter__(self):
        worker = get_worker_info().id
        return ((worker, number) for number in range(SAMPLES))


@pytest.mark.parametrize(("fault", "call"), KINDS)
@pytest.mark.parametrize(
    ("dataset", "size"), [(Numbers(), None), (Numbers(), 1), (Numbers(), 4), (Batches(), 4)]
)
def test_whichever_worker_begins_it(dataset, size, fault, call):
    """All batches before that sample's come, and its worker is struck in the fetch of it."""
    place, kind = SAMPLE // (size or 1), FiringKind.HANG if call == "hang" else FiringKind.DEATH
    with inject(fault) as injection:
        hang = (injection, place) if call in HANGS else None
        read = epoch(alone(dataset, batch_size=size, num_workers=2), hang)
    expected = [*range(SAMPLES)] if size is None else _batches(size)
    assert expected[:place] == read.batches
    assert [(place % 2, place // 2 + 1, call, kind)] == [
        (each.worker, each.fetch, each.call, each.kind) for each in injection.faults[0].firings
    ]
    assert injection.surfaced == 1


def _batches(size):
    return [[*range(first, first + size)] for first in range(0, SAMPLES, size)]


@pytest.mark.parametrize(("fault", "call"), KINDS)
@pytest.mark.parametrize("size", [None, 4])
def test_each_stream_counts_for_itself(fault, call, size):
    """A worker's own sample of that place; the loader meets the first one's fate."""
    place = SAMPLE // (size or 1)
    with inject(fault) as injection:
        hang = (injection, 2 * place) if call in HANGS else None
        read = epoch(alone(Stream(), batch_size=size, num_workers=2), hang)
    assert [0, 1] * place == [(each if size is None else each[0])[0] for each in read.batches]
    first = min(injection.faults[0].firings, key=lambda each: each.worker)
    assert (0, place + 1, call) == (first.worker, first.fetch, first.call)


def test_a_sample_that_nobody_asks_for():
    """The whole epoch comes."""
    with inject(WorkerKilled(sample=SAMPLES), require_fired=False) as injection:
        read = epoch(alone(Numbers(), num_workers=2))
    assert ([*range(SAMPLES)], 0) == (read.batches, injection.fired)


def test_a_sample_of_a_sampler_of_its_own():
    """It is an index, not a place in the order."""
    with inject(WorkerKilled(sample=SAMPLE)):
        read = epoch(alone(Numbers(), sampler=[*reversed(range(SAMPLES))]))
    assert [*range(SAMPLES - 1, SAMPLE, -1)] == read.batches
