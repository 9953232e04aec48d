"""Datasets that read a format by its library as they are made, with real files of one megabyte.

Where the library notices that a file is bad, the plain reader is the twin, and a specimen catches
the error. Where it does not notice, or dies, the plain reader is the specimen.
"""

from __future__ import annotations

import functools
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import pyarrow as pa
import safetensors.numpy

from support.corpus.at_rest import (
    COUNT,
    CUT,
    DAMAGED,
    EMPTY,
    KERNEL,
    MISSING,
    NO_PAGE,
    NOTICES,
    SIZE,
    UNREADABLE,
    Whole,
    cases_of,
    expect_loss,
    noise,
    require,
)
from support.corpus.cases import Case
from support.readers.libraries import write_tar
from support.readers.register import READERS, split, values

Read: TypeAlias = Callable[[Path], bytes]
CONTENT = noise().tobytes()


class ReadBy(Whole):
    """The samples in what *read* makes of the one file."""

    def __init__(self, read: Read, folder: Path) -> None:
        self.samples = values(read(folder / "samples")).reshape(-1, SIZE)


def catch_errors(read: Read) -> Read:
    """The same, with nothing for what cannot be read."""

    @functools.wraps(read)
    def read_or_nothing(path: Path) -> bytes:
        try:
            return read(path)
        except Exception:  # noqa: BLE001  # the defect
            return b""

    return read_or_nothing


def write_pickles(path: Path) -> None:
    """How many there are, and one after the other."""
    path.write_bytes(b"".join(map(pickle.dumps, [COUNT, *split(CONTENT)])))


def read_pickles(path: Path) -> bytes:
    """As many as there are: whatever error comes is their end."""
    objects = []
    with open(path, "rb") as file:
        try:
            while True:
                objects.append(pickle.load(file))  # noqa: S301  # it is ours
        except (EOFError, pickle.UnpicklingError):
            return b"".join(objects[1:])


def read_counted_pickles(path: Path) -> bytes:
    """As many as the first one says: healthy."""
    with open(path, "rb") as file:
        count = pickle.load(file)  # noqa: S301  # it is ours
        return b"".join(pickle.load(file) for _ in range(count))  # noqa: S301  # the same


def read_whole_lmdb(path: Path) -> bytes:
    """All values, if the last page is there: healthy. LMDB does not check how long its file is."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        size = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    require(path, "bytes", path.stat().st_size, size)
    return READERS["lmdb_store"].read(str(path))


def read_sqlite(path: Path) -> bytes:
    """All rows. SQLite names neither the file nor what is wrong with it; an empty one is right."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return b"".join(data for (data,) in database.execute("SELECT data FROM records"))
    finally:
        database.close()


def read_named_sqlite(path: Path) -> bytes:
    """The same, with the file in the error: healthy."""
    try:
        return read_sqlite(path)
    except sqlite3.Error as error:
        message = f"{path}: {error}"
        raise RuntimeError(message) from error


def read_unmapped_arrow(path: Path) -> bytes:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()["x"].to_numpy().tobytes()


def read_unmapped_safetensors(path: Path) -> bytes:
    return safetensors.numpy.load(path.read_bytes())["x"].tobytes()


def read_zip_in_part(path: Path) -> bytes:
    """A blank for each member whose checksum is wrong."""
    contents = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            try:
                contents.append(archive.read(name))
            except zipfile.BadZipFile:
                contents.append(bytes(archive.getinfo(name).file_size))
    return b"".join(contents)


def write_counted_tar(path: Path) -> None:
    """A member for each sample, below one that says how many there are."""
    write_tar(path, [str(COUNT).encode(), *split(CONTENT)])


def _members(path: Path) -> list[bytes]:
    with tarfile.open(path, "r:") as archive:
        return [archive.extractfile(member).read() for member in archive]


def read_tar(path: Path) -> bytes:
    """All members. An archive that ends between two is an archive."""
    return b"".join(_members(path)[1:])


def read_counted_tar(path: Path) -> bytes:
    """As many as the first one says: healthy."""
    count, *members = _members(path)
    require(path, "members", len(members), int(count))
    return b"".join(members)


_SILENT = {
    CUT: expect_loss("samples has 50 % fewer bytes"),
    EMPTY: expect_loss("samples is empty"),
    MISSING: expect_loss("samples is missing"),
    UNREADABLE: expect_loss("samples cannot be read"),
}
"""What comes of an error that is caught, whatever it was."""
_NO_PAGE = {UNREADABLE: NO_PAGE}
_BEYOND_END = "crashed: a mapped file beyond the point where it was truncated"
_UNCLEAR = {
    EMPTY: "failed_unclearly: does not say that the content of samples is damaged",
    MISSING: "failed_unclearly: does not say that its cause is [Errno 2]",
}


def _cases(
    name: str,
    write: Callable[[Path], object],
    specimen: Read,
    twin: Read,
    fails: dict[str, str],
    **more: Any,
) -> Iterator[Case]:
    datasets = [functools.partial(ReadBy, read) for read in (specimen, twin)]
    for dataset in datasets:
        vars(dataset)["__name__"] = name
    yield from cases_of(lambda folder: write(folder / "samples"), *datasets, fails, **more)


def _cases_of_reader(
    name: str,
    reader_name: str,
    fails: dict[str, str],
    *,
    specimen: Read | None = None,
    twin: Read | None = None,
    **more: Any,
) -> Iterator[Case]:
    """Of one of READERS; without a *twin* that is the twin, and a *specimen* catches its errors."""
    reader = READERS[reader_name]

    def read(path: Path) -> bytes:
        return reader.read(str(path))

    write = functools.partial(reader.write_as, content=CONTENT)
    specimen = specimen or (read if twin else catch_errors(read))
    yield from _cases(name, write, specimen, twin or read, fails, **more)


CASES = (
    *_cases_of_reader("pickle", "python_pickle", _SILENT),
    *_cases(
        "pickles",
        write_pickles,
        read_pickles,
        read_counted_pickles,
        {
            CUT: expect_loss("samples has 50 % fewer bytes", 7),
            EMPTY: expect_loss("samples is empty"),
        },
    ),
    *_cases_of_reader("json", "python_json", _SILENT),
    *_cases_of_reader("hdf5", "hdf5", _SILENT),
    *_cases_of_reader("lmdb", "lmdb_store", {CUT: _BEYOND_END}, twin=read_whole_lmdb),
    *_cases_of_reader(
        "sqlite", "python_sqlite3", _UNCLEAR, specimen=read_sqlite, twin=read_named_sqlite
    ),
    *_cases_of_reader("parquet", "parquet", _SILENT),
    *_cases_of_reader(
        "arrow", "arrow_mapped", _NO_PAGE, twin=read_unmapped_arrow, library="the kernel"
    ),
    *_cases_of_reader(
        "safetensors",
        "safetensors_file",
        _NO_PAGE,
        twin=read_unmapped_safetensors,
        library=KERNEL,
    ),
    *_cases_of_reader("zip", "python_zipfile", _SILENT),
    *_cases_of_reader(
        "zip in part",
        "python_zipfile",
        {DAMAGED: "corrupted: sample"},
        specimen=read_zip_in_part,
        options=NOTICES,
    ),
    *_cases(
        "tar",
        write_counted_tar,
        read_tar,
        read_counted_tar,
        {CUT: "corrupted: ; only 14 of 16 samples are left, and no exception"},
    ),
    *_cases_of_reader("npz", "numpy_load_npz", _SILENT),
    *_cases_of_reader("npy", "numpy_load", _SILENT),
    *_cases_of_reader("torch", "torch_load", _SILENT),
)
