"""Datasets whose ranks prepare files in one folder: bugs, and twins without them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed
from torch.utils.data import Dataset, get_worker_info

from support.corpus.cases import Case
from support.corpus.ranks import TWO, RankedStream, place
from support.datasets import SIZE, Records, decode


class Extracts(Records):
    """Unpacks its records into a folder, unless that folder is there."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.target = source, folder / "data"
        self.prepare()
        super().__init__(self.target)

    def prepare(self) -> None:
        if not self.target.exists():
            self.extract(self.target)

    def extract(self, target: Path) -> None:
        target.mkdir()
        for path in sorted(self.source.iterdir()):
            shutil.copyfile(path, target / path.name)


class ExtractsOnRank0(Extracts):
    """Lets rank 0 do it, and the others wait: healthy."""

    def prepare(self) -> None:
        if place()[0] == 0:
            super().prepare()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


class ExtractsUnderLock(Extracts):
    """Lets one rank after the other look, and unpack: healthy."""

    def prepare(self) -> None:
        with open(self.target.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().prepare()


class ExtractsThenRenames(Extracts):
    """Names the folder when everything is in it, and keeps one that came before: healthy."""

    def extract(self, target: Path) -> None:
        partial = target.with_suffix(f".{os.getpid()}")
        super().extract(partial)
        try:
            partial.rename(target)
        except OSError:
            shutil.rmtree(partial)


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


class DownloadsThenRenames(Downloads):
    """Names the file when it is whole: healthy."""

    def write(self) -> None:
        partial = self.file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(self.data)
        os.replace(partial, self.file)


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


class MakesFolderTwice(DownloadsThenRenames):
    """Creates the folder if it is not there, which two ranks find at once."""

    def make_folder(self) -> None:
        if not os.path.isdir(self.file.parent):
            os.makedirs(self.file.parent)


CASES: tuple[Case, ...] = tuple(
    Case("O9", specimen, "ranks-share-folder", finding, twin, options=TWO)
    for specimen, finding, twin in (
        (SavesItsPart, "corrupted: 8 were delivered on no rank", SavesItsPartByRank),
        (
            WritesOnRank0,
            "fails_without_fault: all.bin: 0 bytes, expected 64",
            WritesOnRank0ThenMeets,
        ),
    )
)
