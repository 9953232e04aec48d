"""The dataset that the jobs test."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

SIZE = 256


class Records(Dataset):
    """One sample per file: 64 float32 values."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index]
        data = bytearray(path.read_bytes())
        if len(data) != SIZE:
            message = f"{path}: {len(data)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.frombuffer(data, dtype=torch.float32)
