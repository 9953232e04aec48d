"""A dataset factory whose process is killed, as by the OOM killer, when it is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset


@dataclass
class KilledFactory:
    """Counts its calls in the file *log*, in whatever process, and kills its process at some.

    Attributes:
        kind: The class of the dataset.
        folder: What that gets.
        calls: The numbers of the fatal calls, from 1.
        in_worker: Whether a worker of that call's dataset is killed at its first sample instead.
        number: The signal.
    """

    log: Path
    kind: Callable[[Path], Any]
    folder: Path
    calls: Collection[int] = ()
    in_worker: bool = False
    number: int = signal.SIGKILL

    def __call__(self) -> Any:
        is_fatal = self.count_call() in self.calls
        if is_fatal and not self.in_worker:
            os.kill(os.getpid(), self.number)
        dataset = self.kind(self.folder)
        return KilledInWorker(dataset, self.number) if is_fatal else dataset

    def count_call(self) -> int:
        with self.log.open("ab") as file:
            file.write(b"x")
            file.flush()
            return file.tell()

    @property
    def count(self) -> int:
        return self.log.stat().st_size


class KilledInWorker(Dataset[Any]):
    """Kills the process that makes its first sample, if that is a worker."""

    def __init__(self, dataset: Any, number: int) -> None:
        self.whole, self.number, self.made_in = dataset, number, os.getpid()

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != self.made_in:
            os.kill(os.getpid(), self.number)
        return self.whole[index]
