"""Workers that drop root's privileges. Here, so that spawned ones can import them."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

NOBODY, COUNT = 65534, 4


def become_nobody(_worker: int) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


class Tensors(Dataset[Any]):
    """Tensors travel by sockets that their worker makes, after it has become another user."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, _index: int) -> Any:
        return torch.tensor(list(self.path.read_bytes()))
