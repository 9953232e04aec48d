"""Readers of local files by the standard library and by others.

Those that the page about readers shows have a name for it. Libraries that no reader needs to be
written are imported where they are used.
"""

import gzip
import io
import json
import mmap
import os
import pickle
import sqlite3
import tarfile
import warnings
import wave
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import torch
from PIL import Image

from support.readers.register import CONTENT, SIDE, STANDARD, reads, split, values


@reads("`open().read()`", pure=True)
def builtin_open(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@reads("`open().readinto(buffer)`", pure=True)
def readinto(path: str) -> bytes:
    """A record of known size, without a check of how much of it was read."""
    buffer = bytearray(len(CONTENT))
    with open(path, "rb") as file:
        file.readinto(buffer)
    return bytes(buffer)


@reads("`os.pread`", pure=True)
def os_pread(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@reads("`mmap.mmap`")
def python_mmap(path: str) -> bytes:
    """By the mmap module, which keeps a duplicate of the descriptor."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def _pickled(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_bytes(pickle.dumps(content))


@reads("", STANDARD, "x.pickle", _pickled, decodes=True, pure=True)
def python_pickle(path: str) -> bytes:
    return pickle.loads(Path(path).read_bytes())


def _json(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_text(json.dumps([each.hex() for each in split(content)]), encoding="ascii")


@reads("", STANDARD, "x.json", _json, decodes=True, pure=True)
def python_json(path: str) -> bytes:
    return b"".join(map(bytes.fromhex, json.loads(Path(path).read_bytes())))


def _gzipped(path: str, content: bytes = CONTENT) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(content)


@reads("`gzip.open`", STANDARD, "x.gz", _gzipped, pure=True)
def python_gzip(path: str) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def _zipped(path: str, content: bytes = CONTENT) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, record in enumerate(split(content)):
            archive.writestr(f"{number:02}", record)


@reads("`zipfile`", STANDARD, "x.zip", _zipped, decodes=True, pure=True)
def python_zipfile(path: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return b"".join(map(archive.read, archive.namelist()))


def write_tar(path: str | Path, records: Iterable[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, record in enumerate(records):
            member = tarfile.TarInfo(f"{number:02d}.bin")
            member.size = len(record)
            archive.addfile(member, io.BytesIO(record))


def tar(path: str, content: bytes = CONTENT) -> None:
    write_tar(path, split(content))


@reads("`tarfile`", STANDARD, "x.tar", tar, decodes=True, pure=True)
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


@reads("`sqlite3`", STANDARD, "x.db", _sqlite)
def python_sqlite3(path: str) -> bytes:
    connection = sqlite3.connect(path)
    try:
        return b"".join(row[0] for row in connection.execute("select data from records"))
    finally:
        connection.close()


@reads("`np.fromfile`", "numpy")
def numpy_fromfile(path: str) -> bytes:
    """fread(3) in C, on a duplicate of the descriptor."""
    return np.fromfile(path, dtype=np.uint8).tobytes()


@reads("`np.fromfile(count=n)`", "numpy")
def numpy_fromfile_count(path: str) -> bytes:
    return np.fromfile(path, dtype=np.uint8, count=len(CONTENT)).tobytes()


def _npy(path: str, content: bytes = CONTENT) -> None:
    np.save(path, values(content))


@reads("`np.load` of .npy", "numpy", "x.npy", _npy, decodes=True)
def numpy_load(path: str) -> bytes:
    """A header in Python, then as np.fromfile."""
    return np.load(path).tobytes()


@reads("`np.load(mmap_mode='r')`", "numpy", "x.npy", _npy, decodes=True)
def numpy_load_mapped(path: str) -> bytes:
    """A header in Python, then a mapping."""
    return np.load(path, mmap_mode="r").tobytes()


def _npz(path: str, content: bytes = CONTENT) -> None:
    np.savez(path, x=values(content))


@reads("`np.load` of .npz", "numpy", "x.npz", _npz)
def numpy_load_npz(path: str) -> bytes:
    with np.load(path) as archive:
        return archive["x"].tobytes()


@reads("", "numpy", "x.npz", _npz, key="npz", decodes=True, pure=True)
def numpy_load_npz_file(path: str) -> bytes:
    """NumPy leaves the file of a path open when it raises."""
    with open(path, "rb") as file:
        return np.load(file)["x"].tobytes()


@reads("`np.memmap`", "numpy")
def numpy_memmap(path: str) -> bytes:
    """mmap(2), and then no system call any more."""
    return np.memmap(path, dtype=np.uint8, mode="r").tobytes()


def _image(path: str, content: bytes = CONTENT, **options: Any) -> None:
    Image.fromarray(values(content).reshape(SIDE, SIDE)).save(path, **options)


@reads("`PIL.Image.open` of JPEG", "pillow", "x.jpg", _image, exact=False, decodes=True, pure=True)
def pillow_jpeg(path: str) -> bytes:
    """libjpeg, fed from Python."""
    return pillow_png(path)


@reads("`PIL.Image.open` of PNG", "pillow", "x.png", _image, decodes=True, pure=True)
def pillow_png(path: str) -> bytes:
    """Pillow's own decoder, which is fed from Python."""
    with Image.open(path) as image:
        return image.tobytes()


@reads("", "pillow", "x.bmp", _image, decodes=True)
def pillow_bmp(path: str) -> bytes:
    return pillow_png(path)


def _tiff(path: str, content: bytes = CONTENT) -> None:
    _image(path, content, compression="tiff_lzw")


@reads("", "pillow", "x.tiff", _tiff)
def pillow_tiff(path: str) -> bytes:
    """libtiff, which reads in C from a duplicate of the descriptor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it cannot read before it raises.
        return pillow_png(path)


@reads("`cv2.imread` of JPEG", "opencv-python-headless", "x.jpg", _image, exact=False)
def opencv_jpeg(path: str) -> bytes | None:
    """None is what OpenCV returns for what it cannot read."""
    import cv2

    image = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    return None if image is None else image.tobytes()


@reads("`cv2.imread` of PNG", "opencv-python-headless", "x.png", _image)
def opencv_png(path: str) -> bytes | None:
    return opencv_jpeg(path)


def _hdf5(path: str, content: bytes = CONTENT) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = values(content)


@reads("`h5py.File`", "h5py", "x.h5", _hdf5, decodes=True)
def hdf5(path: str) -> bytes:
    with h5py.File(path) as file:
        return file["x"][:].tobytes()


def _lmdb(path: str, content: bytes = CONTENT) -> None:
    import lmdb

    with lmdb.open(path, subdir=False, lock=False) as store, store.begin(write=True) as transaction:
        for number, record in enumerate(split(content)):
            transaction.put(b"%02d" % number, record)


@reads("`lmdb.open`", "lmdb", "x.mdb", _lmdb)
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


@reads("`pyarrow.parquet.read_table`", "pyarrow", "x.parquet", _parquet)
def parquet(path: str) -> bytes:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)["x"].to_numpy().tobytes()


def _arrow(path: str, content: bytes = CONTENT) -> None:
    import pyarrow.feather

    pyarrow.feather.write_feather(_table(content), path, compression="uncompressed")


@reads("`pyarrow.memory_map`", "pyarrow", "x.arrow", _arrow)
def arrow_mapped(path: str) -> bytes:
    import pyarrow as pa

    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()["x"].to_numpy().tobytes()


def _safetensors(path: str, content: bytes = CONTENT) -> None:
    safetensors.numpy.save_file({"x": values(content)}, path)


@reads("`safetensors.numpy.load_file`", "safetensors", "x.safetensors", _safetensors, decodes=True)
def safetensors_file(path: str) -> bytes:
    """mmap(2) in Rust."""
    return safetensors.numpy.load_file(path)["x"].tobytes()


def _torch_saved(path: str, content: bytes = CONTENT) -> None:
    torch.save(torch.from_numpy(values(content).copy()), path)


@reads("`torch.load`", "torch", "x.pt", _torch_saved, decodes=True)
def torch_load(path: str) -> bytes:
    """A zip archive, read in C++."""
    return torch.load(path, weights_only=True).numpy().tobytes()


@reads("`torch.load(mmap=True)`", "torch", "x.pt", _torch_saved)
def torch_load_mapped(path: str) -> bytes:
    return torch.load(path, mmap=True, weights_only=True).numpy().tobytes()


@reads("`torch.from_file`", "torch")
def torch_from_file(path: str) -> bytes:
    return torch.from_file(path, size=len(CONTENT), dtype=torch.uint8).numpy().tobytes()


def _zarr(path: str, content: bytes = CONTENT) -> None:
    import zarr

    zarr.create_array(store=path, data=values(content), chunks=(len(content) // 4,))


@reads("`zarr.open_array` (chunks)", "zarr", "x.zarr", _zarr, hit="*/c/*", python=(3, 11))
def zarr_chunk(path: str) -> bytes:
    """The fault is about the files that hold the data."""
    import zarr

    return zarr.open_array(path, mode="r")[:].tobytes()


@reads("`zarr.open_array` (metadata)", "zarr", "x.zarr", _zarr, hit="*/zarr.json", python=(3, 11))
def zarr_metadata(path: str) -> bytes:
    """The fault is about the file that says what the data is."""
    return zarr_chunk(path)


def _wav(path: str, content: bytes = CONTENT) -> None:
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(content)


@reads("`soundfile.read` of WAV", "soundfile", "x.wav", _wav)
def soundfile_wav(path: str) -> bytes:
    import soundfile

    return soundfile.read(path, dtype="int16")[0].tobytes()


@reads("`webdataset.WebDataset`", "webdataset", "x.tar", tar)
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


@reads("`datasets.Dataset.from_file`", "datasets", "x.arrow", _arrow_stream)
def hugging_face(path: str) -> bytes:
    from datasets import Dataset as Rows

    return b"".join(Rows.from_file(path)["x"])
