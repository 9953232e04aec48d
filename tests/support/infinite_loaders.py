"""Loaders that keep one iterator for all epochs, written as ultralytics, YOLOv5 and timm do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from support.datasets import Records
from support.nested_loaders import Swallowing


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
        """As ultralytics has it, for another dataset."""
        self.iterator = self._get_iterator()


class LeavesOut(Eager):
    """Leaves out a batch for which its iterator raises an error: broken."""

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            try:
                yield next(self.iterator)
            except OSError:
                continue


class EndsEarly(Lazy):
    """Leaves out the last batch of each epoch, and the next epoch begins after it: broken."""

    def __iter__(self) -> Any:
        for number, batch in enumerate(super().__iter__(), start=1):
            if number < len(self):
                yield batch


class CountsHalf(DataLoader[Any]):
    """Has a sampler with an end, and takes half of its batches: broken."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        batches: Any = self.batch_sampler
        object.__setattr__(self, "batch_sampler", list(batches))

    def __len__(self) -> int:
        batches: Any = self.batch_sampler
        return len(batches) // 2

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        for _ in range(len(self)):
            yield next(iterator)


def infinite(kind: type[DataLoader[Any]], dataset: Any, **options: Any) -> DataLoader[Any]:
    """A loader of that *kind*, which draws in another order each time."""
    return kind(dataset, batch_size=4, num_workers=2, shuffle=True, **options)


def over_records(folder: Any) -> DataLoader[Any]:
    """A healthy one."""
    return infinite(Eager, Records(folder))


def over_swallowed(folder: Any) -> DataLoader[Any]:
    """A healthy one over a dataset that gives zeros for what it cannot read."""
    return infinite(Eager, Swallowing(folder))


def over_many() -> DataLoader[Any]:
    """One whose epoch has far more samples than the battery looks at."""
    return infinite(Eager, torch.arange(100_000))
