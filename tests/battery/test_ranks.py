"""Ranks: what the battery takes for the samples of each, and what they prepare together."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults.battery.checks.ranks import (
    SAME_NUMBERS,
    UsedGenerator,
    find_same_numbers,
)
from pytest_dataloader_faults.outcomes import Pass
from support.corpus.ranks import SharedShuffle, place
from support.datasets import Records, RecordStream
from support.facts import EPOCH_1, ordinary, revised
from support.results import failure_of, result_of


class Augmented(Dataset[Any]):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + self.draw()])


def from_numpy() -> float:
    return np.random.random()  # noqa: NPY002


def seed_by_worker(worker: int) -> None:
    np.random.seed(worker)  # noqa: NPY002


class KeepsEverySecondBatch(DataLoader[Any]):
    """Divides a stream that knows no rank, as loaders of trainers may."""

    def __iter__(self) -> Any:
        rank, ranks = place()
        return itertools.islice(super().__iter__(), rank, None, ranks)


def _loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=2, num_workers=2, sampler=SharedShuffle(len(dataset)), **options
    )


_agree = functools.partial(result_of, check="ranks-agree", ranks=2, deadline=120)
_disagree = functools.partial(failure_of, check="ranks-agree", ranks=2, deadline=120)


def test_a_loader_may_divide_what_its_dataset_does_not(records):
    make = lambda: KeepsEverySecondBatch(RecordStream(records), 2, num_workers=2)  # noqa: E731

    assert _agree(make).verdict == "survived"


def test_ranks_must_not_augment_alike():
    result = _disagree(lambda: _loader(Augmented(from_numpy), worker_init_fn=seed_by_worker))

    assert result.verdict == "corrupted", result.explanation
    assert result.sentence == (
        "worker 0 of rank 0 and worker 0 of rank 1 drew the same random numbers from NumPy."
    )
    assert result.cause == SAME_NUMBERS.phrase


def test_two_workers_of_one_rank_are_compared():
    notes = (UsedGenerator(0, "torch", "1"), UsedGenerator(1, "torch", "1"))
    ranks = (revised(ordinary(Pass(EPOCH_1)), notes=notes), ordinary(Pass(EPOCH_1)))

    finding = find_same_numbers(revised(ordinary(Pass(EPOCH_1)), ranks=ranks))

    assert finding is not None
    assert finding.sentence == "workers 0 and 1 of rank 0 drew the same random numbers from torch"


def test_ranks_share_a_folder_that_only_rank_0_fills(records):
    def make(folder):
        if place()[0] == 0:
            (folder / "done").touch()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        assert (folder / "done").exists(), "rank 0 did not prepare the folder"
        return Records(records)

    assert _agree(make).verdict == "survived"


def test_an_error_of_the_constructor_in_one_rank_is_a_failure(records):
    def make():
        if place()[0] == 1:
            raise FileNotFoundError("rank 0 did not write index.bin")
        return Records(records)

    result = failure_of(make, "ranks-agree", ranks=2)

    assert result.verdict == "fails_without_fault"
    assert result.cause == "prepares the same files on several ranks at once"
    assert "rank 1: the loader raised FileNotFoundError" in result.sentence
