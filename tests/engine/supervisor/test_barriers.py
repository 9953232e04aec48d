"""Whose calls at a file wait for another worker, and until when."""

import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.races import (
    EmptiedFileBarrier,
    NewFileBarrier,
    OpenCall,
    VainWaits,
)
from support.waiting import allowed, crowd_out

PATH = "/data/cache.bin"
CREATE, READ = OpenCall(PATH, creates=True, empties=True), OpenCall(PATH, reads=True)


class Race:
    """Two workers, and their calls in the order in which they continue.

    Each call says whether it waits. One that waited is looked at again, as any other.
    """

    def __init__(self, barrier, *unprovoked):
        self.timers = Timers()
        self.barrier = barrier(self.timers, VainWaits(unprovoked))
        self.calls = []
        self.first, self.second = self.workers = [
            SimpleNamespace(name=name, pid=pid, loader=1, has_peers=True, notes=defaultdict(set))
            for pid, name in enumerate(("A", "B"), start=100)
        ]
        for worker in self.workers:
            self.barrier.note_start(worker)

    def open(self, worker, call):
        name = "reads" if call.reads else "creates"
        return self._call(self.barrier.hold_open, worker, name, call)

    def write(self, worker, path=PATH):
        return self._call(self.barrier.hold_write, worker, "writes", path)

    def write_new(self, worker, path=PATH):
        self.open(worker, CREATE._replace(path=path))
        return self.write(worker, path)

    def _call(self, hold, worker, name, argument):
        def resume():
            assert name == "writes" or not hold(worker, argument, lambda: None)
            self.calls.append(f"{worker.name} {name}")

        waits = hold(worker, argument, resume)
        if not waits:
            self.calls.append(f"{worker.name} {name}")
        return waits

    def expire(self):
        self.timers.expire(everything=True)
        return self.first.notes["vain_waits"], self.second.notes["unwritten_files"]


@pytest.fixture(name="race")
def _race():
    return Race(EmptiedFileBarrier)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_worker_reads_what_another_one_has_emptied(race, is_early):
    """Whether that one comes before the first write, or while it waits."""
    race.open(race.first, CREATE)
    if is_early:
        race.open(race.second, CREATE)
    race.write(race.first)
    if not is_early:
        race.open(race.second, CREATE)
    race.open(race.first, READ)
    race.write(race.second)
    race.expire()

    assert race.calls == ["A creates", "A writes", "B creates", "A reads", "B writes"]
    assert race.first.notes["unwritten_files"] == {PATH}


@pytest.mark.parametrize(
    ("calls", "vain", "unwritten"),
    [
        # A worker that only reads does not wait; during the first write, it shows a race.
        ([("open", 1, READ)], set(), set()),
        ([("write", 0, PATH), ("open", 1, READ)], set(), {PATH}),
        # A lock that another worker cannot create, and a file that is never read, show none.
        (
            [
                ("write", 0, PATH),
                ("open", 1, READ._replace(is_lock=True, empties=True, creates=True)),
            ],
            {PATH},
            set(),
        ),
        ([("open", 1, CREATE), ("write", 0, PATH), ("open", 0, CREATE)], {PATH}, set()),
    ],
)
def test_the_last_call_does_not_wait(race, calls, vain, unwritten):
    race.open(race.first, CREATE)
    waits = [getattr(race, call)(race.workers[at], argument) for call, at, argument in calls]

    assert not waits[-1]
    assert race.expire() == (vain, unwritten)


@pytest.mark.parametrize(
    "calls",
    [
        [("write", 0, PATH)],
        [("open", 1, CREATE)],
        [("open", 1, CREATE), ("write", 0, PATH), ("open", 0, READ)],
    ],
    ids=["write", "empty", "read"],
)
def test_a_worker_waits_a_moment_for_one_that_does_not_come(race, calls):
    race.open(race.first, CREATE)
    waits = [getattr(race, call)(race.workers[at], argument) for call, at, argument in calls]

    assert waits[-1]
    assert race.timers.timeout() < 0.5
    assert race.expire()[0] == {PATH}
    assert len(race.calls) == 1 + len(calls)


def test_each_file_is_emptied_late_only_once(race):
    for worker, call in ((race.first, CREATE), (race.second, CREATE)):
        race.open(worker, call)
    race.write(race.first)
    race.open(race.first, READ)
    race.write(race.second)
    race.expire()

    assert not any(race.open(worker, CREATE) for worker in race.workers)
    assert not any(race.write(worker) for worker in race.workers)


