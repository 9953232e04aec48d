"""The readers whose ways with storage faults are documented: each opens its file and gives bytes.

Libraries are imported where they are used: ``load`` imports all, and once is enough.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.metadata
import platform
import sqlite3
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from support import file_formats
from support import library_files as files
from support.file_formats import CONTENT

STANDARD = "Python"


@dataclass(frozen=True)
class Reader:
    """A way to read a file.

    Attributes:
        shown: How users call it.
        package: The distribution it comes from.
        file: The name of its file or folder.
        write: Makes that file.
        read: What the file holds, as bytes; None if the library gave nothing and said nothing.
        hit: Which files the faults are about, where there is more than one.
        exact: Whether what is read is CONTENT; a lossy format gives something near it.
        python: The oldest Python that the library's release runs on.

    """

    shown: str
    package: str
    file: str
    write: Callable[[str], None]
    read: Callable[[str], bytes | None]
    hit: str = "*"
    exact: bool = True
    python: tuple[int, int] = (3, 10)

    @property
    def key(self) -> str:
        """A name that can be a folder's."""
        return self.read.__name__

    @property
    def is_raw(self) -> bool:
        """Whether the format has no length of its own, so that a shorter file is as good."""
        return self.write is files.raw


READERS: dict[str, Reader] = {}


def _reads(shown: str, package: str, file: str, write: Callable[[str], None], **options: Any):
    """Enter a function into READERS."""

    def enter(read: Callable[[str], bytes | None]) -> Callable[[str], bytes | None]:
        reader = Reader(shown, package, file, write, read, **options)
        READERS[reader.key] = reader
        return read

    return enter


def load() -> None:
    """Import what the readers use, so that a forked worker has it."""
    names = "cv2 datasets lmdb pyarrow.parquet pyarrow.feather soundfile webdataset".split()
    for name in [*names, *(["zarr"] if zarr_chunk.__name__ in usable() else [])]:
        importlib.import_module(name)


def usable() -> dict[str, Reader]:
    """The readers that this Python can have."""
    return {key: reader for key, reader in READERS.items() if sys.version_info >= reader.python}


def versions() -> dict[str, str]:
    """The version of each package that has readers."""
    names = dict.fromkeys(reader.package for reader in usable().values())
    found = {name: importlib.metadata.version(name) for name in names if name != STANDARD}
    return {STANDARD: platform.python_version(), **found}


_reads("`open().read()`", STANDARD, "x.bin", files.raw)(file_formats.builtin_open)


@_reads("`open().readinto(buffer)`", STANDARD, "x.bin", files.raw)
def readinto(path: str) -> bytes:
    """A record of known size, and nobody looks at how much of it came."""
    buffer = bytearray(len(CONTENT))
    with open(path, "rb") as file:
        file.readinto(buffer)
    return bytes(buffer)


_reads("`os.pread`", STANDARD, "x.bin", files.raw)(file_formats.os_pread)
_reads("`mmap.mmap`", STANDARD, "x.bin", files.raw)(file_formats.python_mmap)


@_reads("`gzip.open`", STANDARD, "x.gz", files.gzipped)
def python_gzip(path: str) -> bytes:
    """Decompressed in Python."""
    with gzip.open(path) as file:
        return file.read()


@_reads("`zipfile`", STANDARD, "x.zip", files.zipped)
def python_zipfile(path: str) -> bytes:
    """One member."""
    with zipfile.ZipFile(path) as archive:
        return archive.read("x")


@_reads("`tarfile`", STANDARD, "x.tar", files.tar)
def python_tarfile(path: str) -> bytes:
    """Each member."""
    with tarfile.open(path) as archive:
        return b"".join(archive.extractfile(member).read() for member in archive)


@_reads("`sqlite3`", STANDARD, "x.db", files.sqlite)
def python_sqlite3(path: str) -> bytes:
    """Each row."""
    connection = sqlite3.connect(path)
    try:
        return b"".join(row[0] for row in connection.execute("select data from records"))
    finally:
        connection.close()


_reads("`np.fromfile`", "numpy", "x.bin", files.raw)(file_formats.numpy_fromfile)


@_reads("`np.fromfile(count=n)`", "numpy", "x.bin", files.raw)
def numpy_fromfile_count(path: str) -> bytes:
    """A record of known size."""
    return np.fromfile(path, dtype=np.uint8, count=len(CONTENT)).tobytes()


@_reads("`np.load` of .npy", "numpy", "x.npy", files.npy)
def numpy_load(path: str) -> bytes:
    """A header in Python, then as np.fromfile."""
    return np.load(path).tobytes()


