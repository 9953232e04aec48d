"""What the battery takes for the samples of a rank, where its dataset does not say it alone."""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset
from support.corpus.ranks import RankedStream, place
from support.datasets import RecordStream


class KeepsEverySecondBatch(DataLoader[Any]):
    """Divides a stream that knows no rank, as loaders of trainers may."""

    def __iter__(self) -> Any:
        rank, ranks = place()
        return itertools.islice(super().__iter__(), rank, None, ranks)


class RefusesRanks(RankedStream):
    """Asks for a way to divide it, as webdataset does."""

    def __iter__(self) -> Any:
        if torch.distributed.get_world_size() > 1:
            message = "how is it to be divided?"
            raise ValueError(message)
        return super().__iter__()


def _agree(make):
    (result,) = check_dataset(make, only="ranks-agree", ranks=2, on_fail=None)
    return result


def test_a_loader_may_divide_what_its_dataset_does_not(records):
    make = lambda: KeepsEverySecondBatch(RecordStream(records), 2, num_workers=2)  # noqa: E731

    assert _agree(make).verdict == "survived"


def test_a_stream_that_refuses_several_ranks_fails_their_check(records):
    result = _agree(lambda: RefusesRanks(records))

    assert result.verdict == "fails_without_fault"
    assert "how is it to be divided?" in result.sentence
