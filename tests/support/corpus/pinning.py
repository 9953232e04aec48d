"""Pinned memory: bugs, and twins without them. Without an accelerator, by a stand-in."""

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from support.batches import Batch, ForgetsItself
from support.corpus.cases import Case
from support.datasets import Records


def forgets_to_return_itself(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=ForgetsItself)


def returns_itself(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=Batch)


CASES: tuple[Case, ...] = (
    Case("L6", forgets_to_return_itself, "pin-memory", "corrupted: batch 0", twin=returns_itself),
)
