"""The register of readers: how each library is called, how its file is made, what it reads.

Each opens its file and returns CONTENT as bytes. Those that the page about readers shows
have a name for it; FORMATS are those that tests of faults use.

Libraries are imported where they are used: ``load`` imports all, and once is enough.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.metadata
import io
import json
import mmap
import os
import pickle
import platform
import sqlite3
import sys
import tarfile
import warnings
import wave
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import torch
from PIL import Image

SIDE = 256
CONTENT: bytes = np.random.default_rng(0).integers(0, 256, SIDE * SIDE, dtype=np.uint8).tobytes()
"""64 KiB, 16 pages; noise, so that half of a compressed file is half of its content."""
COUNT = 16
"""The records of a content."""
STANDARD = "Python"


def split(content: bytes) -> list[bytes]:
    """The records of *content*."""
    size = len(content) // COUNT
    return [content[start : start + size] for start in range(0, len(content), size)]


def values(content: bytes) -> np.ndarray:
    """The bytes of *content* as numbers."""
    return np.frombuffer(content, np.uint8)


@dataclass(frozen=True)
class Reader:
    """A way to read a file.

    Attributes:
        shown: How users call it; "" if the page about readers leaves it out.
        package: The distribution it comes from.
        file: The name of its file or folder.
        write: Makes that file, of CONTENT or of the bytes that are its second argument.
        read: What the file holds, as bytes; None if the library gave nothing and said nothing.
        hit: Which files the faults are about, where there is more than one.
        exact: Whether what is read is CONTENT; a lossy format gives something near it.
        python: The oldest Python that the library's release runs on.

    """

    shown: str
    package: str
    file: str
    write: Callable[..., object]
    read: Callable[[str], bytes | None]
    hit: str = "*"
    exact: bool = True
    python: tuple[int, int] = (3, 10)

    @property
    def key(self) -> str:
        return self.read.__name__

    @property
    def is_raw(self) -> bool:
        """Whether the format does not store a length, so that a shorter file is valid."""
        return self.write is _raw


READERS: dict[str, Reader] = {}


def _reads(
    display_name: str, package: str, file: str, write: Callable[..., object], **options: Any
):
    """Enter a function into READERS."""

    def enter(read: Callable[[str], bytes | None]) -> Callable[[str], bytes | None]:
        reader = Reader(display_name, package, file, write, read, **options)
        READERS[reader.key] = reader
        return read

    return enter


def load() -> None:
    """Import what the readers use, so that a forked worker has it."""
    names = "cv2 datasets lmdb pyarrow.parquet pyarrow.feather soundfile webdataset".split()
    for name in [*names, *(["zarr"] if zarr_chunk.__name__ in usable() else [])]:
        importlib.import_module(name)


def documented() -> dict[str, Reader]:
    """The readers that the page about readers shows."""
    return {key: reader for key, reader in READERS.items() if reader.shown}


def usable() -> dict[str, Reader]:
    """Those of them that this Python can have."""
    return {key: each for key, each in documented().items() if sys.version_info >= each.python}


def versions() -> dict[str, str]:
    """The version of each package that has readers."""
    names = dict.fromkeys(reader.package for reader in usable().values())
    package_versions = {
        name: importlib.metadata.version(name) for name in names if name != STANDARD
    }
    return {STANDARD: platform.python_version(), **package_versions}


def _raw(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_bytes(content)


@_reads("`open().read()`", STANDARD, "x.bin", _raw)
def builtin_open(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@_reads("`open().readinto(buffer)`", STANDARD, "x.bin", _raw)
def readinto(path: str) -> bytes:
    """A record of known size, without a check of how much of it was read."""
    buffer = bytearray(len(CONTENT))
    with open(path, "rb") as file:
        file.readinto(buffer)
    return bytes(buffer)


@_reads("`os.pread`", STANDARD, "x.bin", _raw)
def os_pread(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@_reads("`mmap.mmap`", STANDARD, "x.bin", _raw)
def python_mmap(path: str) -> bytes:
    """By the mmap module, which keeps a duplicate of the descriptor."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def _pickled(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_bytes(pickle.dumps(content))


@_reads("", STANDARD, "x.pickle", _pickled)
def python_pickle(path: str) -> bytes:
    return pickle.loads(Path(path).read_bytes())  # noqa: S301  # it is ours


