"""Datasets for tests. Module-level, so that spawned workers can import them."""

import errno
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

COUNT, SIZE = 16, 64


def write_records(folder: Path) -> Path:
    """COUNT files of SIZE bytes; file *i* holds *i*, *i* + 1, ..."""
    folder.mkdir(parents=True)
    for number in range(COUNT):
        (folder / f"{number:02}.rec").write_bytes(bytes(range(number, number + SIZE)))
    return folder


def list_records(folder: Path) -> list[Path]:
    """The files of *folder*; FileNotFoundError if they are numbered, and one is missing."""
    paths = sorted(folder.iterdir())
    numbered = {int(path.stem): path for path in paths if path.stem.isdigit()}
    for number in range(max(numbered, default=0)):
        if number not in numbered:
            path = folder / f"{number:02}.rec"
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return paths


def decode(data: bytes, where: object) -> torch.Tensor:
    """The record that *data* is; ValueError unless it is a whole one."""
    if len(data) != SIZE:
        message = f"{where}: {len(data)} bytes, expected {SIZE}"
        raise ValueError(message)
    return torch.tensor(list(data), dtype=torch.uint8)


def zeros() -> torch.Tensor:
    return torch.zeros(SIZE, dtype=torch.uint8)


def shard(count: int) -> range:
    info = get_worker_info()
    return range(info.id, count, info.num_workers) if info else range(count)


class Records(Dataset[Any]):
    """One sample per file, opened for each sample, its number and length checked: healthy."""

    def __init__(self, folder: Path) -> None:
        self.paths = list_records(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return decode(path.read_bytes(), path), index


class Substitutes:
    """A mixin: has ``substitute(index, error)`` for a sample that its base cannot read."""

    errors: tuple[type[Exception], ...] = (OSError, ValueError)

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except self.errors as error:
            return self.substitute(index, error)


class RecordStream(IterableDataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)

    def __iter__(self) -> Any:
        return (self.records[index] for index in shard(len(self.records)))


class CopiedRecords(Records):
    """Writes a copy of each file that it reads into another folder."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder)
        self.copies = copies

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index)
        (self.copies / f"{index:02}.copy").write_bytes(bytes(data.tolist()))
        return data, index


class CopiedRecordStream(RecordStream):
    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder)
        self.records = CopiedRecords(folder, copies)


def joined(samples: list[Any]) -> torch.Tensor:
    return torch.cat([each for each, _ in samples])
