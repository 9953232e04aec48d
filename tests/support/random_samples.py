"""Datasets whose samples are random, or never quite the same."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

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


class Timed(Records):
    """Says how long each sample took, and nothing else varies: healthy."""

    def __getitem__(self, index: int) -> Any:
        began = time.perf_counter()
        data, index = super().__getitem__(index)
        return {"data": data, "index": index, "info": {"load_time": time.perf_counter() - began}}


class TimedOther(Timed):
    """Returns another sample in place of one that cannot be read."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except (OSError, ValueError):
            return super().__getitem__((index + 1) % len(self))


class TimedStream(RecordStream):
    """The same as a stream, which leaves out what it cannot read."""

    def __init__(self, folder: Any) -> None:
        self.records = Timed(folder)

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, len(self.records), step):
            try:
                yield self.records[index]
            except ValueError:
                continue


class SeedsItself(Records):
    """Seeds the global generators once in each worker, as RAFT does."""

    is_seeded = False

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if not self.is_seeded and info is not None:
            np.random.seed(info.id)  # noqa: NPY002  # as they do
            self.is_seeded = True
        data = self.read(index)
        return data * np.random.uniform(0.5, 1.5)  # noqa: NPY002  # likewise

    def read(self, index: int) -> Any:
        """The data of a sample."""
        return super().__getitem__(index)[0]


class SeedsItselfRepeats(SeedsItself):
    """Repeats what comes of a short file until it has the right size."""

    def read(self, index: int) -> Any:
        """The data of a sample, also of a file that was cut off."""
        data = np.frombuffer(self.paths[index].read_bytes(), np.uint8)
        return torch.from_numpy(np.resize(data, 64))


class OwnGenerator(SeedsItself):
    """Keeps a generator of its own, of which each worker has a copy."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.random = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return {
            "data": self.read(index) * self.random.uniform(0.5, 1.5),
            "time": time.perf_counter(),
        }


class OwnGeneratorRepeats(OwnGenerator, SeedsItselfRepeats):
    """The same of one that repeats what comes of a short file."""
