"""Datasets and collate functions of many shapes, all healthy."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from support.datasets import Records


class Fields(Records):
    """Each sample is a dict of a tensor, a number and a string."""

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index)
        return {"data": data, "index": index, "name": self.paths[index].name}


class Ragged(Records):
    """Samples of different lengths, which only its own collate function can put together."""

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index)
        return data[: index + 1]


class Counted(Records):
    """Counts the samples that its own copy has given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.given = 0

    def __getitem__(self, index: int) -> Any:
        self.given += 1
        return super().__getitem__(index)


def concatenate(samples: list[torch.Tensor]) -> torch.Tensor:
    """All samples as one flat tensor, in which they cannot be distinguished."""
    return torch.cat(samples)


class Drawing(Dataset[Any]):
    """Each sample is drawn from the random numbers of its worker, of all three kinds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), np.random.rand()  # noqa: NPY002  # torch seeds it


class FilterCount(Dataset[Any]):
    """What its worker's init function has kept: the worker, whether it ran here, the filters."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        ((worker, pid, filters),) = self.kept
        return worker, pid == os.getpid(), filters


def keep_filter_count(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (filters,) = re.findall(r"Seccomp_filters:\s*(\d+)", status)
    info.dataset.kept.append((worker, os.getpid(), int(filters)))
