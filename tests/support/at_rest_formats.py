"""Datasets that read a format by its library as they are made, with real files of one megabyte.

Where the library notices that a file is bad, the plain reader is the twin, and a specimen catches
the error. Where it does not notice, or dies, the plain reader is the specimen.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import safetensors.numpy
import torch
from pyarrow import parquet

from support.at_rest_specimens import (
    COUNT,
    CUT,
    DAMAGED,
    EMPTY,
    MISSING,
    NOTICES,
    UNREADABLE,
    Found,
    Pair,
    Whole,
    lost,
    noise,
    require,
)

Reader: TypeAlias = Callable[[Path], Sequence[Any]]
_NAMES = [f"{index:02}" for index in range(COUNT)]


class ReadBy(Whole):
    """What *read* makes of the one file."""

    def __init__(self, read: Reader, folder: Path) -> None:
        self.samples = read(folder / "samples")


def caught(read: Reader) -> Reader:
    """The same, with nothing for what cannot be read."""

    @functools.wraps(read)
    def read_or_nothing(path: Path) -> Sequence[Any]:
        try:
            return read(path)
        except Exception:  # noqa: BLE001  # the defect
            return []

    return read_or_nothing


def _blocks() -> list[bytes]:
    return [each.tobytes() for each in noise()]


def write_pickle(path: Path) -> None:
    """A list."""
    path.write_bytes(pickle.dumps(_blocks()))


def read_pickle(path: Path) -> Sequence[Any]:
    """The list: healthy."""
    return pickle.loads(path.read_bytes())  # noqa: S301  # it is ours


def write_pickles(path: Path) -> None:
    """How many there are, and one after the other."""
    path.write_bytes(b"".join(map(pickle.dumps, [COUNT, *_blocks()])))


def read_pickles(path: Path) -> Sequence[Any]:
    """As many as there are: whatever error comes is their end."""
    found = []
    with open(path, "rb") as file:
        try:
            while True:
                found.append(pickle.load(file))  # noqa: S301  # it is ours
        except (EOFError, pickle.UnpicklingError):
            return found[1:]


def read_counted_pickles(path: Path) -> Sequence[Any]:
    """As many as the first one says: healthy."""
    with open(path, "rb") as file:
        count = pickle.load(file)  # noqa: S301  # it is ours
        return [pickle.load(file) for _ in range(count)]  # noqa: S301  # the same


def write_json(path: Path) -> None:
    """A list of digits."""
    path.write_text(json.dumps([each.hex() for each in _blocks()]), encoding="ascii")


def read_json(path: Path) -> Sequence[Any]:
    """The list: healthy."""
    return [bytes.fromhex(each) for each in json.loads(path.read_bytes())]


def write_hdf5(path: Path) -> None:
    """An array."""
    with h5py.File(path, "w") as file:
        file["samples"] = noise()


def read_hdf5(path: Path) -> Sequence[Any]:
    """All of it: healthy."""
    with h5py.File(path, "r") as file:
        return file["samples"][:]


def _lmdb(path: Path) -> Any:
    return lmdb.open(str(path), subdir=False, readonly=True, lock=False)


def write_lmdb(path: Path) -> None:
    """A key for each sample."""
    env = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24)
    with env, env.begin(write=True) as changes:
        for name, block in zip(_NAMES, _blocks(), strict=True):
            changes.put(name.encode(), block)


def read_lmdb(path: Path) -> Sequence[Any]:
    """All values. LMDB maps the file, and does not ask how long it is."""
    with _lmdb(path) as env, env.begin() as values:
        return [value for _, value in values.cursor()]


def read_whole_lmdb(path: Path) -> Sequence[Any]:
    """All values, if the last page is there: healthy."""
    with _lmdb(path) as env:
        size = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    require(path, "bytes", path.stat().st_size, size)
    return read_lmdb(path)


def write_sqlite(path: Path) -> None:
    """A row for each sample."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE records (number INTEGER PRIMARY KEY, data BLOB)")
    database.executemany("INSERT INTO records VALUES (?, ?)", enumerate(_blocks()))
    database.commit()
    database.close()


def read_sqlite(path: Path) -> Sequence[Any]:
    """All rows. SQLite names neither the file nor what is wrong with it; an empty one is right."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return [data for (data,) in database.execute("SELECT data FROM records ORDER BY number")]
    finally:
        database.close()


def read_named_sqlite(path: Path) -> Sequence[Any]:
    """The same, with the file in the error: healthy."""
    try:
        return read_sqlite(path)
    except sqlite3.Error as error:
        message = f"{path}: {error}"
        raise RuntimeError(message) from error


def _table() -> pa.Table:
    return pa.table({"data": _blocks()})


def write_parquet(path: Path) -> None:
    """A column."""
    parquet.write_table(_table(), path)


def read_parquet(path: Path) -> Sequence[Any]:
    """The column: healthy."""
    return parquet.read_table(path)["data"].to_pylist()


def write_arrow(path: Path) -> None:
    """A batch for each sample."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=1)


def read_arrow(path: Path) -> Sequence[Any]:
    """All batches, by a mapping."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()["data"].to_pylist()


def read_unmapped_arrow(path: Path) -> Sequence[Any]:
    """All batches, by reads: healthy."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()["data"].to_pylist()


def write_safetensors(path: Path) -> None:
    """A tensor for each sample."""
    safetensors.numpy.save_file(dict(zip(_NAMES, noise(), strict=True)), path)


