"""How each library writes CONTENT, as people do, to the file or folder that its reader reads."""

from __future__ import annotations

import gzip
import io
import sqlite3
import tarfile
import wave
import zipfile

import h5py
import numpy as np
import torch
from PIL import Image

from support.file_formats import CONTENT, SIDE

PIXELS = np.frombuffer(CONTENT, dtype=np.uint8)
RECORDS = tuple(CONTENT[start : start + 4096] for start in range(0, len(CONTENT), 4096))


def raw(path: str) -> None:
    """The bytes and nothing else."""
    with open(path, "wb") as file:
        file.write(CONTENT)


def gzipped(path: str) -> None:
    """Compressed in Python; noise does not get smaller."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(CONTENT)


def npy(path: str) -> None:
    """An array with NumPy's header."""
    np.save(path, PIXELS)


def npz(path: str) -> None:
    """The same in a zip archive."""
    np.savez(path, x=PIXELS)


def image(path: str) -> None:
    """A picture, in the format that the extension says."""
    Image.fromarray(PIXELS.reshape(SIDE, SIDE)).save(path)


def hdf5(path: str) -> None:
    """One contiguous data set."""
    with h5py.File(path, "w") as file:
        file["x"] = PIXELS


def lmdb(path: str) -> None:
    """A value per record."""
    import lmdb

    with lmdb.open(path, subdir=False, lock=False) as store, store.begin(write=True) as transaction:
        for number, record in enumerate(RECORDS):
            transaction.put(b"%02d" % number, record)


def parquet(path: str) -> None:
    """One column of integers."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(), path)


def arrow(path: str) -> None:
    """The same table in Arrow's file format."""
    import pyarrow.feather

    pyarrow.feather.write_feather(_table(), path, compression="uncompressed")


def arrow_stream(path: str) -> None:
    """A row per record in Arrow's stream format, as Hugging Face stores it."""
    import pyarrow as pa

    table = pa.table({"x": pa.array(RECORDS, pa.binary())})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def _table():
    import pyarrow as pa

    return pa.table({"x": PIXELS})


def safetensors(path: str) -> None:
    """One tensor."""
    import safetensors.numpy

    safetensors.numpy.save_file({"x": PIXELS}, path)


def torch_saved(path: str) -> None:
    """One tensor."""
    torch.save(torch.from_numpy(PIXELS.copy()), path)


def zarr(path: str) -> None:
    """Four chunks, each a file."""
    import zarr

    zarr.create_array(store=path, data=PIXELS, chunks=(len(PIXELS) // 4,))


def sqlite(path: str) -> None:
    """A row per record."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table records (data blob)")
        connection.executemany("insert into records values (?)", [(each,) for each in RECORDS])
    connection.close()


def zipped(path: str) -> None:
    """One member, stored."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", CONTENT)


def tar(path: str) -> None:
    """A member per record, named as WebDataset wants it."""
    with tarfile.open(path, "w") as archive:
        for number, record in enumerate(RECORDS):
            member = tarfile.TarInfo(f"{number:02d}.bin")
            member.size = len(record)
            archive.addfile(member, io.BytesIO(record))


def wav(path: str) -> None:
    """Mono, 16 bits a sample."""
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(CONTENT)
