"""Caches, and races on the file system: bugs, and twins without them."""

import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.battery.checks import CHECKS
from support.corpus.cases import Case
from support.datasets import SIZE, Records
from support.specimens import AtomicCache, ChainedError, GivesZeros

NO_FILE_IS_NEEDED = {
    "files": "*.npy",
    "contract": Contract(survives=True),
    "exclude": [
        name
        for name in CHECKS
        if name.startswith(("descriptor-exhaustion", "hung-read", "worker-killed"))
    ],
}
"""What a cache promises: it may be lost. Workers may not, nor may a disk fall silent."""


class CopiesToScratch(Records):
    """Copies each file to a fast disk first, under its final name from the first byte on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=folder.parent))

    def __getitem__(self, index: int) -> Any:
        copy = self.scratch / f"{index}.copy"
        if not copy.exists():
            with open(self.paths[index], "rb") as source, open(copy, "wb") as target:
                shutil.copyfileobj(source, target)
        return torch.from_numpy(np.frombuffer(copy.read_bytes(), np.uint8, count=SIZE).copy())


class DecodedCache(Records):
    """Has its samples decoded in files, and decodes damaged ones again: healthy."""

    unreadable: tuple[type[Exception], ...] = (Exception,)
    scale = 1
    """How many values a byte becomes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = folder.parent / "decoded"
        self.cache.mkdir(exist_ok=True)
        for index, path in enumerate(self.paths):
            decoded = np.frombuffer(path.read_bytes(), np.uint8).repeat(self.scale)
            np.save(self.cache / f"{index:02}.npy", decoded)

    def __getitem__(self, index: int) -> Any:
        try:
            return torch.from_numpy(np.load(self.cache / f"{index:02}.npy"))
        except self.unreadable:
            return super().__getitem__(index)[0].repeat_interleave(self.scale)


class RecoversFromEmpty(DecodedCache):
    """Knows of one way only in which a file can be no good: that there is nothing in it."""

    unreadable = (EOFError,)


class WaitsForTheCache(DecodedCache):
    """Takes a damaged file for one that another worker is writing.

    Its files are large enough that reading them forever soon stops to count as progress.
    """

    scale = 1024

    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                return torch.from_numpy(np.load(self.cache / f"{index:02}.npy"))
            except (EOFError, ValueError):
                continue


class BlankIfForbidden(GivesZeros):
    """Has a blank for a file that another user left behind with mode 0600."""

    errors = (PermissionError,)


class ReadsHdf5(Records):
    """Opens a file once per process, to read it: healthy."""

    mode = "r"
    opened: Any = None
    pid = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder.parent / "records.h5"
        if not self.file.exists():
            with h5py.File(self.file, "w") as store:
                store["records"] = [list(path.read_bytes()) for path in self.paths]

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self.opened, self.pid = h5py.File(self.file, self.mode), os.getpid()
        return torch.from_numpy(self.opened["records"][index])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None, "pid": 0}


class LocksHdf5(ReadsHdf5):
    """Opens it to write, without a reason, so that one worker locks all others out."""

    mode = "a"


class Spectrograms(Records):
    """Keeps each spectrogram in a file. An error of a read is the end of the file to np.fromfile.

    A cache that is full hides that. It requires the folder of the cache, and so gets an empty one.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder)
        self.cache = cache

    def __getitem__(self, index: int) -> Any:
        cached = self.cache / f"{index:02}.npy"
        if cached.exists():
            return torch.from_numpy(np.load(cached))
        wave = self.wave(index)
        spectrogram = np.abs(np.fft.rfft(wave, SIZE))
        self.save(spectrogram, cached)
        return torch.from_numpy(spectrogram)

    def save(self, spectrogram: Any, cached: Path) -> None:
        part = cached.with_suffix(f".{os.getpid()}.npy")
        data = io.BytesIO()
        np.save(data, spectrogram)  # To a file, it drops the error of its last write.
        part.write_bytes(data.getvalue())
        part.rename(cached)

    def wave(self, index: int) -> Any:
        return np.fromfile(self.paths[index], np.uint8)


class CheckedSpectrograms(Spectrograms):
    """The same, of files that were read to their end: healthy."""

    def wave(self, index: int) -> Any:
        """As many values as there must be."""
        return Records.__getitem__(self, index)[0].numpy()


class WritesInPlace(CheckedSpectrograms):
    """Saves each spectrogram under its final name, from the first byte on."""

    def save(self, spectrogram: Any, cached: Path) -> None:
        np.save(cached, spectrogram)


CASES: tuple[Case, ...] = (
    Case(
        "J1",
        CopiesToScratch,
        "read-error",
        "poisoned: a new pass over the same dataset object raised ValueError",
        AtomicCache,
        options={"files": "*.rec"},
    ),
    Case(
        "J4",
        RecoversFromEmpty,
        "truncated-file",
        "contract_broken: ValueError was raised before the deadline",
        DecodedCache,
        options=NO_FILE_IS_NEEDED,
    ),
    Case(
        "J5",
        WaitsForTheCache,
        "truncated-file",
        "hung: neither finished nor raised an exception",
        DecodedCache,
        options={"files": "*.npy"},
    ),
    Case("J6", BlankIfForbidden, "open-error", "corrupted: identical", ChainedError),
    Case("J7", LocksHdf5, "workers-agree", "fails_without_fault: the loader raised ", ReadsHdf5),
    Case("J8", Spectrograms, "read-error", "corrupted: is wrong", CheckedSpectrograms),
    Case(
        "J9",
        WritesInPlace,
        "worker-killed",
        "poisoned: a new pass over the same dataset object raised",
        CheckedSpectrograms,
    ),
    Case(
        "J10",
        WritesInPlace,
        "write-error",
        "poisoned: a new pass over the same dataset object raised",
        CheckedSpectrograms,
    ),
)


class CacheSeenEarly(Records):
    """Has all records in one file, which the first worker that misses it writes under its name."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder)
        self.cache = cache / "all.bin"

    def __getitem__(self, index: int) -> Any:
        if not self.cache.exists():
            self.fill()
        data = self.cache.read_bytes()[index * SIZE :][:SIZE]
        return torch.from_numpy(np.frombuffer(data.ljust(SIZE, b"\0"), np.uint8).copy())

    def fill(self) -> None:
        self.write(self.cache)

    def write(self, path: Path) -> None:
        with open(path, "wb") as file:
            file.writelines(each.read_bytes() for each in self.paths)


class CacheRenamedTwice(CacheSeenEarly):
    """Writes the file under a second name first, which all workers use."""

    def fill(self) -> None:
        partial = self.cache.with_suffix(".tmp")
        self.write(partial)
        os.replace(partial, self.cache)
