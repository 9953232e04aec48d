"""Files that a dataset changes in place, as databases do, are not left half changed."""

import os
import resource
import signal
import sqlite3
from pathlib import Path

import pytest

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import HungRead, WorkerKilled
from support.datasets import Records
from support.epochs import alone, epoch
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")

ONE_WORKER = {"num_workers": 1, "batch_size": 5}
OLD, ROWS, LONG = b"old", 64, 100_000


class Counts(Records):
    """Rewrites an index in place for each sample, with a copy next to it until that is done."""

    def __init__(self, folder):
        super().__init__(folder)
        self.index, self.copy = folder.with_name("index.txt"), folder.with_name("index.bak")

    def __getitem__(self, index):
        self.copy.write_bytes(self.index.read_bytes())
        with open(self.index, "wb", buffering=0) as file:
            file.write(b"half")
            sample = super().__getitem__(index)
            file.write(b"whole")
        self.copy.unlink()
        return sample


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


@pytest.fixture(name="index")
def _index(records):
    path = records.with_name("index.txt")
    path.write_bytes(OLD)
    return path


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


def test_the_copy_of_a_file_that_is_half_changed_stays(records, index):
    outcome = run_trial(
        lambda: Counts(records), HungRead("*/05.rec"), loader=ONE_WORKER, deadline=allowed(1)
    )

    assert outcome.fired
    assert index.read_bytes() == b"half"
    assert index.with_name("index.bak").exists()


@pytest.mark.parametrize(
    ("fault", "deadline"), [(HungRead("*/09.rec"), 1), (WorkerKilled(at=3), 30)]
)
def test_a_database_is_as_before_an_unfinished_transaction(records, database, fault, deadline):
    outcome = run_trial(
        lambda: Remembers(records), fault, loader=ONE_WORKER, deadline=allowed(deadline)
    )

    assert outcome.fired
    assert not outcome.refusals
    assert isinstance(rows_of(database), int)


def test_a_dataset_with_a_database_recovers(records, database):
    checks = ["read-error", "read-error-halfway", "worker-killed-middle"]
    results = check_dataset(
        lambda: Remembers(records), only=checks, files="*.rec", loader=ONE_WORKER, on_fail=None
    )

    assert [each.explanation for each in results if not each.passed] == []
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


def kill_in_trial(dataset, fault):
    return run_trial(lambda: dataset, fault).fired


def kill_in_scope(dataset, fault):
    with inject(fault) as injection:
        epoch(alone(dataset))
    return injection.fired


@pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip() != "core",
    reason="the kernel writes core files elsewhere",
)
@pytest.mark.parametrize("kill", [kill_in_trial, kill_in_scope])
def test_a_crash_replaces_no_core_file(records, core, kill):
    """The kernel writes it, by no system call."""
    assert kill(Records(records), WorkerKilled(signal.SIGQUIT))
    assert core.read_bytes() == OLD
