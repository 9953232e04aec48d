"""Streams without an end, and streams of shards: some with a bug, and twins without it."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from support.datasets import COUNT, RecordStream, shard

SHARD = 4
"""Records that a shard of these streams has."""


class RandomPerWorker(RecordStream):
    """Draws what it reads by a seed of each worker, as training on a large text does: healthy."""

    def __iter__(self) -> Iterator[Any]:
        numbers = random.Random(self._seed())
        while True:
            data, _ = self.records[numbers.randrange(COUNT)]
            start = numbers.randrange(32)
            yield data[start : start + 32]

    def _seed(self) -> int:
        info = get_worker_info()
        return 42 + (info.id if info else 0)


class RandomForAll(RandomPerWorker):
    """Has the same seed in each worker."""

    def _seed(self) -> int:
        return 42


class FirstOfEach(RandomPerWorker):
    """Ends after N samples in each worker: healthy."""

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.islice(super().__iter__(), COUNT)


class EndsAtAnError(RandomPerWorker):
    """Takes an error for the end of what has none."""

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from super().__iter__()
        except OSError:
            return


class SkipsShards(IterableDataset[Any]):
    """Leaves out a shard that it cannot read, as webdataset's handlers do: it promises no more."""

    def __init__(self, folder: Any) -> None:
        self.shards = []
        for start in range(0, COUNT, SHARD):
            path = folder.parent / f"{start:02}.shard"
            path.write_bytes(bytes(range(start, start + SHARD)))
            self.shards.append(path)

    def __iter__(self) -> Iterator[Any]:
        for number in shard(len(self.shards)):
            try:
                yield from map(float, self._read(self.shards[number]))
            except OSError:
                continue

    def _read(self, path: Any) -> bytes:
        content: bytes = path.read_bytes()
        if len(content) != SHARD:
            message = f"{path} is truncated"
            raise OSError(message)
        return content


class LastAgain(RecordStream):
    """Repeats the last record of its part until it has as many samples as all records."""

    def __iter__(self) -> Iterator[Any]:
        samples = list(super().__iter__())
        return itertools.islice(itertools.chain(samples, itertools.repeat(samples[-1])), COUNT)
