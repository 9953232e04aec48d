"""Datasets whose samples are random, or never quite the same."""

from __future__ import annotations

import random
from typing import Any

import torch

from support.corpus.state import Noisy
from support.datasets import Records, RecordStream


class NoisyZeros(Noisy):
    """Gives noise for what it cannot read."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return torch.randn(64), index


class OwnNoise(Records):
    """Has a generator that no seed of the harness reaches; *short*: half of it under a fault."""

    short = False

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.random = random.SystemRandom()

    def __getitem__(self, index: int) -> Any:
        try:
            data = super().__getitem__(index)[0]
        except OSError:
            if not self.short:
                raise
            data = torch.zeros(32)
        return data + self.random.random()


class Jittered(Records):
    """Has the least noise in its samples."""

    def __getitem__(self, index: int) -> Any:
        data, index = super().__getitem__(index)
        return {"data": data + random.SystemRandom().random() / 1000, "index": index}


class JitteredStream(RecordStream):
    """The same as a stream."""

    def __init__(self, folder: Any) -> None:
        self.records = Jittered(folder)


class JitteredZeros(Jittered):
    """Gives zeros for what it cannot read."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return {"data": torch.zeros(64), "index": index}


def close(a: Any, b: Any) -> bool:
    """The author's own idea of what is the same."""
    return bool(torch.allclose(a["data"], b["data"], atol=0.01)) and bool(a["index"] == b["index"])
