"""Datasets that lock, log, cache and map files, and are sound: they stay so under protection."""

from __future__ import annotations

import functools
import json
import logging
import os
import sqlite3
import subprocess
from typing import Any

import h5py
import joblib
import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset
from support.corpus.locks import LocksByLibrary
from support.datasets import COUNT, SIZE, Records, decode
from support.inner import start_python
from support.protection import changes, contents

pytestmark = pytest.mark.usefixtures("engine")

CHECKS = """
    open-error file-missing read-error truncated-half missing-before-init worker-killed-first
""".split()


class InOneFile(Dataset[Any]):
    """Has all records in one file, which each process opens for its first sample."""

    name = ""

    def __init__(self, folder):
        self.path = folder / self.name
        self.size = os.path.getsize(self.path)
        self.pid, self.file = 0, None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if self.pid != os.getpid():
            if os.path.getsize(self.path) != self.size:
                message = f"{self.path} is truncated"
                raise ValueError(message)
            self.file = self.open()
            self.pid = os.getpid()
        return decode(self.read(index), self.path), index


class Lmdb(InOneFile):
    """Without readonly, so that it maps and locks its lock file."""

    name = "data.mdb"

    def open(self):
        return lmdb.open(str(self.path.parent), map_size=1 << 20)

    def read(self, index):
        with self.file.begin() as transaction:
            return transaction.get(b"%d" % index)


class Sqlite(InOneFile):
    """With a write-ahead log, which another program has open."""

    name = "records.db"

    def open(self):
        return sqlite3.connect(self.path)

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except sqlite3.Error as error:
            raise OSError(f"cannot read {self.path}") from error

    def read(self, index):
        ((data,),) = self.file.execute("select x from t where id = ?", [index])
        return data


class Hdf5(InOneFile):
    """In mode "a": HDF5 writes a mark into the file, and removes it when the file is closed."""

    name = "records.h5"

    def open(self):
        return self.path

    def read(self, index):
        with h5py.File(self.path, "a", locking=False) as file:
            return file["x"][index].tobytes()


class Joblib(InOneFile):
    """Maps an array for writing, and only reads it."""

    name = "records.joblib"

    def open(self):
        return joblib.load(self.path, mmap_mode="r+")

    def read(self, index):
        return self.file[index].tobytes()


