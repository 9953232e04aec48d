"""Valid datasets with unusual attributes and methods."""

from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from support.datasets import shard

COUNT = 8


def sample(index: Any) -> torch.Tensor:
    return torch.arange(16) + int(index)


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return sample(index)


class NoDataset:
    """The same without torch's base class."""

    __len__, __getitem__ = Plain.__len__, Plain.__getitem__


class LyingList(list[Any]):
    """A list that makes its items on request."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return sample(index)

    def __iter__(self) -> Any:
        raise RuntimeError("not to be iterated over")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(sample, shard(COUNT))


class InWorkersOnly(Stream):
    """Refuses to be read elsewhere."""

    def __iter__(self) -> Any:
        if torch.utils.data.get_worker_info() is None:
            raise RuntimeError("in workers only")
        return super().__iter__()
