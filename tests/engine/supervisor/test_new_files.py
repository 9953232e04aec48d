"""Which first writes wait for another worker, and until when."""

import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.new_files import NewFileBarrier, OpenCall
from pytest_dataloader_faults._engine.supervisor.shared_offsets import VainWaits
from support.waiting import allowed, crowd_out

PATH = "/data/cache.bin"


class Race:
    """Two workers; *resumed* has the files whose first write continued."""

    def __init__(self, *unprovoked):
        self.timers = Timers()
        self.barrier = NewFileBarrier(self.timers, VainWaits(unprovoked))
        self.resumed = []
        self.first, self.second = (
            SimpleNamespace(pid=100 + number, loader=1, has_peers=True, notes=defaultdict(set))
            for number in range(2)
        )
        self.start(self.first)
        self.start(self.second)

    def start(self, worker):
        self.barrier.note_start(worker)

    def create(self, worker, path=PATH):
        self._open(worker, OpenCall(path, creates=True))

    def open(self, worker, path=PATH, **how):
        self._open(worker, OpenCall(path, reads=True, **how))

    def _open(self, worker, call):
        assert not self.barrier.hold_open(worker, call, lambda: None)

    def write(self, worker, path=PATH):
        """Whether the write waits."""
        return self.barrier.hold_write(worker, path, lambda: self.resumed.append(path))


@pytest.fixture(name="race")
def _race():
    return Race()


def test_the_creator_waits_until_another_worker_has_opened_the_file(race):
    race.create(race.first)
    assert race.write(race.first)
    longest = race.timers.timeout()
    race.open(race.second)

    assert race.timers.timeout() < longest / 2
    race.timers.expire(everything=True)
    assert race.resumed == [PATH]
    assert race.second.notes["unwritten_files"] == {PATH}


@pytest.mark.parametrize(
    ("opened", "vain"), [({}, set()), ({"is_lock": True}, {"/data/2.bin"}), (None, {PATH})]
)
def test_a_vain_wait_is_noted_unless_another_worker_opens_a_file(race, opened, vain):
    """An open with O_EXCL fails, and shows nothing of the file."""
    race.create(race.first)
    race.write(race.first)
    if opened is not None:
        race.open(race.second, **opened)
        race.timers.expire(everything=True)
        race.create(race.first, "/data/2.bin")
        race.write(race.first, "/data/2.bin")
    race.timers.expire(everything=True)

    assert race.first.notes["vain_waits"] == vain


def test_a_worker_that_has_opened_it_before_the_write_reads_first(race):
    race.create(race.first)
    race.open(race.second)

    assert race.write(race.first)
    assert race.timers.timeout() < 0.05


def test_the_wait_begins_when_another_worker_has_started():
    race = Race()
    third = SimpleNamespace(pid=200, loader=2, has_peers=True)
    fourth = SimpleNamespace(pid=201, loader=2)
    race.start(third)
    race.create(third)
    race.write(third)

    assert race.timers.timeout() > 0.5
    race.start(fourth)
    assert race.timers.timeout() < 0.2


def test_a_worker_that_never_starts_is_awaited_once():
    race = Race()
    third = SimpleNamespace(pid=200, loader=2, has_peers=True, notes=defaultdict(set))
    seconds = []
    for number in range(2):
        race.create(third, f"/data/{number}")
        race.write(third, f"/data/{number}")
        seconds.append(race.timers.timeout())
        race.timers.expire(everything=True)

    assert seconds[1] < 0.2 < seconds[0]


def test_polling_a_lock_file_does_not_extend_the_wait(race):
    race.create(race.first)
    race.write(race.first)
    race.create(race.second)
    end = race.timers.timeout()
    for _ in range(100):
        race.create(race.second)

    assert race.timers.timeout() <= end
    assert race.second.notes["unwritten_files"] == set()


@pytest.mark.parametrize("is_creator", [True, False])
def test_only_the_first_write_of_the_creator_waits(race, is_creator):
    race.create(race.first)
    if is_creator:
        race.write(race.first)
        race.timers.expire(everything=True)

    assert not race.write(race.first if is_creator else race.second)


@pytest.mark.parametrize("path", ["/usr/lib/a.so", "/data/__pycache__/a.pyc"])
def test_files_that_are_no_data_are_not_waited_for(race, path):
    race.create(race.first, path)
    assert not race.write(race.first, path)


def test_a_file_that_is_left_out_is_not_waited_for():
    race = Race("/data/*.lock")
    waits = []
    for path in ("/data/all.lock", "/data/all.bin"):
        race.create(race.first, path)
        waits.append(race.write(race.first, path))

    assert waits == [False, True]


def test_a_file_that_was_there_is_not_waited_for(race):
    race.open(race.first)
    assert not race.write(race.first)


def test_an_only_worker_waits_for_nobody(race):
    race.first.has_peers = False
    race.create(race.first)
    assert not race.write(race.first)


def test_a_worker_that_writes_its_own_files_soon_stops_to_wait(race):
    waits = []
    for number in range(10):
        race.create(race.first, f"/data/{number}")
        waits.append(race.write(race.first, f"/data/{number}"))
        race.timers.expire(everything=True)

    assert waits == [True] * 6 + [False] * 4
    assert len(race.resumed) == 6


def test_a_wait_for_a_processor_does_not_count(busy_core):
    """The process has a small part of the core, so that the time lasts longer for it."""
    timers, done = Timers(), []
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        crowd_out(process.pid, busy_core)
        began = time.monotonic()
        timers.after(0.1, lambda: done.append("alone"))
        timers.after(0.1, lambda: done.append("patiently"), [process.pid])
        while len(done) < 2 and time.monotonic() < began + allowed(60.0):
            time.sleep(timers.timeout() or 0)
            timers.expire()
        process.kill()

    assert done == ["alone", "patiently"]
    assert time.monotonic() - began > 0.2
