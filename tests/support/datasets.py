"""Datasets for tests. Module-level, so that spawned workers can import them."""

from __future__ import annotations

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


class Records(Dataset[Any]):
    """One sample per file, opened for each sample, its length checked: healthy."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        data = path.read_bytes()
        if len(data) != SIZE:
            message = f"{path}: {len(data)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.tensor(list(data), dtype=torch.uint8), index


class BySet(Records):
    """Takes its samples in the order of a set of str, of which each interpreter has its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = {path.name for path in self.paths}
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        data = (self.folder / list(self.names)[index]).read_bytes()
        return torch.tensor(list(data), dtype=torch.uint8)


class RecordStream(IterableDataset[Any]):
    """The same, sharded over the workers."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (self.records[index] for index in range(first, len(self.records), step))


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
    """The same, sharded over the workers."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder)
        self.records = CopiedRecords(folder, copies)


class ManyTensors(Dataset[Any]):
    """Samples that take long to share, each tensor being a segment of its own."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return [torch.full((1,), index) for _ in range(1000)]


def joined(samples: list[Any]) -> torch.Tensor:
    """A collate function whose batches cannot be split into samples again."""
    return torch.cat([each for each, _ in samples])
