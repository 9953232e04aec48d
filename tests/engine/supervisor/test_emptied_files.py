"""Whose calls wait at a file that one worker writes and another one empties, and until when."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.new_files import EmptiedFileBarrier, OpenCall
from pytest_dataloader_faults._engine.supervisor.shared_offsets import VainWaits

PATH = "/data/cache.bin"
CREATE, READ = OpenCall(PATH, creates=True, empties=True), OpenCall(PATH, reads=True)


class Race:
    """Two workers, and their calls in the order in which they continue."""

    def __init__(self, *unprovoked):
        self.timers = Timers()
        self.barrier = EmptiedFileBarrier(self.timers, VainWaits(unprovoked))
        self.calls = []
        self.first, self.second = (
            SimpleNamespace(name=name, pid=pid, loader=1, has_peers=True, notes=defaultdict(set))
            for pid, name in enumerate(("A", "B"), start=100)
        )
        for worker in (self.first, self.second):
            self.barrier.note_start(worker)

    def open(self, worker, call):
        """Whether *call* waits. One that waited is looked at again, as any other."""
        name = "reads" if call.reads else "creates"
        return self._call(self.barrier.hold_open, worker, name, call)

    def write(self, worker, path=PATH):
        return self._call(self.barrier.hold_write, worker, "writes", path)

    def _call(self, hold, worker, name, argument):
        def resume():
            assert name == "writes" or not hold(worker, argument, lambda: None)
            self.calls.append(f"{worker.name} {name}")

        waits = hold(worker, argument, resume)
        if not waits:
            self.calls.append(f"{worker.name} {name}")
        return waits


@pytest.fixture(name="race")
def _race():
    return Race()


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
    race.timers.expire(everything=True)

    turns = ["A creates", "A writes", "B creates", "A reads", "B writes"]
    assert race.calls == turns
    assert race.first.notes == {"unwritten_files": {PATH}}


def test_a_worker_that_only_reads_does_not_wait(race):
    race.open(race.first, CREATE)

    assert not race.open(race.second, READ)
    assert race.second.notes == {}


def test_a_worker_that_reads_while_the_first_write_waits_shows_a_race(race):
    race.open(race.first, CREATE)
    race.write(race.first)

    assert not race.open(race.second, READ)
    race.timers.expire(everything=True)
    assert race.second.notes["unwritten_files"] == {PATH}
    assert race.first.notes["vain_waits"] == set()


def test_a_lock_that_another_worker_cannot_create_shows_no_race(race):
    race.open(race.first, CREATE)
    race.write(race.first)

    assert not race.open(race.second, READ._replace(is_lock=True, empties=True, creates=True))
    race.timers.expire(everything=True)
    assert race.second.notes == {}
    assert race.first.notes["vain_waits"] == {PATH}


def test_a_file_that_is_never_read_shows_no_race(race):
    """Such as one with the state of the worker: the wait of the second worker is in vain."""
    race.open(race.first, CREATE)
    race.open(race.second, CREATE)
    race.write(race.first)

    assert not race.open(race.first, CREATE)
    race.timers.expire(everything=True)
    assert race.first.notes["vain_waits"] == {PATH}


@pytest.mark.parametrize(
    "calls",
    [
        [(Race.write, "first")],
        [(Race.open, "second", CREATE)],
        [
            *[(Race.open, "second", CREATE), (Race.write, "first")],
            (Race.open, "first", READ),
        ],
    ],
    ids=["write", "empty", "read"],
)
def test_a_worker_waits_a_moment_for_one_that_does_not_come(race, calls):
    race.open(race.first, CREATE)
    for call, name, *rest in calls:
        waits = call(race, getattr(race, name), *rest)
    assert waits
    assert race.timers.timeout() < 0.5
    race.timers.expire(everything=True)

    assert len(race.calls) == 1 + len(calls)
    assert race.first.notes["vain_waits"] == {PATH}


def test_each_file_is_emptied_late_only_once(race):
    race.open(race.first, CREATE)
    race.open(race.second, CREATE)
    race.write(race.first)
    race.open(race.first, READ)
    race.write(race.second)
    race.timers.expire(everything=True)

    assert not race.open(race.first, CREATE)
    assert not race.open(race.second, CREATE)
    assert not race.write(race.first)
    assert not race.write(race.second)


def test_a_file_that_is_left_out_is_not_waited_for():
    race = Race("/data/*.bin")
    race.open(race.first, CREATE)

    assert not race.open(race.second, CREATE)
    assert not race.write(race.first)


def test_a_worker_that_writes_its_own_files_soon_stops_to_wait(race):
    waits = []
    for number in range(8):
        race.open(race.first, CREATE._replace(path=f"/data/{number}"))
        waits.append(race.write(race.first, f"/data/{number}"))
        race.timers.expire(everything=True)

    assert waits == [True] * 6 + [False] * 2