@_reads("`np.load(mmap_mode='r')`", "numpy", "x.npy", files.npy)
def numpy_load_mapped(path: str) -> bytes:
    """A header in Python, then a mapping."""
    return np.load(path, mmap_mode="r").tobytes()


@_reads("`np.load` of .npz", "numpy", "x.npz", files.npz)
def numpy_load_npz(path: str) -> bytes:
    """A zip archive."""
    with np.load(path) as archive:
        return archive["x"].tobytes()


_reads("`np.memmap`", "numpy", "x.bin", files.raw)(file_formats.numpy_memmap)


@_reads("`PIL.Image.open` of JPEG", "pillow", "x.jpg", files.image, exact=False)
def pillow_jpeg(path: str) -> bytes:
    """libjpeg, fed from Python."""
    with Image.open(path) as image:
        return image.tobytes()


_reads("`PIL.Image.open` of PNG", "pillow", "x.png", files.image)(file_formats.pillow_png)


@_reads("`cv2.imread` of JPEG", "opencv-python-headless", "x.jpg", files.image, exact=False)
def opencv_jpeg(path: str) -> bytes | None:
    """None is what OpenCV returns for what it cannot read."""
    import cv2

    image = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    return None if image is None else image.tobytes()


@_reads("`cv2.imread` of PNG", "opencv-python-headless", "x.png", files.image)
def opencv_png(path: str) -> bytes | None:
    """The same with libpng."""
    return opencv_jpeg(path)


_reads("`h5py.File`", "h5py", "x.h5", files.hdf5)(file_formats.hdf5)


@_reads("`lmdb.open`", "lmdb", "x.mdb", files.lmdb)
def lmdb_store(path: str) -> bytes:
    """Each value."""
    import lmdb

    with (
        lmdb.open(path, subdir=False, readonly=True, lock=False) as store,
        store.begin() as transaction,
    ):
        return b"".join(value for _key, value in transaction.cursor())


@_reads("`pyarrow.parquet.read_table`", "pyarrow", "x.parquet", files.parquet)
def parquet(path: str) -> bytes:
    """One column."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)["x"].to_numpy().tobytes()


@_reads("`pyarrow.memory_map`", "pyarrow", "x.arrow", files.arrow)
def arrow_mapped(path: str) -> bytes:
    """One column of an Arrow file."""
    import pyarrow as pa

    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()["x"].to_numpy().tobytes()


_reads("`safetensors.numpy.load_file`", "safetensors", "x.safetensors", files.safetensors)(
    file_formats.safetensors_file
)


@_reads("`torch.load`", "torch", "x.pt", files.torch_saved)
def torch_load(path: str) -> bytes:
    """A zip archive, read in C++."""
    return torch.load(path, weights_only=True).numpy().tobytes()


@_reads("`torch.load(mmap=True)`", "torch", "x.pt", files.torch_saved)
def torch_load_mapped(path: str) -> bytes:
    """The same, mapped."""
    return torch.load(path, mmap=True, weights_only=True).numpy().tobytes()


@_reads("`torch.from_file`", "torch", "x.bin", files.raw)
def torch_from_file(path: str) -> bytes:
    """A mapping of known size."""
    return torch.from_file(path, size=len(CONTENT), dtype=torch.uint8).numpy().tobytes()


@_reads("`zarr.open_array` (chunks)", "zarr", "x.zarr", files.zarr, hit="*/c/*", python=(3, 11))
def zarr_chunk(path: str) -> bytes:
    """The fault is about the files that hold the data."""
    import zarr

    return zarr.open_array(path, mode="r")[:].tobytes()


@_reads(
    "`zarr.open_array` (metadata)", "zarr", "x.zarr", files.zarr, hit="*/zarr.json", python=(3, 11)
)
def zarr_metadata(path: str) -> bytes:
    """The fault is about the file that says what the data is."""
    return zarr_chunk(path)


@_reads("`soundfile.read` of WAV", "soundfile", "x.wav", files.wav)
def soundfile_wav(path: str) -> bytes:
    """The library libsndfile."""
    import soundfile

    return soundfile.read(path, dtype="int16")[0].tobytes()


@_reads("`webdataset.WebDataset`", "webdataset", "x.tar", files.tar)
def webdataset_tar(path: str) -> bytes:
    """Each sample of a shard."""
    import webdataset

    shard = webdataset.WebDataset(path, shardshuffle=False)
    return b"".join(sample["bin"] for sample in shard)


@_reads("`datasets.Dataset.from_file`", "datasets", "x.arrow", files.arrow_stream)
def hugging_face(path: str) -> bytes:
    """Each row of an Arrow stream, mapped."""
    from datasets import Dataset

    return b"".join(Dataset.from_file(path)["x"])
