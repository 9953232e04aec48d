"""Datasets that draw random numbers, for tests of ranks. Module-level, for spawned workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from support.datasets import shard


class Augmented(Dataset[Any]):
    """Samples that add a random number of one library."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + self.draw()])


class AugmentedStream(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[Any]:
        for index in shard(16):
            yield torch.tensor([index + np.random.random()])  # noqa: NPY002


def from_numpy() -> float:
    return np.random.random()  # noqa: NPY002


def from_torch() -> float:
    return torch.rand(()).item()


def seed_by_worker(worker: int) -> None:
    np.random.seed(worker)  # noqa: NPY002


def seed_by_clock(worker: int) -> None:
    np.random.seed(int(time.time()))  # noqa: NPY002
