"""Datasets that cache, share, map and change files in place, and are sound: they stay so."""

import functools
import json
import os
import resource
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import lmdb
import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import HungRead, WorkerKilled
from support.datasets import COUNT, SIZE, Records, decode
from support.epochs import alone, epoch
from support.inner import start_python
from support.protection import changes, contents
from support.rows import slow
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")


class InOneFile(Dataset[Any]):
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


class Indexes(Records):
    def __init__(self, folder):
        super().__init__(folder)
        names = [path.name for path in self.paths]
        folder.with_name("index").write_text(" ".join(names), encoding="ascii")


@pytest.fixture(name="containers")
def _containers(tmp_path):
    folder = tmp_path / "containers"
    folder.mkdir()
    with (
        lmdb.open(str(folder), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(COUNT):
            transaction.put(b"%d" % number, bytes(range(number, number + SIZE)))
    with start_python("-c", WRITE_SQLITE, folder / Sqlite.name, stdin=subprocess.PIPE) as writer:
        writer.stdout.readline()
        yield folder
        writer.communicate()


def require_passes(make, *checks, **options):
    results = check_dataset(make, only=checks, on_fail=None, **options)

    assert [each.explanation for each in results if not each.passed] == []
    assert [each.refusals for result in results for each in result.trials if each.refusals] == []


CHANGED = {"lock.mdb", "records.db-shm"}
"""Files that each run changes."""


@pytest.mark.parametrize(
    ("kind", "files"),
    [slow(Lmdb, None), (Sqlite, "*.db")],  # An error names that file, and not its log.
)
def test_containers_that_are_open_for_writing(kind, files, containers):
    before = contents(containers)
    checks = ("read-error", "missing-file", "worker-killed")
    require_passes(lambda: kind(containers), *checks, files=files)
    after = contents(containers)

    assert sorted(before) == sorted(after)
    assert {name for name in before if before[name] != after[name]} <= CHANGED


def test_what_a_dataset_writes_is_its_own(records):
    """Also what earlier trials have created, with or without a fault."""
    before = contents(records)
    require_passes(functools.partial(Indexes, records), "missing-file")

    assert changes(before, contents(records)) == []


def load_json(folder):
    import datasets

    files = sorted(map(str, folder.glob("*.jsonl")))
    return datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=folder / "cache"
    )


@pytest.mark.slow
def test_the_cache_of_hugging_face_survives(tmp_path):
    """It is removed and built again if a file of it is missing."""
    for number in range(2):
        lines = [json.dumps({"x": [number, row]}) for row in range(COUNT)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines), encoding="ascii")
    rows = list(load_json(tmp_path))
    before = contents(tmp_path)
    (missing,) = check_dataset(lambda: load_json(tmp_path), only=["missing-file"], on_fail=None)

    assert missing.passed
    assert "would delete" in missing.explanation
    assert "copy=" in missing.explanation
    assert changes(before, contents(tmp_path)) == []
    assert list(load_json(tmp_path)) == rows


ONE_WORKER = {"num_workers": 1, "batch_size": 5}
OLD, ROWS, LONG = b"old", 64, 100_000


class Remembers(Records):
    """Writes down what it has read, in transactions of four samples."""

    def __init__(self, folder):
        super().__init__(folder)
        self.database = folder.with_name("read.db")
        self.connection = None

    def __getstate__(self):
        return {**vars(self), "connection": None}

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = sqlite3.connect(self.database, timeout=allowed(20))
            self.connection.execute("pragma cache_size = 2")  # So it writes before it commits.
        text = os.urandom(LONG)
        self.connection.execute("insert into samples values (?, ?)", (index, text))
        self.connection.execute("update samples set text = ? where number = ?", (text, index + 1))
        if index % 4 == 3:
            self.connection.commit()
        return super().__getitem__(index)


@pytest.fixture(name="database")
def _database(records):
    path = records.with_name("read.db")
    with sqlite3.connect(path) as connection:
        connection.execute("create table samples (number, text)")
        rows = [(number, os.urandom(LONG)) for number in range(ROWS)]
        connection.executemany("insert into samples values (?, ?)", rows)
    connection.close()
    return path


def rows_of(database):
    """How many rows there are, or what is wrong."""
    with sqlite3.connect(database) as connection:
        ((state,),) = connection.execute("pragma integrity_check")
        ((count,),) = connection.execute("select count(*) from samples")
    connection.close()
    return count if state == "ok" else state


@pytest.mark.parametrize(
    ("fault", "deadline"), [slow(HungRead("*/09.rec"), 1), (WorkerKilled(at=3), 30)]
)
def test_a_database_is_as_before_an_unfinished_transaction(records, database, fault, deadline):
    outcome = run_trial(
        lambda: Remembers(records), fault, loader=ONE_WORKER, deadline=allowed(deadline)
    )

    assert outcome.fired
    assert not outcome.refusals
    assert isinstance(rows_of(database), int)


@pytest.fixture(name="core")
def _core(tmp_path, monkeypatch):
    """An old file where the kernel writes a core file."""
    monkeypatch.chdir(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    path = tmp_path / "core"
    path.write_bytes(OLD)
    yield path
    resource.setrlimit(resource.RLIMIT_CORE, limits)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip() != "core",
    reason="the kernel writes core files elsewhere",
)
def test_a_crash_replaces_no_core_file(records, core):
    """The kernel writes it, by no system call."""
    with inject(WorkerKilled(signal.SIGQUIT)):
        epoch(alone(Records(records)))
    assert core.read_bytes() == OLD
