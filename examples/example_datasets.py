"""Datasets as people write them, each with its design and its flaw in the docstring.

`Records` read fixed-size records out of one file (digits.bin), `Files` read one file per sample
(tiles/*.jpg or raw/*.bin). Neither takes its length from the content of a file, so that damage
cannot make it shorter. A sample is a tensor and its index; from `H5Digits`, a digit and its label.
"""

import mmap
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import h5py
import lmdb
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Image.preinit()  # or Pillow imports its JPEG reader at the first open, in the worker

Sample = tuple[Tensor, int]
StrPath = str | os.PathLike[str]

VALUES = 64
RECORD = VALUES * 8


def decode(data: bytes) -> Tensor:
    """The float64 values of one record; too few bytes are a ValueError."""
    return torch.tensor(np.frombuffer(data, count=VALUES))


def to_tensor(image: Image.Image) -> Tensor:
    """The pixels as uint8, channels first."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


class Records(Dataset[Sample]):
    """`length` records of 64 float64 values in the file at `path`."""

    def __init__(self, path: StrPath, length: int = 64) -> None:
        self.path = path
        self.length = length

    def __len__(self) -> int:
        return self.length


class HandlesInInit(Records):
    """Opens the file once, in `__init__`.

    Flaw: forked workers share the file offset. Between the `seek` of one and its `read` another
    moves it: now and then a sample holds another record. It also cannot be pickled for spawned
    workers.
    """

    def __init__(self, path: StrPath, length: int = 64) -> None:
        super().__init__(path, length)
        self.file = open(path, "rb", buffering=0)

    def __getitem__(self, index: int) -> Sample:
        self.file.seek(index * RECORD)
        return decode(self.file.read(RECORD)), index


class OpensPerItem(Records):
    """Opens the file for each sample.

    Healthy: nothing is shared, and a short record is an error.
    """

    def __getitem__(self, index: int) -> Sample:
        with open(self.path, "rb") as file:
            file.seek(index * RECORD)
            return decode(file.read(RECORD)), index


class MmapPerItem(Records):
    """Maps the file for each sample.

    Healthy by the rules: a mapping cannot return an error, so a page that cannot be read causes a
    SIGBUS, which ends the worker. The loader names the signal, but not the file.
    """

    def __getitem__(self, index: int) -> Sample:
        with (
            open(self.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            return decode(view[index * RECORD : (index + 1) * RECORD]), index


class ShardedRecords(IterableDataset[Sample]):
    """Gives each worker every n-th record.

    Healthy: a short file is an error, not a short epoch.
    """

    def __init__(self, path: StrPath, length: int = 64) -> None:
        self.path = path
        self.length = length

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        with open(self.path, "rb") as file:
            for index in range(start, self.length, step):
                file.seek(index * RECORD)
                yield decode(file.read(RECORD)), index


class Files(Dataset[Sample]):
    """One sample per file of the folder at `path`, of which there must be `count`."""

    def __init__(self, path: StrPath, count: int) -> None:
        self.paths = sorted(Path(path).iterdir())
        if len(self.paths) != count:
            raise ValueError(f"{path}: {len(self.paths)} files, expected {count}")

    def __len__(self) -> int:
        return len(self.paths)


class PillowFolder(Files):
    """Decodes an image per sample.

    Healthy: Pillow reports what it cannot read or decode.
    """

    def __getitem__(self, index: int) -> Sample:
        with Image.open(self.paths[index]) as image:
            return to_tensor(image), index


class ZerosOnError(PillowFolder):
    """Puts a black image in the place of one that cannot be read.

    Flaw: the training continues, with photographs that do not exist.
    """

    def __getitem__(self, index: int) -> Sample:
        try:
            return super().__getitem__(index)
        except Exception:
            return torch.zeros(3, 64, 64, dtype=torch.uint8), index


class FromFile(Files):
    """Lets NumPy read the whole file.

    Flaw: a truncated file or a failed read gives no error. `np.fromfile` returns a short array for
    a short file, and after a failed read one of the full length, which holds whatever was in
    memory before. (A read that fails once goes unnoticed for a better reason: the C
    library reads ahead, and tries again.)
    """

    def __getitem__(self, index: int) -> Sample:
        return torch.from_numpy(np.fromfile(self.paths[index])), index


class Careful(Files):
    """Reads the whole file and checks it.

    Healthy: each error names the file and its cause.
    """

    def __getitem__(self, index: int) -> Sample:
        path = self.paths[index]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        if len(data) != RECORD + 4:
            raise ValueError(f"{path}: {len(data)} bytes, expected {RECORD + 4}")
        if zlib.crc32(data[:RECORD]) != int.from_bytes(data[RECORD:], "little"):
            raise ValueError(f"{path}: wrong checksum")
        return decode(data), index


class NpyDataset(Dataset[Sample]):
    """Loads or maps the array per sample.

    Flaw: it reports a failed read as a short file. With `mmap_mode="r"` it is a SIGBUS.
    """

    def __init__(self, path: StrPath, mmap_mode: Literal["r"] | None = None) -> None:
        self.path = path
        self.mmap_mode = mmap_mode
        self.length = len(np.load(path, mmap_mode="r"))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return torch.tensor(np.load(self.path, mmap_mode=self.mmap_mode)[index]), index


class PerProcess(Dataset[Sample]):
    """Opens its file on first use in each process, and leaves it behind when pickled."""

    _handle: Any = None
    _pid: int | None = None

    def open(self) -> Any:
        raise NotImplementedError

    @property
    def handle(self) -> Any:
        if self._pid != os.getpid():
            self._handle = None  # or HDF5 takes the file inherited over the fork for the same one
            self._handle, self._pid = self.open(), os.getpid()
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None, "_pid": None}


class TarTiles(PerProcess):
    """Keeps an archive open in each process.

    Flaw: it takes the names that it finds. An archive that was cut between two members before the
    dataset was made is a dataset of fewer samples; `tarfile` reports a cut inside a member only.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = path
        with self.open() as archive:
            self.names = archive.getnames()

    def open(self) -> tarfile.TarFile:
        return tarfile.open(self.path, "r:")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        with Image.open(self.handle.extractfile(self.names[index])) as image:
            return to_tensor(image), index


class H5Digits(PerProcess):
    """Keeps an HDF5 file open in each process.

    Healthy: the chunks are compressed, so what HDF5 reads beyond the end of the file, zeros and no
    error, does not pass for data.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = path
        with self.open() as file:
            self.length = len(file["pixels"])

    def open(self) -> h5py.File:
        return h5py.File(self.path, "r")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        pixels = torch.from_numpy(self.handle["pixels"][index])
        return pixels, int(self.handle["labels"][index])


class LmdbPerProcess(PerProcess):
    """Keeps an LMDB environment open in each process.

    Flaw: it is LMDB's, which maps what the first pages of the file promise. Of a file that was cut
    off, the pages that are missing are a SIGBUS, and the error speaks of shared memory.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = path
        with self.open() as environment:
            self.length = environment.stat()["entries"]

    def open(self) -> lmdb.Environment:
        return lmdb.open(os.fspath(self.path), subdir=False, readonly=True, lock=False)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        with self.handle.begin() as transaction:
            data = transaction.get(b"%03d" % index)
        if data is None:
            raise ValueError(f"{self.path}: no record {index}")
        return decode(data), index
