"""Datasets that lock files: bugs with locks that they do not get, and twins without them.

To wait for a lock that another job holds is no bug, with or without a limit.
"""

import contextlib
import errno
import fcntl
import time
from pathlib import Path
from typing import Any

import filelock
import h5py
import torch
from torch.utils.data import get_worker_info

from support.corpus.caches import ReadsHdf5
from support.corpus.cases import Case
from support.datasets import Records, zeros

_TRIES, _PAUSE = 40, 0.02


class LocksByLibrary(Records):
    """Reads under a lock of filelock, for which it waits a little: healthy."""

    timeout: float = _TRIES * _PAUSE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = folder.parent / "library.lock"

    def __getitem__(self, index: int) -> Any:
        with filelock.FileLock(self.lock, timeout=self.timeout):
            return super().__getitem__(index)


class LocksByFlock(Records):
    """Reads under a lock, which it asks for again and again for a while: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = folder.parent / "flock.lock"

    def __getitem__(self, index: int) -> Any:
        with open(self.lock, "ab") as lock:
            self._lock(lock)
            return super().__getitem__(index)

    def _lock(self, lock: Any) -> None:
        for _ in range(_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
            else:
                return
        raise TimeoutError(f"another process holds {self.lock}")


class WaitsInFlock(LocksByFlock):
    """Waits in the call itself, as long as it takes: healthy."""

    def _lock(self, lock: Any) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)


class TakesAnyErrorForHeld(LocksByFlock):
    """Takes every error for a lock that is held, and tries again."""

    def _lock(self, lock: Any) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_PAUSE)
            else:
                return


class WaitsForOtherJob(LocksByFlock):
    """While another job holds the lock, waits for a file that this job should write.

    Only the first worker takes the lock: two could wait for each other without a fault.
    """

    def _lock(self, lock: Any) -> None:
        worker = get_worker_info()
        if worker is not None and worker.id:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            while not self.lock.with_suffix(".done").exists():
                time.sleep(_PAUSE)


class ZerosWhileLocked(Records):
    """Returns zeros while another job has locked a record."""

    def __getitem__(self, index: int) -> Any:
        lock = self.paths[index].parent.with_name(f"{index}.lock")
        try:
            with filelock.FileLock(lock, timeout=0):
                return super().__getitem__(index)
        except filelock.Timeout:
            return zeros()


class RetriesHdf5(ReadsHdf5):
    """Opens the file again and again while it cannot lock it: a bug on a drive without locks."""

    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                with h5py.File(self.file, self.mode) as file:
                    return torch.from_numpy(file["records"][index])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOLCK):
                    raise
                time.sleep(_PAUSE)


class CountsUnderLock(LocksByFlock):
    """Counts its samples in a file, under a lock: healthy."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder)
        self.lock, self.count = cache / "count.lock", cache / "count.txt"

    def __getitem__(self, index: int) -> Any:
        with open(self.lock, "ab") as lock:
            self._lock(lock)
            self.write_count(index)
            return Records.__getitem__(self, index)

    def write_count(self, index: int) -> None:
        with open(self.count, "ab", buffering=0) as file:
            file.write(b"%d\n" % index)


class CountsAndWaits(CountsUnderLock):
    """Waits for the lock under which it counts: healthy."""

    def _lock(self, lock: Any) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)


class CountsAnyway(CountsUnderLock):
    """Continues without the lock that it could not get."""

    def _lock(self, lock: Any) -> None:
        with contextlib.suppress(OSError):
            super()._lock(lock)


CASES = (
    Case("Q3", TakesAnyErrorForHeld, "file-locks", "hung: ", LocksByFlock),
    Case("Q3", RetriesHdf5, "file-locks", "hung: ", ReadsHdf5),
    Case(
        "Q4",
        CountsAnyway,
        "file-locks",
        "corrupted: a worker wrote count.txt, but could not lock count.lock",
        CountsUnderLock,
    ),
    Case("Q4", CountsAnyway, "file-locks", "corrupted: a worker wrote", CountsAndWaits),
    Case("Q5", WaitsForOtherJob, "file-locks", "hung: ", WaitsInFlock),
    Case("Q6", ZerosWhileLocked, "file-locks", "corrupted: ", LocksByLibrary),
)