@pytest.mark.parametrize("barrier", [EmptiedFileBarrier, NewFileBarrier])
def test_which_files_are_waited_for(barrier):
    """None that is left out; and not for ever for a worker that writes its own files."""
    race = Race(barrier, "/data/*.lock")
    assert [False, True] == [race.write_new(race.first, f"/data/all.{n}") for n in ("lock", "bin")]
    assert not race.open(race.second, CREATE._replace(path="/data/all.lock"))
    race = Race(barrier)
    waits = []
    for number in range(8):
        waits.append(race.write_new(race.first, f"/data/{number}"))
        race.expire()
    assert waits == [True] * 6 + [False] * 2


@pytest.fixture(name="new")
def _new():
    return Race(NewFileBarrier)


def test_the_creator_waits_until_another_worker_has_opened_the_file(new):
    assert new.write_new(new.first)
    longest = new.timers.timeout()
    new.open(new.second, READ)

    assert new.timers.timeout() < longest / 2
    assert new.expire() == (set(), {PATH})
    assert new.calls[-1] == "A writes"


@pytest.mark.parametrize(("opened", "vain"), [(False, PATH), (True, "/data/2.bin")])
def test_a_vain_wait_is_noted_unless_another_worker_opens_a_file(new, opened, vain):
    """An open with O_EXCL fails, and shows nothing of the file."""
    new.write_new(new.first)
    if opened:
        new.open(new.second, READ._replace(is_lock=True))
        new.expire()
        new.write_new(new.first, "/data/2.bin")

    assert new.expire()[0] == {vain}


def test_a_worker_that_has_opened_it_before_the_write_reads_first(new):
    new.open(new.first, CREATE)
    new.open(new.second, READ)

    assert new.write(new.first)
    assert new.timers.timeout() < 0.05


def test_the_wait_begins_when_another_worker_has_started(new):
    """A worker that never starts is awaited once."""
    third = SimpleNamespace(name="C", pid=200, loader=2, has_peers=True, notes=defaultdict(set))
    new.barrier.note_start(third)
    new.write_new(third)
    assert new.timers.timeout() > 0.5
    new.expire()
    new.write_new(third, "/data/2.bin")
    assert new.timers.timeout() < 0.2

    new = Race(NewFileBarrier)
    new.barrier.note_start(third)
    new.write_new(third)
    new.barrier.note_start(SimpleNamespace(pid=201, loader=2))
    assert new.timers.timeout() < 0.2


def test_polling_a_lock_file_does_not_extend_the_wait(new):
    new.write_new(new.first)
    new.open(new.second, CREATE)
    end = new.timers.timeout()
    for _ in range(100):
        new.open(new.second, CREATE)

    assert new.timers.timeout() <= end
    assert new.second.notes["unwritten_files"] == set()


@pytest.mark.parametrize("is_creator", [True, False])
def test_only_the_first_write_of_the_creator_waits(new, is_creator):
    new.open(new.first, CREATE)
    if is_creator:
        new.write(new.first)
        new.expire()

    assert not new.write(new.first if is_creator else new.second)


@pytest.mark.parametrize("path", ["/usr/lib/a.so", "/data/__pycache__/a.pyc"])
def test_files_that_are_no_data_are_not_waited_for(new, path):
    assert not new.write_new(new.first, path)


def test_neither_a_file_that_was_there_nor_an_only_worker_waits(new):
    new.open(new.first, READ)
    assert not new.write(new.first)
    new.first.has_peers = False
    assert not new.write_new(new.first)


def test_a_wait_for_a_processor_does_not_count(busy_core):
    """The process has a small part of the core, so that the time lasts longer for it."""
    timers, done = Timers(), []
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        crowd_out(process.pid, busy_core)
        began = time.monotonic()
        timers.after(0.1, lambda: done.append("alone"))
        timers.after(0.04, lambda: done.append("patiently"), [process.pid])
        while len(done) < 2 and time.monotonic() < began + allowed(60.0):
            time.sleep(timers.timeout() or 0)
            timers.expire()
        process.kill()

    assert done == ["alone", "patiently"]
    assert time.monotonic() - began > 0.2
