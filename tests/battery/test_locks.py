"""Checks of file locks: which libraries they cover, and what they show without their fault."""

from __future__ import annotations

import contextlib
import errno
import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import h5py
import lmdb
import pytest
import torch
from filelock import FileLock
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._engine import explain_missing_kernel_engine
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks.locks import LOCKS
from pytest_dataloader_faults.battery.checks.locks.rules import find_unlocked_write
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, Firing, Pass, WorkerFacts
from support.corpus.locks import CountsAnyway, LocksByFlock, LocksByLibrary, WaitsByLibrary
from support.datasets import Records
from support.facts import EPOCH_1, ordinary, revised
from support.rows import rows

pytestmark = pytest.mark.skipif(
    bool(explain_missing_kernel_engine()), reason=str(explain_missing_kernel_engine())
)
BOTH = [check.name for check in LOCKS]


def _results(make, **options):
    return {each.check: each for each in check_dataset(make, only=BOTH, on_fail=None, **options)}


class ReadsSqlite(Records):
    """Reads each record from a database, and waits for a lock as long as it says: healthy."""

    def __init__(self, folder: Path, timeout: float = 0.1) -> None:
        super().__init__(folder)
        self.database, self.timeout = folder.parent / "records.db", timeout
        if not self.database.exists():
            with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
                connection.execute("create table records (number, data)")
                rows = [(number, path.read_bytes()) for number, path in enumerate(self.paths)]
                connection.executemany("insert into records values (?, ?)", rows)

    def __getitem__(self, index: int) -> Any:
        query = "select data from records where number = ?"
        with contextlib.closing(sqlite3.connect(self.database, timeout=self.timeout)) as database:
            ((data,),) = database.execute(query, (index,))
        return torch.tensor(list(data))


class ReadsLmdb(Records):
    """Opens the environment for each record; with *lock*, it registers as a reader."""

    def __init__(self, folder: Path, *, lock: bool) -> None:
        super().__init__(folder)
        self.path, self.lock = str(folder.parent / "records.mdb"), lock
        if not Path(self.path).exists():
            with lmdb.open(self.path, subdir=False) as env, env.begin(write=True) as transaction:
                for number, path in enumerate(self.paths):
                    transaction.put(b"%d" % number, path.read_bytes())

    def __getitem__(self, index: int) -> Any:
        with (
            lmdb.open(self.path, subdir=False, readonly=True, lock=self.lock) as env,
            env.begin() as transaction,
        ):
            return torch.tensor(list(transaction.get(b"%d" % index)))


class ReadsDuckdb(Records):
    """Reads each record from a database that it opens for each of them: healthy."""

    def __init__(self, folder: Path, *, read_only: bool = True) -> None:
        super().__init__(folder)
        self.database, self.read_only = str(folder.parent / "records.duckdb"), read_only
        if not Path(self.database).exists():
            with duckdb.connect(self.database) as connection:
                connection.execute("create table records (number integer, data blob)")
                rows = [(number, path.read_bytes()) for number, path in enumerate(self.paths)]
                connection.executemany("insert into records values (?, ?)", rows)

    def __getitem__(self, index: int) -> Any:
        with duckdb.connect(self.database, read_only=self.read_only) as connection:
            query = "select data from records where number = ?"
            ((data,),) = connection.execute(query, (index,)).fetchall()
        return torch.tensor(list(data))


class KeepsLock(Records):
    """Has *lock* keep a lock from the first sample in a process to its end."""

    def __init__(self, folder: Path, lock: Callable[[Path], object]) -> None:
        super().__init__(folder)
        self.lock, self.folder, self.kept = lock, folder.parent, None

    def __getitem__(self, index: int) -> Any:
        if self.kept is None:
            self.kept = self.lock(self.folder)
        return super().__getitem__(index)


def _lock_sqlite(folder: Path) -> object:
    connection = sqlite3.connect(folder / "index.db", timeout=0)
    connection.execute("begin exclusive")
    return connection


def _lock_by_library(folder: Path) -> object:
    return FileLock(folder / "index.lock").acquire(timeout=0)


def _refuse_workers(_folder: Path) -> None:
    if get_worker_info():
        raise BlockingIOError(errno.EAGAIN, "the dataset is busy")


