"""Datasets that iterate their own DataLoader, as for pairs, episodes and queues of patches."""

import multiprocessing
import queue
import threading
from typing import Any

from torch.utils.data import DataLoader, Subset

from support.datasets import Records


class Pairs(Records):
    workers = 0

    def __getitem__(self, index: int) -> Any:
        records = Records(self.paths[0].parent)
        pair = Subset(records, [index, (index + 1) % len(self)])
        ((data, _),) = DataLoader(pair, batch_size=2, num_workers=self.workers)
        return data


class PairsByWorkers(Pairs):
    """A loader with a worker, so that its process must not be a daemon."""

    workers = 1

    def __getitem__(self, index: int) -> Any:
        process: Any = multiprocessing.current_process()
        process._config["daemon"] = False
        return super().__getitem__(index)


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
