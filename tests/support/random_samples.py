"""Datasets whose samples are random, or never quite the same."""

import random
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from support.datasets import Records, Substitutes


class OwnNoise(Records):
    """Has a generator that the harness cannot seed; *short*: half of it with a fault."""

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


class JitteredZeros(Substitutes, Jittered):
    errors = (OSError,)

    def substitute(self, index: int, _error: Exception) -> Any:
        return {"data": torch.zeros(64), "index": index}


def rounded(sample: Any) -> Any:
    """The data of a jittered sample, which are whole numbers without the noise, and its index."""
    return sample["data"].round(), sample["index"]


class Timed(Records):
    """Says how long each sample took, and nothing else varies: healthy."""

    def __getitem__(self, index: int) -> Any:
        began = time.perf_counter()
        data, index = super().__getitem__(index)
        return {"data": data, "index": index, "info": {"load_time": time.perf_counter() - began}}


class TimedOther(Substitutes, Timed):
    def substitute(self, index: int, _error: Exception) -> Any:
        return Timed.__getitem__(self, (index + 1) % len(self))


class SeedsItself(Records):
    """Seeds the global generators once in each worker, as RAFT does."""

    is_seeded = False

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if not self.is_seeded and info is not None:
            np.random.seed(info.id)  # noqa: NPY002  # as they do
            self.is_seeded = True
        data = self.read(index)
        return data * np.random.uniform(0.5, 1.5)  # noqa: NPY002  # the same

    def read(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class SeedsItselfRepeats(SeedsItself):
    """Repeats what comes of a short file until it has the right size."""

    def read(self, index: int) -> Any:
        data = np.frombuffer(self.paths[index].read_bytes(), np.uint8)
        return torch.from_numpy(np.resize(data, 64))


class OwnGenerator(SeedsItself):
    """Keeps its own generator, of which each worker has a copy."""

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
