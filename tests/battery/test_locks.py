"""Checks of file locks: which libraries they cover, and what they show without their fault."""

import contextlib
import fcntl
import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.battery.checks.writes import find_unlocked_write
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.outcomes import (
    FaultFacts,
    FileCounts,
    Firing,
    Pass,
    Reference,
    WorkerFacts,
)
from support.corpus.locks import (
    LocksByLibrary,
)
from support.datasets import Records
from support.facts import EPOCH_1, ordinary, revised
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import rows

pytestmark = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)
CHECK = "file-locks"
HELD, LACKING = "another job has the lock", "a drive without locks"


def _verdicts(result):
    """The verdict of each scenario, as the explanation lists them."""
    (line,) = [each for each in result.explanation.splitlines() if "tried: " in each]
    tried = line.partition("tried: ")[2].rstrip(".").split("; ")
    return {title: verdict.rstrip(")") for title, verdict in (each.split(" (") for each in tried)}


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


def test_workers_that_lock_each_other_out_are_a_cause(records):
    result = failure_of(functools.partial(KeepsLock, records, _lock_sqlite), "workers-agree")

    assert result.verdict == "fails_without_fault"
    assert result.cause == "locks a file that its other workers need"
    assert "?mode=ro" in result.explanation


class WaitsAMinute(LocksByLibrary):
    """Waits for a lock as long as people do who limit the wait: healthy."""

    timeout = 60


def test_a_wait_for_another_job_is_sound(records):
    make = functools.partial(WaitsAMinute, records)
    outcome = run_trial(make, LockError("*", seconds=1.0))
    assert outcome.fired
    assert judge_trial(outcome, take_reference(make)).verdict == "survived"


class LocksAtFirst(Records):
    """Writes an index under a lock in its constructor, and reads without one."""

    wait = fcntl.LOCK_NB

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder)
        with open(cache / "index.lock", "ab") as lock:
            self._lock(lock)
            (cache / "index").write_text(str(len(self.paths)))

    def _lock(self, lock: Any) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX | self.wait)


class WaitsAtFirst(LocksAtFirst):
    wait = 0


class WritesAnyway(LocksAtFirst):
    def _lock(self, lock: Any) -> None:
        with contextlib.suppress(OSError):
            super()._lock(lock)


def test_locks_of_a_constructor(records):
    result = result_of(lambda cache: WaitsAtFirst(records, cache), CHECK)
    assert _verdicts(result) == {HELD: "survived", LACKING: "failed_cleanly"}
    result = failure_of(lambda cache: WritesAnyway(records, cache), CHECK)
    assert result.sentence == "the main process wrote index, but could not lock index.lock."


@rows(
    ("locks", "refused", "held", "is_violation"),
    [
        ([{"/t/a": ("/t/a.lock",)}], "/t/a.lock", {}, True),
        ([{"/t/a": ("/t/a.lock",)}], "/t/a.lock", {"/t/a": ("/t/b.lock",)}, True),
        ([{"/t/a": ("/t/a.lock",)}], "/t/a.lock", {"/t/a": ("/t/a.lock",)}, False),
        ([{"/t/a": ("/t/a.lock", "/t/b.lock")}], "/t/b.lock", {}, True),
        ([{"/t/a": ("/t/a.lock",)}], "/t/b.lock", {}, False),
        ([{"/t/a": ()}], "/t/a.lock", {}, False),
        ([{"/t/a": ("/t/a.lock",)}, {"/t/a": ("/t/a.lock",)}], "/t/a.lock", {}, True),
        ([{"/t/a": ("/t/a.lock",)}, {"/t/a": ()}], "/t/a.lock", {}, False),
        ([{"/t/b": ("/t/a.lock",)}], "/t/a.lock", {}, False),
    ],
)
def test_which_writes_need_the_lock(locks, refused, held, is_violation):
    processes = tuple(
        WorkerFacts(number, 7 + number, 1, {}, notes={"write_locks": each})
        for number, each in enumerate(locks)
    )
    fault_free = revised(ordinary(Pass(EPOCH_1)), processes=processes)
    firings = (Firing(0, 0, 7, "flock", refused, 1),)
    written = {"/t/a": FileCounts(opens=1, writes=1)}
    worker = WorkerFacts(0, 7, 1, written, notes={"write_locks": held})
    facts = (FaultFacts(LockError("*"), 1, 1, firings=firings),)
    outcome = revised(ordinary(Pass(EPOCH_1)), faults=facts, processes=(worker,))

    finding = find_unlocked_write(outcome, Reference("map", (), fault_free=fault_free))
    assert (finding is not None) == is_violation
