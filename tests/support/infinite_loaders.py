"""Loaders that keep one iterator for all epochs, written as ultralytics, YOLOv5 and timm do it."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from support.datasets import Records


class Repeat:
    """Draws what *sampler* draws, again and again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Lazy(DataLoader[Any]):
    """Makes its iterator in the first epoch: healthy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator: Any = None

    def __len__(self) -> int:
        repeat: Any = self.batch_sampler
        return len(repeat.sampler)

    def __iter__(self) -> Any:
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)


class Eager(Lazy):
    """Makes its iterator in its constructor, which starts the workers: healthy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.iterator = super(Lazy, self).__iter__()

    def __del__(self) -> None:
        if hasattr(self.iterator, "_workers"):
            self.iterator._shutdown_workers()

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class LeavesOut(Eager):
    """Leaves out a batch for which its iterator raises an error: broken."""

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            try:
                yield next(self.iterator)
            except OSError:
                continue


def infinite(kind: type[DataLoader[Any]], dataset: Any, **options: Any) -> DataLoader[Any]:
    """A loader of that *kind*, which draws in a different order each time."""
    return kind(dataset, batch_size=4, num_workers=2, shuffle=True, **options)


def infinite_records(folder: Any) -> DataLoader[Any]:
    return infinite(Eager, Records(folder))
