"""Deaths of worker processes, and what a dataset leaves behind that was not ready for one."""

import contextlib
import ctypes
import fcntl
import os
import tempfile
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

from support.corpus.cases import Case
from support.datasets import SIZE, Records, RecordStream
from support.specimens import AtomicCache, HelperLeftBehind, TornCache


class LockFile(Records):
    """Keeps other processes away by a file that is there while it reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = Path(tempfile.mkdtemp(prefix="lock-", dir=folder.parent), "lock")

    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                time.sleep(0.002)
        try:
            return super().__getitem__(index)
        finally:
            self.lock.unlink()


class Flock(LockFile):
    """Locks the file, as the kernel does it: a lock ends with its process."""

    def __getitem__(self, index: int) -> Any:
        with open(self.lock, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return Records.__getitem__(self, index)


class TakesOverSegment(Records):
    """Has its state in shared memory of a fixed name, and removes that of an earlier job: healthy.

    Its own is removed by multiprocessing's resource tracker, unless that is killed as well.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.name = f"records-{folder.stat().st_ino}"
        self._remove()
        self.memory = SharedMemory(self.name, create=True, size=SIZE)

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            earlier = SharedMemory(self.name)
            earlier.close()
            earlier.unlink()


class FixedSegment(TakesOverSegment):
    """Takes it for granted that nobody has left one."""

    def _remove(self) -> None:
        """Remove nothing."""


class CachedStream(RecordStream):
    """Keeps what it has read in a file per worker, which the next pass reads instead.

    It removes the file where an error ends the pass, but nobody does where a signal does.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = Path(tempfile.mkdtemp(prefix="cache-", dir=folder.parent))

    def __iter__(self) -> Any:
        info = get_worker_info()
        cached = self.cache / f"{info.id if info else 0}.cache"
        return self._read_cache(cached) if cached.exists() else self._fill_cache(cached)

    def _read_cache(self, cached: Path) -> Any:
        with open(cached, "rb") as file:
            while data := file.read(SIZE):
                yield torch.tensor(list(data), dtype=torch.uint8), data[0]

    def _fill_cache(self, cached: Path) -> Any:
        try:
            with open(cached, "wb") as file:
                for sample, index in super().__iter__():
                    file.write(sample.numpy().tobytes())
                    yield sample, index
        except BaseException:
            cached.unlink(missing_ok=True)
            raise


class CachedWhole(CachedStream):
    """Names the file when it is whole."""

    def _fill_cache(self, cached: Path) -> Any:
        part = cached.with_suffix(".part")
        yield from super()._fill_cache(part)
        part.rename(cached)


class NativeReader(Records):
    """Reads like C code that does not check sizes."""

    def __getitem__(self, index: int) -> Any:
        if self.paths[index].stat().st_size < SIZE:
            ctypes.string_at(0)
        return super().__getitem__(index)


CASES: tuple[Case, ...] = (
    Case(
        "F1",
        TornCache,
        "worker-killed",
        "poisoned: a new pass over the same dataset object raised ValueError",
        AtomicCache,
        options={"files": "*.rec"},
    ),
    Case(
        "F1",
        LockFile,
        "worker-killed",
        "poisoned: a new pass over the same dataset object hung",
        Flock,
        options={"files": "*.rec", "loader": {"num_workers": 1}},
    ),
    Case("F1", HelperLeftBehind, "worker-killed", "leaked: 1 process was left running (sleep 600)"),
    Case(
        "F1",
        CachedStream,
        "worker-killed",
        "poisoned: of 16 samples are missing",
        CachedWhole,
        options={"files": "*.rec"},
    ),
    Case(
        "F1",
        CachedStream,
        "worker-killed-sending",
        "poisoned: 8 of 16 samples",
        CachedWhole,
        options={"files": "*.rec"},
    ),
    Case(
        "F12",
        FixedSegment,
        "worker-killed",
        "poisoned: after all processes of a job were killed, the next job raised FileExistsError",
        TakesOverSegment,
    ),
    Case(
        "F3", NativeReader, "truncated-file", "failed_unclearly: the content of a file is damaged"
    ),
)
