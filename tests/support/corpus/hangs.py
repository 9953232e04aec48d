"""Hangs, timeouts, and forks of programs with threads: bugs, and twins without them."""

import concurrent.futures
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from support.corpus.cases import Case
from support.datasets import SIZE, Records, RecordStream


class TimesOut(Records):
    """Gives each read its own timeout, and raises an error when it expires."""

    limit = 0.6

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        del self.paths[4:]

    def __getitem__(self, index: int) -> Any:
        pool = ThreadPoolExecutor(1)
        reading = pool.submit(super().__getitem__, index)
        try:
            return reading.result(self.limit)
        except concurrent.futures.TimeoutError:
            return self._late(index)
        finally:
            pool.shutdown(wait=False)

    def _late(self, index: int) -> Any:
        message = f"{self.paths[index]}: nothing came within {self.limit} s"
        raise TimeoutError(message)


class TimesOutInSilence(TimesOut):
    """Gives zeros instead."""

    def _late(self, index: int) -> Any:
        return torch.zeros(SIZE, dtype=torch.uint8), index


class IndexInBackground(Records):
    """Has a thread make its index when it is first wanted; who wants it waits for the lock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._start()

    def _start(self) -> None:
        self.numbers: dict[int, int] = {}
        self.lock, self.wanted = threading.Lock(), threading.Event()
        is_held = threading.Event()
        threading.Thread(target=self._make_index, args=(is_held,), daemon=True).start()
        is_held.wait()
        self.pid = os.getpid()

    def _make_index(self, is_held: threading.Event) -> None:
        with self.lock:
            is_held.set()
            self.wanted.wait()
            self.numbers.update(enumerate(int(path.stem) for path in self.paths))

    def __getitem__(self, index: int) -> Any:
        self.wanted.set()
        with self.lock:
            return *super().__getitem__(index), self.numbers[index]


class IndexPerProcess(IndexInBackground):
    """Has each process make its own."""

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self._start()
        return super().__getitem__(index)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "pid": 0}


class PoolKept(Records):
    """Reads with a pool of threads that is made for the first sample: a fork has none of them."""

    pool: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1)
        return self.pool.submit(super().__getitem__, index).result()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pool": None}


class PoolPerProcess(PoolKept):
    """Makes one in each process."""

    pid = 0

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self.pool, self.pid = None, os.getpid()
        return super().__getitem__(index)


class ReadsAhead(RecordStream):
    """Has a thread read ahead, which passes on its error: healthy."""

    def __iter__(self) -> Any:
        queue: Queue[Any] = Queue(2)
        threading.Thread(target=self._read, args=(queue,), daemon=True).start()
        while (sample := queue.get()) is not None:
            if isinstance(sample, Exception):
                raise sample
            yield sample

    def _read(self, queue: Queue[Any]) -> None:
        try:
            self._fill(queue)
        except OSError as error:
            queue.put(error)

    def _fill(self, queue: Queue[Any]) -> None:
        for sample in super().__iter__():
            queue.put(sample)
        queue.put(None)


class LosesError(ReadsAhead):
    """Lets an error end the thread."""

    def _read(self, queue: Queue[Any]) -> None:
        self._fill(queue)


class LocksInBlock(Records):
    """Reads under a lock, in a ``with`` block: healthy."""

    lock: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.lock is None:
            self.lock = threading.Lock()
        return self._read(index)

    def _read(self, index: int) -> Any:
        with self.lock:
            return super().__getitem__(index)


class KeepsLock(LocksInBlock):
    """Does not release it after an error."""

    def _read(self, index: int) -> Any:
        self.lock.acquire()
        sample = Records.__getitem__(self, index)
        self.lock.release()
        return sample


_LATE = {"loader": {"batch_size": 1}}
CASES: tuple[Case, ...] = (
    Case("K1", TimesOutInSilence, "hung-read", "corrupted: identical", TimesOut, options=_LATE),
    Case(
        "K5",
        IndexInBackground,
        "workers-agree",
        "hung: neither finished nor raised an exception",
        IndexPerProcess,
    ),
    Case("K12", LosesError, "read-error", "hung: neither finished nor raised", ReadsAhead),
    Case("K13", KeepsLock, "read-error-once", "hung: neither finished", LocksInBlock),
    Case(
        "K8",
        PoolKept,
        "read-before-fork",
        "hung: neither finished nor raised an exception",
        PoolPerProcess,
    ),
)
