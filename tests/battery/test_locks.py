"""Checks of file locks, of threads that do not start, and of allocations that fail."""

import contextlib
import fcntl
import functools
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.workers import find_unlocked_write
from pytest_dataloader_faults.faults import LockError, ThreadExhaustion
from pytest_dataloader_faults.outcomes import (
    FaultFacts,
    FileCounts,
    Firing,
    Pass,
    Reference,
    WorkerFacts,
)
from support.corpus.locks import LocksByLibrary
from support.corpus.threads import KeepsThread, ReadsInPool
from support.datasets import Records
from support.facts import EPOCH_1, ordinary, raised, revised
from support.judging import judge_trial
from support.results import failure_of, result_of, verdicts_of
from support.rows import rows

pytestmark = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)

CHECK = "file-locks"
HELD, LACKING = "another job has the lock", "a drive without locks"


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
    assert verdicts_of(result) == {HELD: "survived", LACKING: "failed_cleanly"}
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


NAME = "thread-exhaustion"


def test_each_worker_starts_several(records):
    battery = Battery(functools.partial(ReadsInPool, records), Settings(samples=16))
    scenarios = CHECKS[NAME].plan_scenarios(battery.workload)

    assert [each.faults for each in scenarios] == [
        (ThreadExhaustion(),),
        (ThreadExhaustion(),),
        (ThreadExhaustion(nth=2),),
        (ThreadExhaustion(nth=2, times=1),),
    ]


def test_a_single_start_lacks_a_scenario(records):
    battery = Battery(functools.partial(KeepsThread, records), Settings(samples=16))

    assert len(CHECKS[NAME].plan_scenarios(battery.workload)) == 2


GONE = raised("RuntimeError", "DataLoader worker (pid(s) 4711) exited unexpectedly")


FAULT_FREE = ordinary(Pass(EPOCH_1, complete=True))


MEMORY = "memory-exhaustion"


def test_it_applies_to_datasets_that_allocate_much(records):
    result = result_of(lambda: Records(records), MEMORY)
    assert not result.applies
    assert "the workers allocate less than 64 KiB at once" in result.explanation