@rows(
    ("lock", "remedy"),
    [
        (lambda folder: h5py.File(folder / "index.h5", "a"), "h5py.File(path, 'r')"),
        (_lock_sqlite, "?mode=ro"),
        (lambda folder: duckdb.connect(folder / "index.duckdb"), "read_only=True"),
        (_lock_by_library, "as soon as the file is written"),
    ],
)
def test_workers_that_lock_each_other_out_are_a_cause(records, lock, remedy):
    make = functools.partial(KeepsLock, records, lock)
    (result,) = check_dataset(make, only="workers-agree", on_fail=None)

    assert result.verdict == "fails_without_fault"
    assert result.cause == "locks a file that its other workers need"
    assert remedy in result.explanation


def test_an_error_that_mentions_no_lock_has_another_cause(records):
    make = functools.partial(KeepsLock, records, _refuse_workers)
    (result,) = check_dataset(make, only="workers-agree", on_fail=None)

    assert result.verdict == "fails_without_fault"
    assert result.cause == "fails without a fault"


def test_duckdb_raises_a_clear_error(records):
    for result in _results(functools.partial(ReadsDuckdb, records)).values():
        assert result.verdict == "failed_cleanly", result.explanation


def test_sqlite_raises_a_clear_error(records):
    for result in _results(functools.partial(ReadsSqlite, records)).values():
        assert result.verdict == "failed_cleanly", result.explanation


def test_lmdb_waits_for_a_job_that_is_opening_the_same_file(records):
    results = _results(functools.partial(ReadsLmdb, records, lock=True), deadline=3)

    assert results["locked-file"].verdict == "hung"
    assert "lock=False" in results["locked-file"].explanation
    assert results["no-locks"].verdict == "failed_cleanly"


@rows(
    ("make", "reason"),
    [
        (Records, "its workers lock no file"),
        (functools.partial(ReadsLmdb, lock=False), "its workers lock no file"),
    ],
)
def test_a_dataset_that_locks_nothing_is_left_out(records, make, reason):
    for result in _results(functools.partial(make, records)).values():
        assert not result.applies
        assert reason in result.explanation


def test_the_python_engine_does_not_see_locks(records):
    make = functools.partial(LocksByLibrary, records)
    for result in _results(make, engine="python").values():
        assert not result.applies
        assert "engine='kernel' does" in result.explanation


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", [WaitsByLibrary, LocksByFlock])
def test_the_verdict_comes_from_the_fault(records, kind, name):
    """Disarmed, the trial of a bug and that of its twin show nothing."""
    battery = Battery(functools.partial(kind, records), Settings(samples=16))
    disarmed = LockError("/nothing/has/this/name")
    outcome = battery.fault_free_run.run_trial(disarmed)

    assert battery.fault_free_run.judge(outcome).verdict == "not_exercised"


def test_a_write_without_the_fault_is_none_without_a_lock(records):
    def make(cache):
        return CountsAnyway(records, cache)

    battery = Battery(make, Settings(samples=16))
    outcome = battery.fault_free_run.run_trial(LockError("/nothing/has/this/name"))

    assert any(each.writes for worker in outcome.workers for each in worker.files.values())
    assert find_unlocked_write(outcome, battery.fault_free_run.reference) is None


LOCKED = FileCounts(opens=1, locks=1)
WRITTEN = FileCounts(opens=1, writes=1)


@rows(
    ("lock", "written", "writers", "is_violation"),
    [
        ("/t/a.bin", "/t/a.bin", 1, True),
        ("/t/a.bin.lock", "/t/a.bin", 1, True),
        ("/t/a.lock", "/t/a.bin", 1, True),
        ("/t/.lock", "/t/a.bin", 1, False),
        ("/t/.lock", "/t/a.bin", 2, True),
        ("/t/a.lock", "/t/a.bin.tmp81", 1, False),
        ("/locks/a.lock", "/t/a.bin", 2, False),
    ],
)
def test_which_writes_need_the_lock(lock, written, writers, is_violation):
    fault = LockError("*")
    firings = (Firing(0, 0, 7, "flock", lock, 1),)
    files = {lock: LOCKED, written: WRITTEN}
    workers = tuple(WorkerFacts(number, 7 + number, 1, files) for number in range(writers))
    facts = (FaultFacts(fault, 1, 1, firings=firings),)
    outcome = revised(ordinary(Pass(EPOCH_1)), faults=facts, processes=workers)

    finding = find_unlocked_write(outcome, None)
    assert (finding is not None) == is_violation
