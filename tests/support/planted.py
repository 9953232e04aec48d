"""Datasets that a search finds something in."""

import errno
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from support.datasets import SIZE, Records, decode, write_records, zeros

ALONE = {"num_workers": 1, "batch_size": 4}


class Zeros(Records):
    """Gives nothing where a file cannot be opened or read: one fault is enough."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)[0]
        except OSError:
            return super().__getitem__(0)[0] * 0


class Mirrored(Dataset[Any]):
    """Goes to the mirror where the first copy cannot be opened, and does not check that one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mirror = folder.parent / "mirror"
        if not self.mirror.exists():
            write_records(self.mirror)
        self.names = sorted(os.listdir(folder))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        path = self.folder / self.names[index]
        try:
            file = open(path, "rb")
        except OSError:
            data = (self.mirror / self.names[index]).read_bytes()
            return torch.tensor(list(data.ljust(SIZE, b"\0")), dtype=torch.uint8)
        with file:
            return decode(file.read(), path)


class StaleThenFailing(Records):
    """Having seen a stale handle it distrusts the server: at the next error it gives nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.distrusts = False

    def __getitem__(self, index: int) -> Any:
        try:
            file = open(self.paths[index], "rb", buffering=0)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self.distrusts = True
            file = open(self.paths[index], "rb", buffering=0)
        with file:
            try:
                data = file.read(SIZE)
            except OSError:
                if self.distrusts:
                    return zeros()
                raise
        return decode(data, self.paths[index])
