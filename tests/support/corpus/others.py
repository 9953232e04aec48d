"""Bugs that nobody has published, and twins without them: what only these show of a check."""

import os
import subprocess
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from support.corpus.cases import Case
from support.datasets import COUNT, SIZE, Records, RecordStream, shard


class KeepsFilesOpen(IterableDataset[Any]):
    """Closes its file at its end, which it does not reach if an epoch is left early."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(folder)
        self.files: list[Any] = []

    def __iter__(self) -> Any:
        file = open(self.records.paths[0], "rb")
        self.files.append(file)
        return self._samples(file)

    def _samples(self, file: Any) -> Any:
        for index in shard(len(self.records)):
            yield self.records[index][0]
        self.files.remove(file)
        file.close()


class ClosesFiles(KeepsFilesOpen):
    """Closes the file of an earlier epoch first."""

    def __iter__(self) -> Any:
        while self.files:
            self.files.pop().close()
        return super().__iter__()


class LeavesHelper(Records):
    """Starts a process in each worker, which it does not end."""

    helper: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.helper is None:
            self.helper = subprocess.Popen(["/bin/sleep", "60"])
            self.started()
        return super().__getitem__(index)

    def started(self) -> None:
        """Nothing ends it."""


class EndsHelper(LeavesHelper):
    """Has the worker end it."""

    def started(self) -> None:
        util.Finalize(None, _end, [self.helper], exitpriority=0)


def _end(helper: subprocess.Popen[bytes]) -> None:
    helper.kill()
    helper.wait()


class EndsWorker(Records):
    """Exits in the middle of an epoch, if the process is a worker."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None and index == COUNT // 2:
            os._exit(0)
        return super().__getitem__(index)


class StartsAgain(RecordStream):
    """Starts its epoch again after an error."""

    def __iter__(self) -> Any:
        for _ in range(2):
            try:
                yield from super().__iter__()
            except OSError:
                continue
            return


class Mapped(Records):
    """Maps each file as it is: healthy."""

    mode: Any = "r"

    def __getitem__(self, index: int) -> Any:
        values = np.memmap(self.paths[index], np.uint8, self.mode, shape=(SIZE,))
        return torch.from_numpy(np.array(values)), index


class MappedForWriting(Mapped):
    """Opens each file in a mode that fills a short one."""

    mode = "r+"


CASES = (
    Case("other", EndsWorker, "workers-agree", "fails_without_fault: exited with status 0."),
    Case("other", StartsAgain, "read-error-once", "corrupted: ", RecordStream),
    Case("other", MappedForWriting, "truncated-file", "corrupted: ", Mapped),
    Case(
        "other",
        KeepsFilesOpen,
        "persistent-workers",
        "leaked: each epoch leaks 1 more descriptor in worker",
        ClosesFiles,
    ),
    Case(
        "other",
        LeavesHelper,
        "workers-agree",
        "leaked: 2 processes were left running (",
        EndsHelper,
    ),
)