def read_safetensors(path: Path) -> Sequence[Any]:
    """All tensors; safetensors maps the file."""
    found = safetensors.numpy.load_file(path)
    return [found[name] for name in _NAMES]


def read_unmapped_safetensors(path: Path) -> Sequence[Any]:
    """All tensors, by reads: healthy."""
    found = safetensors.numpy.load(path.read_bytes())
    return [found[name] for name in _NAMES]


def write_zip(path: Path) -> None:
    """A member for each sample."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, block in zip(_NAMES, _blocks(), strict=True):
            archive.writestr(name, block)


def read_zip(path: Path) -> Sequence[Any]:
    """All members: healthy."""
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


def read_zip_in_part(path: Path) -> Sequence[Any]:
    """A blank for each member whose checksum is wrong."""
    found = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            try:
                found.append(archive.read(name))
            except zipfile.BadZipFile:
                found.append(bytes(archive.getinfo(name).file_size))
    return found


def write_tar(path: Path) -> None:
    """A member for each sample, below one that says how many there are."""
    members = [("count", str(COUNT).encode()), *zip(_NAMES, _blocks(), strict=True)]
    with tarfile.open(path, "w") as archive:
        for name, block in members:
            member = tarfile.TarInfo(name)
            member.size = len(block)
            archive.addfile(member, io.BytesIO(block))


def _members(path: Path) -> list[bytes]:
    with tarfile.open(path, "r:") as archive:
        return [archive.extractfile(member).read() for member in archive]


def read_tar(path: Path) -> Sequence[Any]:
    """All members. An archive that ends between two is an archive."""
    return _members(path)[1:]


def read_counted_tar(path: Path) -> Sequence[Any]:
    """As many as the first one says: healthy."""
    count, *found = _members(path)
    require(path, "members", len(found), int(count))
    return found


def write_npz(path: Path) -> None:
    """An array."""
    with open(path, "wb") as file:
        np.savez(file, samples=noise())


def read_npz(path: Path) -> Sequence[Any]:
    """The array: healthy."""
    with np.load(path) as arrays:
        return arrays["samples"]


def write_npy(path: Path) -> None:
    """An array without an archive around it."""
    with open(path, "wb") as file:
        np.save(file, noise())


def read_npy(path: Path) -> Sequence[Any]:
    """The array: healthy."""
    return np.load(path)


def write_torch(path: Path) -> None:
    """A tensor."""
    torch.save(torch.from_numpy(noise()), path)


def read_torch(path: Path) -> Sequence[Any]:
    """The tensor: healthy."""
    return torch.load(path).numpy()


_SILENT = {
    CUT: lost("samples has 50 % fewer bytes"),
    EMPTY: lost("samples is empty"),
    MISSING: lost("samples is missing"),
    UNREADABLE: lost("samples cannot be read"),
}
"""What comes of an error that is caught, whatever it was."""
_NO_PAGE = {UNREADABLE: Found("crashed", "a page of a mapped file that the disk could not deliver")}
_BEYOND_END = Found("crashed", "a mapped file beyond the end to which the file was cut off")
_UNCLEAR = {
    EMPTY: Found("failed_unclearly", "does not say that the content of samples is bad"),
    MISSING: Found("failed_unclearly", "does not say that its cause is [Errno 2]"),
}


def _pair(
    write: Callable[[Path], None],
    specimen: Reader,
    twin: Reader,
    fails: dict[str, Found],
    **options: Any,
) -> Pair:
    make = [functools.partial(ReadBy, read) for read in (specimen, twin)]
    return Pair(lambda folder: write(folder / "samples"), *make, fails, options)


PAIRS_OF_FORMATS = {
    "pickle": _pair(write_pickle, caught(read_pickle), read_pickle, _SILENT),
    "pickles": _pair(
        write_pickles,
        read_pickles,
        read_counted_pickles,
        {CUT: lost("samples has 50 % fewer bytes", 7), EMPTY: lost("samples is empty")},
    ),
    "json": _pair(write_json, caught(read_json), read_json, _SILENT),
    "hdf5": _pair(write_hdf5, caught(read_hdf5), read_hdf5, _SILENT),
    "lmdb": _pair(write_lmdb, read_lmdb, read_whole_lmdb, {CUT: _BEYOND_END}),
    "sqlite": _pair(write_sqlite, read_sqlite, read_named_sqlite, _UNCLEAR),
    "parquet": _pair(write_parquet, caught(read_parquet), read_parquet, _SILENT),
    "arrow": _pair(write_arrow, read_arrow, read_unmapped_arrow, _NO_PAGE),
    "safetensors": _pair(write_safetensors, read_safetensors, read_unmapped_safetensors, _NO_PAGE),
    "zip": _pair(write_zip, caught(read_zip), read_zip, _SILENT),
    "zip in part": _pair(
        write_zip, read_zip_in_part, read_zip, {DAMAGED: Found("corrupted", "sample")}, **NOTICES
    ),
    "tar": _pair(
        write_tar,
        read_tar,
        read_counted_tar,
        {CUT: Found("corrupted", "; 14 of 16 samples are there, and no exception")},
    ),
    "npz": _pair(write_npz, caught(read_npz), read_npz, _SILENT),
    "npy": _pair(write_npy, caught(read_npy), read_npy, _SILENT),
    "torch": _pair(write_torch, caught(read_torch), read_torch, _SILENT),
}