def write_containers(folder, records):
    """The records in each format, without a connection to the database."""
    array = np.array([list(data) for data in records], np.uint8)
    joblib.dump(array, folder / Joblib.name)
    with h5py.File(folder / Hdf5.name, "w") as file:
        file["x"] = array
    with (
        lmdb.open(str(folder), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for index, data in enumerate(records):
            transaction.put(b"%d" % index, data)


WRITE_SQLITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("pragma journal_mode = wal")
connection.execute("create table t (id integer primary key, x blob)")
with connection:
    rows = ((index, bytes(range(index, index + 64))) for index in range(16))
    connection.executemany("insert into t values (?, ?)", rows)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="containers")
def _containers(tmp_path):
    folder = tmp_path / "containers"
    folder.mkdir()
    write_containers(folder, [bytes(range(number, number + SIZE)) for number in range(COUNT)])
    with start_python("-c", WRITE_SQLITE, folder / Sqlite.name, stdin=subprocess.PIPE) as writer:
        writer.stdout.readline()
        yield folder
        writer.communicate()


class Logs(Records):
    """Appends to a log that was there before."""

    def __getitem__(self, index):
        handler = logging.FileHandler(self.paths[0].parent.with_name("log"))
        handler.emit(logging.makeLogRecord({"msg": f"reading {index}"}))
        handler.close()
        return super().__getitem__(index)


class Indexes(Records):
    """Writes an index whenever it is created."""

    def __init__(self, folder):
        super().__init__(folder)
        names = [path.name for path in self.paths]
        folder.with_name("index").write_text(" ".join(names), encoding="ascii")


class StartsCold(Records):
    """Keeps what it has read, and removes at its start what an earlier run has kept."""

    def __init__(self, folder):
        super().__init__(folder)
        self.cache = folder.with_name("cache")
        self.cache.mkdir(exist_ok=True)
        for path in self.cache.iterdir():
            path.unlink()

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        bytearray(1 << 26)  # So that there are faults of memory, which the supervisor does not see.
        (self.cache / f"{index}.bin").write_bytes(bytes(sample[0].tolist()))
        return sample


class Commands(Records):
    """Reads by a program, which also writes to /dev/null, as ffmpeg does."""

    def __getitem__(self, index):
        path = self.paths[index]
        command = ["sh", "-c", f"cat {path} > /dev/null && cat {path}"]
        return decode(subprocess.run(command, check=True, capture_output=True).stdout, path), index


class Shares(Records):
    """Has its samples in shared memory, by one of the strategies of torch."""

    def __init__(self, folder, strategy):
        super().__init__(folder)
        torch.multiprocessing.set_sharing_strategy(strategy)

    def __getitem__(self, index):
        data, _ = super().__getitem__(index)
        return data.share_memory_(), index


def require_passes(make, checks=CHECKS, **options):
    results = check_dataset(make, only=checks, on_fail=None, **options)

    assert [each.explanation for each in results if not each.passed] == []
    assert [each.refusals for result in results for each in result.trials if each.refusals] == []


WRITTEN = [each for each in CHECKS if not each.endswith("before-init")]
"""HDF5 writes to its file in each run, so that the others do not apply to it."""
CONTAINERS = {
    Lmdb: {},
    Sqlite: {"files": "*.db"},  # An error names that file, and not its log.
    Hdf5: {"checks": WRITTEN},
    Joblib: {},
}
CHANGED = {"lock.mdb", "records.db-shm"}
"""Files that each run changes."""


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_that_are_open_for_writing(kind, containers):
    before = contents(containers)
    require_passes(lambda: kind(containers), **CONTAINERS[kind])
    after = contents(containers)

    assert sorted(before) == sorted(after)
    assert {name for name in before if before[name] != after[name]} <= CHANGED


FILES = {
    "locked": LocksByLibrary,
    "logs": Logs,
    "written at each start": Indexes,
    "read by a command": Commands,
    "shared": functools.partial(Shares, strategy="file_descriptor"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_beside_which_others_are_written(name, records):
    records.with_name("log").write_text("a line\n", encoding="ascii")
    before = contents(records)
    require_passes(functools.partial(FILES[name], records))

    assert changes(before, contents(records)) == []


def test_a_cache_that_each_start_removes(records):
    """What earlier trials have created, with or without a fault, is its own."""
    require_passes(
        functools.partial(StartsCold, records), ["missing-before-init", "memory-exhaustion"]
    )


def test_shared_memory_by_name(records):
    """Each process of torch_shm_manager takes seconds to end."""
    require_passes(functools.partial(Shares, records, "file_system"), ["read-error"])


def load_json(folder):
    import datasets

    files = sorted(map(str, folder.glob("*.jsonl")))
    return datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=folder / "cache"
    )


def test_the_cache_of_hugging_face_survives(tmp_path):
    """It is removed and built again if a file of it is missing."""
    for number in range(2):
        lines = [json.dumps({"x": [number, row]}) for row in range(COUNT)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines), encoding="ascii")
    rows = list(load_json(tmp_path))
    before = contents(tmp_path)
    read_error, killed, missing = check_dataset(
        lambda: load_json(tmp_path),
        only=["read-error", "worker-killed-first", "missing-before-init"],
        on_fail=None,
    )

    assert read_error.passed
    assert killed.passed
    assert missing.passed
    assert "would delete" in missing.explanation
    assert "copy=" in missing.explanation
    assert changes(before, contents(tmp_path)) == []
    assert list(load_json(tmp_path)) == rows
