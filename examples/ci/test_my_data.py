"""A dataset and its fault test: all that the jobs need."""

from array import array
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

SIZE = 256


class Records(Dataset):
    """One sample per file, of which there must be *count*: 64 float32 values."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = sorted(folder.glob("*.bin"))
        if len(self.paths) != count:
            message = f"{folder}: {len(self.paths)} files, expected {count}"
            raise ValueError(message)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index]
        data = bytearray(path.read_bytes())
        if len(data) != SIZE:
            message = f"{path}: {len(data)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.frombuffer(data, dtype=torch.float32)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Eight records."""
    for number in range(8):
        values = array("f", [number + 1] * 64)
        (tmp_path / f"{number:02}.bin").write_bytes(values.tobytes())
    return tmp_path


def test_robust(fault_check, data_dir: Path) -> None:
    """At each push the quick checks of these, and all of them each night."""
    fault_check(lambda: Records(data_dir, 8))
