"""Records in files of many kinds, each read through a handle of its process's own: healthy."""

import io
import os
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from torch.utils.data import Dataset

from support.datasets import SIZE, decode

PADDING = bytes(io.DEFAULT_BUFFER_SIZE + 1000)
"""Between records, so that no buffer holds two of them: it has 128 KiB from Python 3.14 on."""
STRIDE = SIZE + len(PADDING)


class Archive(Dataset[Any]):
    """Records in one file, opened again in each process that reads it: healthy."""

    name = ""
    count = 16
    handle: Any = None
    pid = 0

    def __init__(self, folder: Path) -> None:
        data = [path.read_bytes() for path in sorted(folder.iterdir())]
        self.path = folder.parent / self.name
        if not self.path.exists():
            self._write([data[number % len(data)] for number in range(self.count)])
        self.size = self.path.stat().st_size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self._require_whole()
            self.handle, self.pid = self._open(), os.getpid()
        return self._sample(index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handle": None, "pid": 0}

    def _require_whole(self) -> None:
        """Some libraries take what is left of a file for all of it, or die of it."""
        if self.path.stat().st_size != self.size:
            message = f"{self.path} is truncated"
            raise ValueError(message)

    def _sample(self, index: int) -> Any:
        """What is in a record; ValueError unless it is a whole one."""
        return decode(self._read(index), self.path), index

    def _write(self, records: list[bytes]) -> None:
        """Make the file."""
        raise NotImplementedError

    def _open(self) -> Any:
        """A handle for this process."""
        raise NotImplementedError

    def _read(self, index: int) -> bytes:
        """One record."""
        raise NotImplementedError


class Buffered(Archive):
    """A packed file, read by seek and read."""

    name = "records.pack"

    def _write(self, records: list[bytes]) -> None:
        self.path.write_bytes(PADDING.join(records))

    def _open(self) -> Any:
        return open(self.path, "rb")

    def _read(self, index: int) -> bytes:
        self.handle.seek(index * STRIDE)
        return self.handle.read(SIZE)


class Unbuffered(Buffered):
    """The same without a buffer."""

    def _open(self) -> Any:
        return open(self.path, "rb", buffering=0)


class H5(Archive):
    """One HDF5 dataset."""

    name = "records.h5"

    def _write(self, records: list[bytes]) -> None:
        rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        with h5py.File(self.path, "w") as file:
            file.create_dataset("records", data=rows, chunks=(1, SIZE), compression="gzip")

    def _open(self) -> Any:
        return h5py.File(self.path, "r")

    def _read(self, index: int) -> bytes:
        return self.handle["records"][index].tobytes()


class H5Rows(H5):
    """Rows that stand one after the other, in an HDF5 dataset that stays open until an error."""

    name = "rows.h5"

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            self.handle, self.pid = None, 0
            raise

    def _write(self, records: list[bytes]) -> None:
        rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        with h5py.File(self.path, "w") as file:
            file["records"] = rows

    def _open(self) -> Any:
        return super()._open()["records"]

    def _read(self, index: int) -> bytes:
        return self.handle[index].tobytes()


class Virtual(Archive):
    """A virtual HDF5 dataset over files of three rows each, which it checks: healthy."""

    name = "virtual.h5"
    rows = 3

    def __getitem__(self, index: int) -> Any:
        part = self._part(index // self.rows)
        with h5py.File(part, "r"):  # Raises what the virtual dataset does not.
            return self._sample(index)

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"part{number}.h5")

    def _write(self, records: list[bytes]) -> None:
        layout = h5py.VirtualLayout((len(records), SIZE), "u1")
        for start in range(0, len(records), self.rows):
            part = self._part(start // self.rows)
            own = records[start : start + self.rows]
            with h5py.File(part, "w") as file:
                file["x"] = np.frombuffer(b"".join(own), np.uint8).reshape(len(own), SIZE)
            layout[start : start + len(own)] = h5py.VirtualSource(part.name, "x", (len(own), SIZE))
        with h5py.File(self.path, "w", libver="latest") as file:
            file.create_virtual_dataset("x", layout)

    def _read(self, index: int) -> bytes:
        with h5py.File(self.path, "r") as file:
            return file["x"][index].tobytes()


class Zip(Archive):
    """A member per record."""

    name = "records.zip"

    def _write(self, records: list[bytes]) -> None:
        with zipfile.ZipFile(self.path, "w") as archive:
            for number, record in enumerate(records):
                archive.writestr(f"{number}.rec", record)
                archive.writestr(f"{number}.jpg", PADDING)

    def _open(self) -> Any:
        return zipfile.ZipFile(self.path)

    def _read(self, index: int) -> bytes:
        return self.handle.read(f"{index}.rec")


class Npz(Archive):
    """An array per record, read on request."""

    name = "records.npz"

    def _write(self, records: list[bytes]) -> None:
        arrays = {f"a{i}": np.frombuffer(each, np.uint8) for i, each in enumerate(records)}
        padding = {f"b{i}": np.frombuffer(PADDING, np.uint8) for i in range(len(records))}
        pairs = zip(arrays.items(), padding.items(), strict=True)
        np.savez(self.path, **dict(each for pair in pairs for each in pair))

    def _open(self) -> Any:
        return np.load(self.path)

    def _read(self, index: int) -> bytes:
        return self.handle[f"a{index}"].tobytes()


class Tar(Archive):
    """A member per record, without a checksum of its content."""

    name = "records.tar"

    def _write(self, records: list[bytes]) -> None:
        with tarfile.open(self.path, "w") as archive:
            for number, record in enumerate(records):
                for name, data in ((f"{number}.rec", record), (f"{number}.jpg", PADDING)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))

    def _open(self) -> Any:
        archive = tarfile.open(self.path)
        archive.getmembers()
        return archive

    def _read(self, index: int) -> bytes:
        return self.handle.extractfile(f"{index}.rec").read()


class Lmdb(Archive):
    """A transaction per record."""

    name = "records.lmdb"
    count = 300
    """Over both workers: more than twice the slots of LMDB's table of readers, 126."""

    def __getitem__(self, index: int) -> Any:
        if self.handle is not None and self.pid != os.getpid():
            self.handle.close()  # Or it counts as open in this process already.
        return super().__getitem__(index)

    def _write(self, records: list[bytes]) -> None:
        with lmdb.open(str(self.path), subdir=False) as env, env.begin(write=True) as transaction:
            for number, record in enumerate(records):
                transaction.put(str(number).encode(), record)

    def _open(self) -> Any:
        return lmdb.open(str(self.path), subdir=False, readonly=True)

    def _read(self, index: int) -> bytes:
        with self.handle.begin() as transaction:
            return transaction.get(str(index).encode())


class Sqlite(Archive):
    """A row per record."""

    name = "records.sqlite"

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except sqlite3.Error as error:
            message = f"{self.path}: {error}"
            raise OSError(message) from error

    def _write(self, records: list[bytes]) -> None:
        connection = sqlite3.connect(self.path)
        connection.execute("create table records (id integer primary key, data blob)")
        connection.executemany("insert into records values (?, ?)", enumerate(records))
        connection.commit()
        connection.close()

    def _open(self) -> Any:
        return sqlite3.connect(self.path)

    def _read(self, index: int) -> bytes:
        query = "select data from records where id = ?"
        return self.handle.execute(query, (index,)).fetchone()[0]


class Shards(Buffered):
    """Many packed files, opened again in each process: healthy."""

    name = "shards"

    def _write(self, records: list[bytes]) -> None:
        self.path.mkdir()
        for number, path in enumerate(self._paths):
            path.write_bytes(b"".join(records[number::4]))

    @property
    def _paths(self) -> list[Path]:
        """By name: in a listing, a missing file would go unnoticed."""
        return [self.path / f"{number}.pack" for number in range(4)]

    def _open(self) -> Any:
        return [open(path, "rb", buffering=0) for path in self._paths]

    def _read(self, index: int) -> bytes:
        shard = self.handle[index % 4]
        shard.seek(index // 4 * SIZE)
        return shard.read(SIZE)


class Remote(Archive):
    """Records behind one of fsspec's asynchronous file systems, made again in each process."""

    name = "remote"

    def _write(self, records: list[bytes]) -> None:
        self.path.mkdir()
        for number, record in enumerate(records):
            (self.path / f"{number}.rec").write_bytes(record)

    def _open(self) -> Any:
        return AsyncFileSystemWrapper(LocalFileSystem(), False, skip_instance_cache=True)

    def _read(self, index: int) -> bytes:
        return self.handle.cat_file(str(self.path / f"{index}.rec"))
