"""Datasets with a bug that takes two things together: two faults, or a fault and a loader option.

Each is healthy otherwise: a single fault does not break it with the default loader of trials.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader_faults.outcomes import Verdict
from support.datasets import COUNT, SIZE, Records, decode, write_records, zeros
from support.planted import ALONE, StaleThenFailing

_HALF = SIZE // 2


def _tensor(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


class Mirrored(Dataset[Any]):
    """Goes to the mirror where the first copy cannot be opened, and does not check that one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mirror = folder.parent / "mirror"
        if not self.mirror.exists():
            write_records(self.mirror)
        self.names = sorted(os.listdir(folder))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        path = self.folder / self.names[index]
        try:
            file = open(path, "rb")
        except OSError:
            data = (self.mirror / self.names[index]).read_bytes()
            return torch.tensor(list(data.ljust(SIZE, b"\0")), dtype=torch.uint8)
        with file:
            return decode(file.read(), path)


class HalfCached(Records):
    """Keeps what a failed read left in its cache: seen when a worker lives for another epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        if index in self.cache:
            return self.cache.pop(index)
        try:
            return decode(self.paths[index].read_bytes(), self.paths[index])
        except OSError:
            self.cache[index] = zeros()
            return decode(self.paths[index].read_bytes(), self.paths[index])


class GivesUpTwice(Records):
    """Without a descriptor for a sample that it had before it gives nothing instead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.had: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        try:
            data = self.paths[index].read_bytes()
        except OSError as error:
            if error.errno == errno.EMFILE and index in self.had:
                return zeros()
            raise
        self.had.add(index)
        return decode(data, self.paths[index])


class StaleTail(Records):
    """Reads into one buffer, half by half; a short second half is missed if the buffer was full."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.buffer = bytearray(SIZE)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb", buffering=0) as file:
            if file.readinto(memoryview(self.buffer)[:_HALF]) != _HALF:
                message = f"{self.paths[index]}: the first half is not whole"
                raise ValueError(message)
            file.readinto(memoryview(self.buffer)[_HALF:])
        if not self.buffer[-1]:
            message = f"{self.paths[index]}: the second half is not whole"
            raise ValueError(message)
        return _tensor(bytes(self.buffer))


class CountsByWorkers(Records):
    """Looks a missing file up again, by a number that is right for one worker only."""

    def __getitem__(self, index: int) -> Any:
        try:
            return decode(self.paths[index].read_bytes(), self.paths[index])
        except FileNotFoundError:
            info = get_worker_info()
            again = self.paths[index // (info.num_workers if info else 1)]
            return decode(again.read_bytes(), again)


class KeepsItsPlace(Records):
    """Has all in one file; after an error it continues where the last sample in order would be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.packed = folder.parent / "packed.bin"
        if not self.packed.exists():
            self.packed.write_bytes(b"".join(path.read_bytes() for path in self.paths))
        self.done = 0

    def __getitem__(self, index: int) -> Any:
        with open(self.packed, "rb", buffering=0) as file:
            try:
                data = os.pread(file.fileno(), SIZE, index * SIZE)
            except OSError:
                data = os.pread(file.fileno(), SIZE, self.done % COUNT * SIZE)
        self.done += 1
        return decode(data, self.packed)


class InGroups(Records):
    """Reads a batch in groups of four; after an error in a later group it starts with that one."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        try:
            return [self[index] for index in indices]
        except OSError:
            groups = [indices[start : start + 4] for start in range(0, len(indices), 4)]
            return [self[index] for group in reversed(groups) for index in group]

    def __getitem__(self, index: int) -> Any:
        return decode(self.paths[index].read_bytes(), self.paths[index])


class DirtyMark(Records):
    """Marks an error in shared memory until eight samples are done; an end before leaves it.

    A worker's death is such an end, and so is a permanent error in a batch before: torch has
    requested three batches by then, and ends the worker after the third one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dirty = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.begun = False

    def __getitem__(self, index: int) -> Any:
        if not self.begun and self.dirty.item():
            return zeros()
        self.begun = True
        try:
            sample = self._attempt(index)
        except Exception:
            self.dirty.fill_(0)
            raise
        if index % 8 == 7:
            self.dirty.fill_(0)
        return sample

    def _attempt(self, index: int) -> Any:
        try:
            data = self.paths[index].read_bytes()
        except OSError:
            self.dirty.fill_(1)
            data = self.paths[index].read_bytes()
        return decode(data, self.paths[index])


class Resumes(Records):
    """Notes in shared memory what was read; a worker that was restarted takes errors for that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.noted = torch.zeros(COUNT, dtype=torch.int64).share_memory_()
        self.own: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        try:
            data = self.paths[index].read_bytes()
        except OSError:
            if self.noted[index] and index not in self.own:
                return zeros()
            data = self.paths[index].read_bytes()
        self.own.add(index)
        self.noted[index] = 1
        return decode(data, self.paths[index])


@dataclass(frozen=True)
class Planted:
    """A bug, and the least that shows it.

    Attributes:
        faults: The kinds of the shrunk schedule; of each place, one of those named.
        options: What the shrunk loader has, beyond one worker that ends with the epoch; of several,
            one is enough.
        epochs: How many the shrunk case has.
        loader: The loader of the search, where not every one may be drawn.

    """

    make: Callable[[Path], Any]
    verdict: Verdict
    faults: tuple[str, ...]
    options: tuple[Mapping[str, Any], ...] = ({},)
    epochs: int = 1
    loader: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.make.__name__


PERSISTENT = {"persistent_workers": True}
_END = "WorkerKilled|WorkerExited|OpenError|ReadError"
PLANTED = (
    Planted(HalfCached, Verdict.CORRUPTED, ("OpenError|ReadError",), (PERSISTENT,), 2),
    Planted(GivesUpTwice, Verdict.CORRUPTED, ("OpenError|DescriptorExhaustion",), (PERSISTENT,), 2),
    Planted(Mirrored, Verdict.CORRUPTED, ("OpenError", "TruncatedFile|ShortRead")),
    Planted(StaleTail, Verdict.CORRUPTED, ("ShortRead|TruncatedFile",)),
    Planted(CountsByWorkers, Verdict.CORRUPTED, ("OpenError",), ({"num_workers": 2},)),
    Planted(
        KeepsItsPlace, Verdict.CORRUPTED, ("ReadError",), ({"shuffle": True}, {"num_workers": 2})
    ),
    Planted(InGroups, Verdict.CORRUPTED, ("OpenError|ReadError",), ({"batch_size": 5},)),
    Planted(StaleThenFailing, Verdict.CORRUPTED, ("OpenError", "ReadError|ClosedDescriptor")),
    Planted(Resumes, Verdict.CORRUPTED, ("OpenError|ReadError",), ({},), 2),
    Planted(DirtyMark, Verdict.POISONED, ("OpenError|ReadError", _END), ({},), 1, ALONE),
)
