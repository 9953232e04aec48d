"""Waits that should provoke races, but are in vain, because the other worker waits for a lock."""

import contextlib
import time
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout

from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import WorkerFacts
from pytest_dataloader_faults.outcomes.repeats import run_in_both_orders, run_without_vain_waits
from pytest_dataloader_faults.wire import FileCounts
from support.corpus.caches import CacheRenamed, CacheSeenEarly
from support.results import failure_of, result_of


@contextlib.contextmanager
def _locked_briefly(path):
    """Tries to get a lock a few times, which is shorter than a first write is delayed."""
    lock = FileLock(path)
    for _ in range(40):  # On a busy machine, that lasts longer.
        with contextlib.suppress(Timeout), lock.acquire(blocking=False):
            yield
            return
        time.sleep(0.001)
    raise TimeoutError(f"{path.name} is in use")


class _LockedBriefly(CacheSeenEarly):
    """Writes and reads the cache while it holds a lock: healthy."""

    def __init__(self, folder, cache):
        super().__init__(folder, cache)
        self.data = b"".join(path.read_bytes() for path in self.paths)

    def fill(self):
        self.cache.write_bytes(self.data)

    def __getitem__(self, index):
        with _locked_briefly(self.cache.with_suffix(".lock")):
            return super().__getitem__(index)


class _Logs(CacheSeenEarly):
    """Lists what it reads in a file, for which it holds a lock, but fills the cache without one."""

    logs = ("log.txt",)

    def __getitem__(self, index):
        for name in self.logs:
            log = self.cache.with_name(name)
            with _locked_briefly(log.with_suffix(".lock")), open(log, "a") as file:
                file.write(f"{index}\n")
        return super().__getitem__(index)


class _LogsAndRenames(_Logs, CacheRenamed):
    """Names the cache when it is complete: healthy."""


class _KeepsLogs(_LogsAndRenames):
    """Has several such files: healthy."""

    logs = ("a.txt", "b.txt", "c.txt", "d.txt")


def test_a_vain_wait_hides_no_race_at_another_file(records):
    result = failure_of(lambda folder: _Logs(records, folder), "workers-agree")

    assert result.cause == "reads a file while another worker still writes it"
    assert "created all.bin, and another opened it" in result.explanation


@pytest.mark.parametrize("kind", [_LockedBriefly, _KeepsLogs])
def test_a_short_timeout_of_a_lock_is_healthy(records, kind):
    result = result_of(lambda folder: kind(records, folder), "workers-agree")

    assert result.passed, result.explanation


def _repeat(vain_waits, passes=()):
    """What is left out of each trial, if all fail but those that *passes* numbers."""
    trials = []

    def run(collisions):
        trials.append(collisions.unprovoked)
        number = len(trials)
        return SimpleNamespace(vain_waits=vain_waits(number), has_failed=number not in passes)

    run_without_vain_waits(run, lambda outcome: outcome.has_failed)
    return trials


def test_each_repeat_leaves_out_more_waits_and_the_last_one_all():
    trials = _repeat(lambda number: [f"/data/{'abcde'[number]}.txt"])

    assert trials == [
        (),
        ("/data/b.txt",),
        ("/data/b.txt", "/data/c.txt"),
        ("/data/b.txt", "/data/c.txt", "*"),
    ]


@pytest.mark.parametrize(
    ("repeats", "case"),
    [
        (0, {"vain_waits": lambda _: []}),
        (0, {"vain_waits": lambda _: ["/a"], "passes": [1]}),
        (1, {"vain_waits": lambda number: ["/a"][: number == 1]}),
        (1, {"vain_waits": lambda _: ["/a"], "passes": [2]}),
    ],
)
def test_only_a_failure_after_a_vain_wait_is_repeated(repeats, case):
    assert len(_repeat(**case)) == 1 + repeats


def _run_orders(*, writers=2, fails=()):
    """The orders of the trials, and that of the outcome, if those that it *fails* in fail."""
    orders = []

    def run(collisions):
        orders.append("late" if collisions.empties_late else "at once")
        workers = [
            WorkerFacts(number, number, 1, {"/data/all.bin": FileCounts(writes=number < writers)})
            for number in range(2)
        ]
        return SimpleNamespace(vain_waits=(), workers=workers, order=orders[-1])

    outcome = run_in_both_orders(run, lambda outcome: outcome.order in fails)
    return orders, outcome.order


@pytest.mark.parametrize(
    ("case", "orders", "order"),
    [
        ({}, ["at once", "late"], "at once"),
        ({"fails": ["late"]}, ["at once", "late"], "late"),
        ({"fails": ["at once"]}, ["at once"], "at once"),
        ({"writers": 1, "fails": ["late"]}, ["at once"], "at once"),
    ],
)
def test_what_several_workers_write_is_tried_in_both_orders(case, orders, order):
    assert _run_orders(**case) == (orders, order)


@pytest.mark.parametrize(
    ("name", "next_name", "is_left_out"),
    [
        ("/data/all.4711.tmp", "/data/all.4712.tmp", True),
        ("/data/all.4711.tmp", "/data/all.bin", False),
        ("/data/[a]*.tmp", "/data/[a]*.tmp", True),
        ("/data/[a]*.tmp", "/data/abc.tmp", False),
        ("a connection to ::1:80", "a connection to ::1:81", True),
    ],
)
def test_the_process_id_in_a_name_may_differ(name, next_name, is_left_out):
    (_, globs) = _repeat(lambda _: [name], passes=[2])

    assert GlobMatcher(globs).means(next_name) == is_left_out
