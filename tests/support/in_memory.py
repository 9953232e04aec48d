"""Datasets that have all of their data in memory, in many objects or in few."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset


def total_size(value: Any) -> int:
    """The number of characters in *value*, whose every object is read."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value % 7
    if isinstance(value, np.ndarray | torch.Tensor):
        return int(value.sum())
    values = value.values() if isinstance(value, dict) else value
    return sum(map(total_size, values))


class InMemory(Dataset[int]):
    """Reads every object of a record."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> int:
        return total_size(self.records[index])


def texts(count: int, size: int = 1400) -> InMemory:
    """One string per sample."""
    return InMemory([f"{number:0{size}}" for number in range(count)])


def shuffled_texts(count: int) -> InMemory:
    """Short strings, in another order than they have in memory."""
    records = [f"{number:060}" for number in range(count)]
    random.Random(0).shuffle(records)
    return InMemory(records)


class Caches(InMemory):
    """Each worker keeps what it has decoded: all of it, or as much as *limit* says."""

    def __init__(self, count: int, limit: int | None = None) -> None:
        super().__init__(range(count))
        self.decode = functools.lru_cache(limit)(lambda index: bytes(2000) + b"%d" % index)

    def __getitem__(self, index: int) -> int:
        return len(self.decode(index))


def array(count: int) -> InMemory:
    """The rows of a NumPy array."""
    return InMemory(np.arange(count * 175).reshape(count, 175))


def tensor(count: int) -> InMemory:
    """The rows of a tensor."""
    return InMemory(torch.arange(count * 175).reshape(count, 175))


class Arrow(Dataset[int]):
    """A column of a pyarrow table."""

    def __init__(self, count: int) -> None:
        self.table = pa.table({"text": [f"{number:01400}" for number in range(count)]})

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> int:
        return len(self.table["text"][index].as_py())
