"""Datasets and collate functions of many shapes, all healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support.datasets import Records


class Fields(Records):
    """Each sample is a dict of a tensor, a number and a string."""

    def __getitem__(self, index: int) -> Any:
        data, _ = super().__getitem__(index)
        return {"data": data, "index": index, "name": self.paths[index].name}


class Ragged(Records):
    """Samples of different lengths, which only a collate function of its own can put together."""

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
    """All samples as one flat tensor, in which none can be told from the next."""
    return torch.cat(samples)
