"""The datasets that are measured, and their files."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

CALLS, REPEATS, PIXELS = 200, 5, (500, 375)


class Records(Dataset[Any]):
    """Small files, opened for each sample; their length is checked, and their *count* if given."""

    def __init__(self, folder: Path, size: int = 64, count: int | None = None) -> None:
        self.paths = sorted(folder.iterdir())
        self.size = size
        if count not in (None, len(self.paths)):
            message = f"{folder} has {len(self.paths)} files, not {count}"
            raise ValueError(message)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        data = self.paths[index].read_bytes()
        if len(data) != self.size:
            message = f"{self.paths[index]}: {len(data)} bytes"
            raise ValueError(message)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Jpegs(Dataset[Any]):
    """Photographs, decoded for each sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(np.array(image))


class Timed(Dataset[Any]):
    """One sample: the seconds that *work* takes in the worker, per call, at the least."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        return min(timeit.repeat(self.work, number=CALLS, repeat=REPEATS)) / CALLS


def in_worker(work: Callable[[], object]) -> float:
    """Seconds per call of *work* in a DataLoader worker."""
    return float(next(iter(DataLoader(Timed(work), num_workers=1, batch_size=None))))


def epoch(dataset: Dataset[Any], workers: int = 2) -> None:
    """One bare epoch with forked workers."""
    for _ in DataLoader(dataset, num_workers=workers, batch_size=4):
        pass


def open_read_close(path: str | Path, size: int = 4096) -> None:
    """Read a file by system calls alone."""
    descriptor = os.open(path, os.O_RDONLY)
    os.read(descriptor, size)
    os.close(descriptor)


def write_records(folder: Path, count: int, size: int = 64) -> Path:
    """A new *folder* with *count* files of *size* bytes."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06}.bin").write_bytes(os.urandom(size))
    return folder


def write_jpegs(folder: Path, count: int = 64) -> Path:
    """A new *folder* with files of the size of ImageNet's, about 50 KiB each."""
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
        image = Image.fromarray(pixels).resize(PIXELS, Image.Resampling.BICUBIC)
        image.save(folder / f"{number:02}.jpg", quality=90)
    return folder
