"""Batches whose rows depend on each other, as where a collate_fn pads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset

LENGTHS = {
    "all": [3, 5, 7, 9] * 4,
    "some": [8] * 4 + [9, 7, 5, 3] * 3,
}
CHECK = "read-error-first"


class Sequences(Dataset[Any]):
    """Sequences of several lengths, one for each byte of a file."""

    def __init__(self, path: Any, *, forgiving: bool = False) -> None:
        self.path = path
        self.forgiving = forgiving
        self.count = len(path.read_bytes())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        try:
            length = self.path.read_bytes()[index]
        except OSError:
            if not self.forgiving:
                raise
            length = 2
        return torch.arange(1, length + 1)


def _pad(samples):
    return pad_sequence(samples, batch_first=True)


def _pad_in_dict(samples):
    padded = _pad(samples)
    return {"ids": padded, "mask": padded > 0}


@pytest.mark.parametrize("collate", [_pad, _pad_in_dict])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_padded_batches(tmp_path, lengths, collate):
    """They are compared as wholes: a healthy dataset passes, and a short sample is found."""
    path = tmp_path / "lengths"
    path.write_bytes(bytes(lengths))
    verdicts = [
        each.verdict
        for forgiving in (False, True)
        for each in check_dataset(
            lambda forgiving=forgiving: Sequences(path, forgiving=forgiving),
            loader={"collate_fn": collate},
            only=["workers-agree", CHECK],
            on_fail=None,
        )
    ]
    assert verdicts == ["survived", "failed_cleanly", "survived", "corrupted"]
