"""Datasets whose bug is in what a worker keeps for its next epoch, or leaves behind.

``healed=True`` removes the cause. ``check`` finds it, and those of ``unseen_by`` do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from pytest_dataloader_faults.outcomes import Verdict
from support.datasets import SIZE, Records, shard

SLEEP = "import time; time.sleep(60)"


class Specimen(Records):
    """Healthy itself."""

    check = ""
    verdict = Verdict.CORRUPTED
    unseen_by: tuple[str, ...] = ()
    text = ""
    options: Mapping[str, Any] = {}

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder)
        self.folder = folder
        self.healed = healed


class GivesOnce(Specimen):
    """Forgets in a worker what it gave away: a second epoch of the same worker gets zeros."""

    check = "persistent-workers"
    text = "in epoch 2, samples 0 to 15 are identical (all zeros),"

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.given: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        sample, _ = super().__getitem__(index)
        if get_worker_info() is None or self.healed:
            return sample
        again = index in self.given
        self.given.add(index)
        return torch.zeros_like(sample) if again else sample


class LosesItsFile(Specimen):
    """Opens its file at the start, and has none any more once it was pickled."""

    check = "pickles"
    verdict = Verdict.FAILS_WITHOUT_FAULT
    text = "the loader raised AttributeError"

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.file: Any = open(self.paths[0], "rb", buffering=0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.healed:
            self.file = open(self.paths[0], "rb", buffering=0)

    def __getitem__(self, index: int) -> Any:
        header = os.pread(self.file.fileno(), SIZE, 0)
        return super().__getitem__(index)[0] + header[0]


class KeepsFilesOpen(IterableDataset[Any]):
    """A stream that closes its file at its end, and never comes to that where one breaks off."""

    check = "abandoned-epoch"
    unseen_by = ("resource-growth", "two-epochs")
    verdict = Verdict.LEAKED
    text = "each epoch leaks 1 more descriptor in worker"
    options: Mapping[str, Any] = {}

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        self.records = Records(folder)
        self.healed = healed
        self.files: list[Any] = []

    def __iter__(self) -> Any:
        if self.healed:
            while self.files:
                self.files.pop().close()
        file = open(self.records.paths[0], "rb")
        self.files.append(file)
        return self._samples(file)

    def _samples(self, file: Any) -> Any:
        for index in shard(len(self.records)):
            yield self.records[index][0]
        self.files.remove(file)
        file.close()


class KeepsHalves(Specimen):
    """Keeps what it read of a truncated file, even when the file is intact again."""

    check = "recovers-after-truncation"
    unseen_by = ("truncated-half", "persistent-workers", "recovers-after-read-error")
    text = "in epoch 2, sample 0 (batch 0) is wrong"

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.kept: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        if index in self.kept and path.stat().st_size == SIZE:
            return self.kept[index]
        data = path.read_bytes()
        if not self.healed:
            self.kept[index] = torch.tensor(list(data.ljust(SIZE, b"\0")), dtype=torch.uint8)
        return super().__getitem__(index)[0]


class LeavesAHelper(Specimen):
    """Has its own process for each worker, which it does not end."""

    check = "workers-agree"
    verdict = Verdict.LEAKED
    text = "2 processes were left running ("

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.helper: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.helper is None:
            self.helper = subprocess.Popen([sys.executable, "-c", SLEEP])
            if self.healed:
                util.Finalize(None, _end, [self.helper], exitpriority=0)
        return super().__getitem__(index)[0]


def _end(helper: subprocess.Popen[bytes]) -> None:
    helper.kill()
    helper.wait()


class LeavesSharedMemory(Specimen):
    """Has a file in /dev/shm for each worker, which it does not remove."""

    check = "leftover-files"
    verdict = Verdict.LEAKED
    text = "6 of 6 workers left 6 temporary files behind (/dev/shm/pytest-"

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.path: Path | None = None

    def __getitem__(self, index: int) -> Any:
        if self.path is None:
            self.path = shared_by(self.folder) / f"{os.getpid()}"
            self.path.touch()
            if self.healed:
                util.Finalize(None, self.path.unlink, exitpriority=0)
        return super().__getitem__(index)[0]


def shared_by(folder: Path) -> Path:
    """Where LeavesSharedMemory leaves its files: a test that uses it removes them."""
    shared = Path("/dev/shm") / f"pytest-{folder.parent.name}-{os.getuid()}"
    shared.mkdir(exist_ok=True)
    return shared


class LeavesALock(Specimen):
    """Locks its folder for one worker; a worker that is killed leaves the lock."""

    check = "worker-killed-last"
    verdict = Verdict.POISONED
    text = "raised FileExistsError"
    options: Mapping[str, Any] = {"loader": {"num_workers": 1}}

    def __init__(self, folder: Path, *, healed: bool = False) -> None:
        super().__init__(folder, healed=healed)
        self.lock = folder.parent / "lock"
        self.lock.unlink(missing_ok=True)
        self.has_lock = False

    def __getitem__(self, index: int) -> Any:
        if not self.has_lock:
            self.lock.touch(exist_ok=self.healed)
            util.Finalize(None, self.lock.unlink, exitpriority=0)
            self.has_lock = True
        return super().__getitem__(index)[0]


SPECIMENS: tuple[Any, ...] = (
    GivesOnce,
    LosesItsFile,
    KeepsFilesOpen,
    KeepsHalves,
    LeavesAHelper,
    LeavesSharedMemory,
    LeavesALock,
)
