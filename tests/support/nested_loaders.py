"""Datasets that iterate their own DataLoader, as for pairs, episodes and queues of patches."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from support.datasets import Records, RecordStream
from support.specimens import ZerosOnError


class Pairs(Records):
    """A loader for each sample: healthy."""

    workers = 0

    def __getitem__(self, index: int) -> Any:
        pair = Subset(self._read_from(), [index, (index + 1) % len(self)])
        ((data, _),) = DataLoader(pair, batch_size=2, num_workers=self.workers)
        return data

    def _read_from(self) -> Dataset[Any]:
        return Records(self.paths[0].parent)


class PairsByWorkers(Pairs):
    """A loader with a worker, so that its process must not be a daemon."""

    workers = 1

    def __getitem__(self, index: int) -> Any:
        process: Any = multiprocessing.current_process()
        process._config["daemon"] = False
        return super().__getitem__(index)


class PairsOfZeros(Pairs):
    """A loader for each sample, over a dataset that swallows errors: broken."""

    def _read_from(self) -> Dataset[Any]:
        return ZerosOnError(self.paths[0].parent)


class Episodes(IterableDataset[Any]):
    """A loader for each epoch, which is created when the stream starts: healthy."""

    def __init__(self, folder: Path) -> None:
        self.records = RecordStream(folder)

    def __iter__(self) -> Any:
        batches = DataLoader(self.records, batch_size=2, num_workers=0)
        return (each for data, _ in batches for each in data)


class Queued(Records):
    """A thread of the worker iterates a loader, and samples wait in a queue: healthy."""

    def __getitem__(self, index: int) -> Any:
        results: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=self._fill, args=(results, index))
        thread.start()
        thread.join()
        result = results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _fill(self, results: queue.Queue[Any], index: int) -> None:
        try:
            results.put(next(iter(DataLoader(Subset(Records(self.paths[0].parent), [index])))))
        except Exception as error:  # noqa: BLE001  # passed on
            results.put(error)


class InInit:
    """A ``worker_init_fn`` that iterates a loader, as to warm up."""

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        next(iter(DataLoader(info.dataset, num_workers=0)))
