"""Random numbers and state of workers: bugs, and twins without them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from support.corpus.cases import Case
from support.datasets import COUNT, Records, RecordStream


class Noisy(Records):
    """Adds noise, of generators that torch seeds again in each worker and epoch: healthy."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        noise = np.random.normal() + random.random()  # noqa: NPY002  # of old, as many still do
        return data + torch.randn(data.shape) + noise, index


class GeneratorOnSelf(Records):
    """Keeps its own generator, which each worker has a copy of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.random = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return data + self.random.normal(size=data.shape).astype(np.float32), index


class GeneratorPerWorker(Records):
    """Makes its generator where it is used, of the seed that torch gives each worker: healthy."""

    seed: int | None = None

    def __getitem__(self, index: int) -> Any:
        if self.seed != torch.initial_seed():
            self.seed = torch.initial_seed()
            self.random = np.random.default_rng(self.seed)
        data, index = super().__getitem__(index)
        return data + self.random.normal(size=data.shape).astype(np.float32), index


class ChangesInPlace(Records):
    """Keeps each sample, and adds to it: a worker does so to a copy, which ends with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.known: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.known:
            self.known[index] = super().__getitem__(index)[0].float()
        self.known[index] += 1
        return self.known[index]


class ChangesACopy(ChangesInPlace):
    """Leaves what it keeps as it is: healthy."""

    def __getitem__(self, index: int) -> Any:
        if index not in self.known:
            self.known[index] = Records.__getitem__(self, index)[0].float()
        return self.known[index] + 1


class Resumable(IterableDataset[Any]):
    """Goes on where it was, also when it has been at the end."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        while start + self.position * step < COUNT:
            yield self.records[start + self.position * step]
            self.position += 1


CASES: tuple[Case, ...] = (
    Case(
        "I2",
        GeneratorOnSelf,
        "two-epochs",
        "corrupted: identical to those of epoch 1",
        GeneratorPerWorker,
    ),
    Case("I5", ChangesInPlace, "persistent-workers", "corrupted: is wrong", ChangesACopy),
    Case(
        "I5",
        Resumable,
        "persistent-workers",
        "corrupted: in epoch 2, 16 of 16 samples are missing",
        RecordStream,
    ),
)
