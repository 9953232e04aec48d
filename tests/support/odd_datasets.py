"""Valid datasets with unusual attributes and methods."""

from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from support.datasets import shard

COUNT = 8
_ASKED_BY_TORCH = {"__class__", "__getitems__"}


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


class NamedLikeLoaders(NoDataset):
    """Has data where data modules have methods."""

    train_dataloader = "train.txt"
    setup = prepare_data = None

    def __init__(self) -> None:
        self.val_dataloader = ["val.txt"]
        self.dataset = self.datasets = self
        self.iterables = self.pipeline = self._then = 3
        self._fields = self._iterator = "name"


class Strict(NoDataset):
    """Raises where anything is read that torch does not read."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _ASKED_BY_TORCH:
            message = f"nobody reads {name}"
            raise RuntimeError(message)
        return object.__getattribute__(self, name)


class LyingList(list[Any]):
    """A list that makes its items on request."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return sample(index)

    def __iter__(self) -> Any:
        raise RuntimeError("not to be iterated over")


class LyingDict(dict[Any, Any]):
    __len__, __getitem__, __iter__ = LyingList.__len__, LyingList.__getitem__, LyingList.__iter__
    items = keys = values = LyingList.__iter__


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(sample, shard(COUNT))


class StrictStream(Stream):
    def __getattribute__(self, name: str) -> Any:
        if name not in _ASKED_BY_TORCH - {"__getitems__"}:
            message = f"nobody reads {name}"
            raise RuntimeError(message)
        return object.__getattribute__(self, name)


class InWorkersOnly(Stream):
    """Refuses to be read elsewhere."""

    def __iter__(self) -> Any:
        if torch.utils.data.get_worker_info() is None:
            raise RuntimeError("in workers only")
        return super().__iter__()
