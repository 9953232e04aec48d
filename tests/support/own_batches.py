"""Streams and collate functions whose batches are more than stacked samples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from support.datasets import SIZE, Records, shard


class WithMetadata(IterableDataset[Any]):
    """Each sample has parts that are empty: healthy."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)

    def __iter__(self) -> Any:
        return ({"data": data, "metadata": {}, "boxes": []} for data in self._read())

    def _read(self) -> Iterator[Any]:
        for index in shard(len(self.records)):
            yield self.records[index][0]


def mixed_up(samples: list[Any]) -> Any:
    """Mixes each sample with another one of the batch, as timm's FastCollateMixup does."""
    if len(samples) % 2:
        message = "Batch size should be even when using this"
        raise AssertionError(message)
    data = torch.stack([data for data, _ in samples]).float()
    share = torch.rand(())
    return data * share + data.flip(0) * (1 - share)


def pairs(samples: list[Any]) -> Any:
    left_samples, right_samples = ([data for data, _ in samples[place::2]] for place in (0, 1))
    return {"first": torch.stack(left_samples), "second": torch.stack(right_samples)}


class OpenedByInit(Dataset[Any]):
    """Reads from a handle that ``open_handles`` opens in each worker: healthy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: Any = None

    def __len__(self) -> int:
        return self.path.stat().st_size // SIZE

    def __getitem__(self, index: int) -> Any:
        self.handle.seek(index * SIZE)
        data = self.handle.read(SIZE)
        if len(data) < SIZE:
            message = f"{self.path} is truncated: sample {index} has {len(data)} bytes"
            raise ValueError(message)
        return torch.tensor(list(data), dtype=torch.uint8)


def open_handles(_worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.handle = info.dataset.path.open("rb", buffering=0)


class InWorkersOnly(WithMetadata):
    """Refuses to be read outside of a worker, as energon's streams do: healthy."""

    def _read(self) -> Iterator[Any]:
        assert get_worker_info() is not None, "Cannot iterate out of worker context"
        yield from super()._read()


class ForSoManyWorkers(WithMetadata):
    """Refuses any other number of workers, as energon's streams do: healthy."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder)
        self.workers = workers

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None, "Cannot iterate out of worker context"
        assert info.num_workers == self.workers, "Actual number of workers does not match"
        return super().__iter__()


class OwnBatches(IterableDataset[Any]):
    """Fills batches from the shards of its worker, as webdataset's ``batched`` does: healthy."""

    shards, shard, size = 3, 5, 4

    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)

    def __iter__(self) -> Any:
        samples = [each for number in shard(self.shards) for each in self._of(number)]
        self._arrange(samples)
        for at in range(0, len(samples), self.size):
            data, labels = zip(*samples[at : at + self.size], strict=True)
            yield self._batch(torch.stack(data), list(labels))

    def _arrange(self, samples: list[Any]) -> None:
        """Leave them in their order."""

    def _of(self, shard: int) -> list[Any]:
        places = range(shard * self.shard, (shard + 1) * self.shard)
        return [self.records[place] for place in places]

    def _batch(self, data: Any, labels: list[int]) -> Any:
        return {"data": data, "labels": labels}


class ShuffledBatches(OwnBatches):
    def _arrange(self, samples: list[Any]) -> None:
        random.Random().shuffle(samples)  # It need not be safe.


class LosesShards(OwnBatches):
    """Leaves out a shard that it cannot read, as open_clip's ``log_and_continue`` does: broken."""

    def _of(self, shard: int) -> list[Any]:
        try:
            return super()._of(shard)
        except OSError:
            return []


class LosesShuffledShards(LosesShards, ShuffledBatches):
    """Leaves out a shard that it cannot read: broken."""


class Framed(OwnBatches):
    """Has the labels in a column of pandas: healthy."""

    def _batch(self, data: Any, labels: list[int]) -> Any:
        from pandas import DataFrame

        return data, DataFrame({"label": labels, "kind": "record"})


def over_own_batches(kind: type[OwnBatches], folder: Path, workers: int = 2) -> DataLoader[Any]:
    return DataLoader(kind(folder), batch_size=None, num_workers=workers)