def _json(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_text(json.dumps([each.hex() for each in split(content)]), encoding="ascii")


@_reads("", STANDARD, "x.json", _json)
def python_json(path: str) -> bytes:
    return b"".join(map(bytes.fromhex, json.loads(Path(path).read_bytes())))


def _gzipped(path: str, content: bytes = CONTENT) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(content)


@_reads("`gzip.open`", STANDARD, "x.gz", _gzipped)
def python_gzip(path: str) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def _zipped(path: str, content: bytes = CONTENT) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", content)


@_reads("`zipfile`", STANDARD, "x.zip", _zipped)
def python_zipfile(path: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("x")


def write_tar(path: str | Path, records: Iterable[bytes]) -> None:
    """A member per record, named as WebDataset wants it."""
    with tarfile.open(path, "w") as archive:
        for number, record in enumerate(records):
            member = tarfile.TarInfo(f"{number:02d}.bin")
            member.size = len(record)
            archive.addfile(member, io.BytesIO(record))


def _tar(path: str, content: bytes = CONTENT) -> None:
    write_tar(path, split(content))


@_reads("`tarfile`", STANDARD, "x.tar", _tar)
def python_tarfile(path: str) -> bytes:
    with tarfile.open(path) as archive:
        return b"".join(archive.extractfile(member).read() for member in archive)


def _sqlite(path: str, content: bytes = CONTENT) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table records (data blob)")
        connection.executemany(
            "insert into records values (?)", [(each,) for each in split(content)]
        )
    connection.close()


@_reads("`sqlite3`", STANDARD, "x.db", _sqlite)
def python_sqlite3(path: str) -> bytes:
    connection = sqlite3.connect(path)
    try:
        return b"".join(row[0] for row in connection.execute("select data from records"))
    finally:
        connection.close()


@_reads("`np.fromfile`", "numpy", "x.bin", _raw)
def numpy_fromfile(path: str) -> bytes:
    """fread(3) in C, on a duplicate of the descriptor."""
    return np.fromfile(path, dtype=np.uint8).tobytes()


@_reads("`np.fromfile(count=n)`", "numpy", "x.bin", _raw)
def numpy_fromfile_count(path: str) -> bytes:
    return np.fromfile(path, dtype=np.uint8, count=len(CONTENT)).tobytes()


def _npy(path: str, content: bytes = CONTENT) -> None:
    np.save(path, values(content))


@_reads("`np.load` of .npy", "numpy", "x.npy", _npy)
def numpy_load(path: str) -> bytes:
    """A header in Python, then as np.fromfile."""
    return np.load(path).tobytes()


@_reads("`np.load(mmap_mode='r')`", "numpy", "x.npy", _npy)
def numpy_load_mapped(path: str) -> bytes:
    """A header in Python, then a mapping."""
    return np.load(path, mmap_mode="r").tobytes()


def _npz(path: str, content: bytes = CONTENT) -> None:
    np.savez(path, x=values(content))


@_reads("`np.load` of .npz", "numpy", "x.npz", _npz)
def numpy_load_npz(path: str) -> bytes:
    with np.load(path) as archive:
        return archive["x"].tobytes()


@_reads("`np.memmap`", "numpy", "x.bin", _raw)
def numpy_memmap(path: str) -> bytes:
    """mmap(2), and then no system call any more."""
    return np.memmap(path, dtype=np.uint8, mode="r").tobytes()


def _image(path: str, content: bytes = CONTENT, **options: Any) -> None:
    Image.fromarray(values(content).reshape(SIDE, SIDE)).save(path, **options)


@_reads("`PIL.Image.open` of JPEG", "pillow", "x.jpg", _image, exact=False)
def pillow_jpeg(path: str) -> bytes:
    """libjpeg, fed from Python."""
    return pillow_png(path)


@_reads("`PIL.Image.open` of PNG", "pillow", "x.png", _image)
def pillow_png(path: str) -> bytes:
    """Pillow's own decoder, which is fed from Python."""
    with Image.open(path) as image:
        return image.tobytes()


@_reads("", "pillow", "x.bmp", _image)
def pillow_bmp(path: str) -> bytes:
    return pillow_png(path)


def _tiff(path: str, content: bytes = CONTENT) -> None:
    _image(path, content, compression="tiff_lzw")


@_reads("", "pillow", "x.tiff", _tiff)
def pillow_tiff(path: str) -> bytes:
    """libtiff, which reads in C from a duplicate of the descriptor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it cannot read before it raises.
        return pillow_png(path)


@_reads("`cv2.imread` of JPEG", "opencv-python-headless", "x.jpg", _image, exact=False)
def opencv_jpeg(path: str) -> bytes | None:
    """None is what OpenCV returns for what it cannot read."""
    import cv2

    image = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    return None if image is None else image.tobytes()


@_reads("`cv2.imread` of PNG", "opencv-python-headless", "x.png", _image)
def opencv_png(path: str) -> bytes | None:
    return opencv_jpeg(path)


def _hdf5(path: str, content: bytes = CONTENT) -> None:
    """One contiguous data set."""
    with h5py.File(path, "w") as file:
        file["x"] = values(content)


@_reads("`h5py.File`", "h5py", "x.h5", _hdf5)
def hdf5(path: str) -> bytes:
    with h5py.File(path) as file:
        return file["x"][:].tobytes()


def _lmdb(path: str, content: bytes = CONTENT) -> None:
    import lmdb

    with lmdb.open(path, subdir=False, lock=False) as store, store.begin(write=True) as transaction:
        for number, record in enumerate(split(content)):
            transaction.put(b"%02d" % number, record)


@_reads("`lmdb.open`", "lmdb", "x.mdb", _lmdb)
def lmdb_store(path: str) -> bytes:
    import lmdb

    with (
        lmdb.open(path, subdir=False, readonly=True, lock=False) as store,
        store.begin() as transaction,
    ):
        return b"".join(value for _key, value in transaction.cursor())


def _table(content: bytes) -> Any:
    import pyarrow as pa

    return pa.table({"x": values(content)})


def _parquet(path: str, content: bytes = CONTENT) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(content), path)


@_reads("`pyarrow.parquet.read_table`", "pyarrow", "x.parquet", _parquet)
def parquet(path: str) -> bytes:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)["x"].to_numpy().tobytes()


def _arrow(path: str, content: bytes = CONTENT) -> None:
    import pyarrow.feather

    pyarrow.feather.write_feather(_table(content), path, compression="uncompressed")


@_reads("`pyarrow.memory_map`", "pyarrow", "x.arrow", _arrow)
def arrow_mapped(path: str) -> bytes:
    import pyarrow as pa

    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()["x"].to_numpy().tobytes()


def _safetensors(path: str, content: bytes = CONTENT) -> None:
    safetensors.numpy.save_file({"x": values(content)}, path)


@_reads("`safetensors.numpy.load_file`", "safetensors", "x.safetensors", _safetensors)
def safetensors_file(path: str) -> bytes:
    """mmap(2) in Rust."""
    return safetensors.numpy.load_file(path)["x"].tobytes()


def _torch_saved(path: str, content: bytes = CONTENT) -> None:
    torch.save(torch.from_numpy(values(content).copy()), path)


@_reads("`torch.load`", "torch", "x.pt", _torch_saved)
def torch_load(path: str) -> bytes:
    """A zip archive, read in C++."""
    return torch.load(path, weights_only=True).numpy().tobytes()


@_reads("`torch.load(mmap=True)`", "torch", "x.pt", _torch_saved)
def torch_load_mapped(path: str) -> bytes:
    return torch.load(path, mmap=True, weights_only=True).numpy().tobytes()


@_reads("`torch.from_file`", "torch", "x.bin", _raw)
def torch_from_file(path: str) -> bytes:
    return torch.from_file(path, size=len(CONTENT), dtype=torch.uint8).numpy().tobytes()


def _zarr(path: str, content: bytes = CONTENT) -> None:
    """Four chunks, each a file."""
    import zarr

    zarr.create_array(store=path, data=values(content), chunks=(len(content) // 4,))


@_reads("`zarr.open_array` (chunks)", "zarr", "x.zarr", _zarr, hit="*/c/*", python=(3, 11))
def zarr_chunk(path: str) -> bytes:
    """The fault is about the files that hold the data."""
    import zarr

    return zarr.open_array(path, mode="r")[:].tobytes()


@_reads("`zarr.open_array` (metadata)", "zarr", "x.zarr", _zarr, hit="*/zarr.json", python=(3, 11))
def zarr_metadata(path: str) -> bytes:
    """The fault is about the file that says what the data is."""
    return zarr_chunk(path)


def _wav(path: str, content: bytes = CONTENT) -> None:
    """Mono, 16 bits a sample."""
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(content)


@_reads("`soundfile.read` of WAV", "soundfile", "x.wav", _wav)
def soundfile_wav(path: str) -> bytes:
    import soundfile

    return soundfile.read(path, dtype="int16")[0].tobytes()


@_reads("`webdataset.WebDataset`", "webdataset", "x.tar", _tar)
def webdataset_tar(path: str) -> bytes:
    import webdataset

    shard = webdataset.WebDataset(path, shardshuffle=False)
    return b"".join(sample["bin"] for sample in shard)


def _arrow_stream(path: str, content: bytes = CONTENT) -> None:
    """A row per record in Arrow's stream format, as Hugging Face stores it."""
    import pyarrow as pa

    table = pa.table({"x": pa.array(split(content), pa.binary())})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


@_reads("`datasets.Dataset.from_file`", "datasets", "x.arrow", _arrow_stream)
def hugging_face(path: str) -> bytes:
    from datasets import Dataset as Rows

    return b"".join(Rows.from_file(path)["x"])


MAPPING = ("numpy_memmap", "python_mmap", "safetensors_file")
"""Those of FORMATS that read through mmap(2) and get a disk error as SIGBUS."""
_FORMATS = "builtin_open os_pread numpy_fromfile pillow_png pillow_tiff hdf5".split()
FORMATS = {key: READERS[key] for key in (*_FORMATS, *MAPPING)}
"""One of each way to the file: Python, C, a mapping, and libraries with their own reads."""


def write_formats(folder: Path, names: tuple[str, ...] = tuple(FORMATS)) -> list[str]:
    """CONTENT for each of the readers *names*, in a file that is named for it."""
    folder.mkdir(parents=True)
    for name in names:
        path = folder / FORMATS[name].file  # Its extension says the format to some writers.
        FORMATS[name].write(str(path))
        path.rename(folder / f"{name}.data")
    return [str(folder / f"{name}.data") for name in names]


def read_format(path: str) -> bytes | None:
    """What the reader that the file is named for makes of it."""
    return FORMATS[Path(path).stem].read(path)
