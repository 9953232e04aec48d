"""Datasets whose ``__getitems__`` makes several samples at once, which torch's fetcher prefers."""

from __future__ import annotations

from typing import Any

import torch

from support.datasets import Records


def identity(batch: Any) -> Any:
    return batch


class ReadyBatches(Records):
    """Gives a stacked batch of several, as a ``TensorDict`` of many rows does."""

    def __getitem__(self, index: Any) -> Any:
        return {"data": super().__getitem__(index)[0], "index": torch.tensor(index)}

    def __getitems__(self, indices: list[int]) -> Any:
        samples = [self._load(index) for index in indices]
        return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}

    def _load(self, index: int) -> Any:
        return self[index]


class ZerosInReadyBatches(ReadyBatches):
    """Has zeros instead of what it cannot read."""

    def _load(self, index: int) -> Any:
        try:
            return self[index]
        except OSError:
            return {"data": torch.zeros(64), "index": torch.tensor(index)}


class OnlyTogether(ReadyBatches):
    """Has batches without samples, because a loader never requests one."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def _load(self, index: int) -> Any:
        return ReadyBatches.__getitem__(self, index)


class FewerInReadyBatches(ReadyBatches):
    """Leaves the last sample out of each batch of several."""

    def __getitems__(self, indices: list[int]) -> Any:
        return super().__getitems__(indices[:-1] or indices)


class Together(Records):
    """Gives a list of samples, as torch's documentation says."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class BatchesOfLists(Together):
    """Gives a ready batch that is a list: the data and the indices."""

    def __getitems__(self, indices: list[int]) -> Any:
        data, numbers = zip(*super().__getitems__(indices), strict=True)
        return [torch.stack(data), torch.tensor(numbers)]
