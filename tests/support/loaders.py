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
