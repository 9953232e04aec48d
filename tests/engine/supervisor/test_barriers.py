"""Whose calls at a file wait for another worker, and until when."""

import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.races import OpenCall, Rendezvous
from support.waiting import allowed, crowd_out

PATH = "/data/cache.bin"
CREATE, READ = OpenCall(PATH, creates=True), OpenCall(PATH, reads=True)


class Race:
    """Two workers, and their writes in the order in which they continue."""

    def __init__(self, *unprovoked):
        self.timers = Timers()
        self.barrier = Rendezvous(self.timers, unprovoked)
        self.writes = []
        self.first, self.second = self.workers = [
            SimpleNamespace(name=name, pid=pid, loader=1, has_peers=True, notes=defaultdict(set))
            for pid, name in enumerate(("A", "B"), start=100)
        ]
        for worker in self.workers:
            self.barrier.note_start(worker)

    def open(self, worker, call):
        self.barrier.note_open(worker, call)

    def write(self, worker, path=PATH):
        waits = self.barrier.hold_write(worker, path, lambda: self.writes.append(worker))
        if not waits:
            self.writes.append(worker)
        return waits

    def write_new(self, worker, path=PATH):
        self.open(worker, CREATE._replace(path=path))
        return self.write(worker, path)

    def expire(self):
        self.timers.expire(everything=True)
        return self.first.notes["vain_waits"], self.second.notes["unwritten_files"]


def test_which_files_are_waited_for():
    """None that is left out; and not for ever for a worker that writes its own files."""
    race = Race("/data/*.lock")
    assert [False, True] == [race.write_new(race.first, f"/data/all.{n}") for n in ("lock", "bin")]
    race = Race()
    waits = []
    for number in range(8):
        waits.append(race.write_new(race.first, f"/data/{number}"))
        race.expire()
    assert waits == [True] * 6 + [False] * 2


@pytest.fixture(name="new")
def _new():
    return Race()


def test_the_creator_waits_until_another_worker_has_opened_the_file(new):
    assert new.write_new(new.first)
    longest = new.timers.timeout()
    new.open(new.second, READ)

    assert new.timers.timeout() < longest / 2
    assert new.expire() == (set(), {PATH})
    assert new.writes == [new.first]


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

    new = Race()
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


@pytest.mark.slow
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
