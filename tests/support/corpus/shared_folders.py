"""Datasets whose ranks prepare files in one folder: bugs, and twins without them."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed
from torch.utils.data import Dataset, get_worker_info

from support.corpus.cases import Case
from support.corpus.ranks import TWO, RankedStream, place
from support.datasets import SIZE, decode
from support.waiting import allowed


class Downloads(Dataset[Any]):
    """Has all records in one file, which is visible before it is whole."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.data = b"".join(path.read_bytes() for path in sorted(source.iterdir()))
        self.file = folder / "cache" / "all.bin"
        self.make_folder()
        if not self.file.exists():
            self.write()
        self.records = self.file.read_bytes()

    def make_folder(self) -> None:
        self.file.parent.mkdir(exist_ok=True)

    def write(self) -> None:
        self.file.write_bytes(self.data)

    def __len__(self) -> int:
        return len(self.data) // SIZE

    def __getitem__(self, index: int) -> Any:
        return decode(self.records[index * SIZE :][:SIZE], self.file)


class WritesOnRank0(Downloads):
    """Has rank 0 write all records to one file, which workers of the others open before that."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.data = b"".join(path.read_bytes() for path in sorted(source.iterdir()))
        self.file = folder / "all.bin"
        if place()[0] == 0:
            self.write()

    def __getitem__(self, index: int) -> Any:
        with open(self.file, "rb") as records:
            records.seek(index * SIZE)
            return decode(records.read(SIZE), self.file)


class WritesOnRank0ThenMeets(WritesOnRank0):
    """Has the others wait until rank 0 has written it: healthy."""

    def __init__(self, source: Path, folder: Path) -> None:
        super().__init__(source, folder)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


class WaitsForRank0(WritesOnRank0):
    """Has the others wait for the file of rank 0, without a limit."""

    limit = math.inf

    def __init__(self, source: Path, folder: Path) -> None:
        super().__init__(source, folder)
        end = time.monotonic() + self.limit
        while not self.file.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"rank 0 did not write {self.file}")
            time.sleep(0.01)

    def write(self) -> None:
        partial = self.file.with_suffix(".part")
        partial.write_bytes(self.data)
        partial.rename(self.file)


class WaitsInVain(WaitsForRank0):
    """Waits for a second at most: healthy."""

    limit = allowed(1.0)


class SavesItsPart(RankedStream):
    """Saves what a worker reads in the first epoch, in a file for that worker of any rank."""

    def __init__(self, source: Path, folder: Path) -> None:
        super().__init__(source)
        self.folder = folder

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        saved = self.folder / f"{self.prefix()}{info.id if info else 'main'}.pt"
        if not saved.exists():
            samples = list(super().__iter__())
            yield from samples
            partial = saved.with_suffix(f".{os.getpid()}")
            with open(partial, "wb") as file:
                torch.save(samples, file)
            os.replace(partial, saved)
        else:
            yield from torch.load(saved)

    def prefix(self) -> str:
        return ""


class SavesItsPartByRank(SavesItsPart):
    """Has the rank in the name of the file as well: healthy."""

    def prefix(self) -> str:
        return f"{place()[0]}-"


CASES: tuple[Case, ...] = (
    *(
        Case("O9", specimen, "ranks-agree", finding, twin, options=TWO)
        for specimen, finding, twin in (
            (SavesItsPart, "corrupted: were delivered on no rank", SavesItsPartByRank),
            (
                WritesOnRank0,
                "fails_without_fault: all.bin: 0 bytes, expected 64",
                WritesOnRank0ThenMeets,
            ),
        )
    ),
    Case("O11", WaitsForRank0, "rank-stops", "hung: ", WaitsInVain, TWO),
)
