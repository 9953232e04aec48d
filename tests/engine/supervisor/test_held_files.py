"""Files that workers bring along: more than a message takes, and those that share an offset."""

import errno
import itertools
import os
from collections import defaultdict
from types import SimpleNamespace

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.races import (
    SharedOffsetBarrier,
    VainWaits,
    share_description,
)
from pytest_dataloader_faults.faults import ClosedDescriptor, TruncatedFile
from support.attempts import epoch_of
from support.epochs import alone

SIZE = 64
MANY = 260
"""Beyond the 253 that the kernel takes in one message (unix(7))."""


class Sizes(Dataset):
    """Opens every file as it is made, and tells how much of each there is, or the errno."""

    def __init__(self, folder):
        self.files = [os.open(path, os.O_RDONLY) for path in sorted(folder.iterdir())]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        try:
            return len(os.pread(self.files[index], SIZE, 0))
        except OSError as error:
            return -error.errno

    def __del__(self):
        for file in self.files:
            os.close(file)


def _fill_folder(folder, count):
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:03}.bin").write_bytes(bytes([number % 256]) * SIZE)
    return folder


HELD = {
    "shorter": (TruncatedFile, SIZE // 2),
    "closed": (ClosedDescriptor, -errno.EBADF),
    "closed at a sample": (lambda glob: ClosedDescriptor(glob, sample=0), -errno.EBADF),
}
"""Faults, and what a read of a file gives then."""
CELLS = [
    *itertools.product([MANY], HELD),
    *((60, "shorter"), (61, "shorter"), (70, "closed")),  # A message of ours has 60.
]


def test_each_of_many_held_files_meets_the_fault(tmp_path):
    faults = [make(f"*/{name}/*.bin") for name, (make, _) in HELD.items()]
    with inject(*faults) as injection:
        for count, name in CELLS:
            dataset = Sizes(_fill_folder(tmp_path / str(count) / name, count))
            read, facts = epoch_of(injection, alone(dataset))
            assert [int(each) for each in read.batches] == [HELD[name][1]] * count
            assert facts[[*HELD].index(name)].fired == count
            del dataset  # It closes its files.


def test_duplicates_are_one_description_and_two_opens_are_not(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with open(path) as first_file, open(path) as second_file:
        duplicate = os.dup(first_file.fileno())
        try:
            assert share_description(first_file.fileno(), duplicate)
            assert not share_description(first_file.fileno(), second_file.fileno())
            assert os.get_blocking(duplicate)
        finally:
            os.close(duplicate)


def test_workers_at_two_files_take_turns_until_they_meet():
    """Whoever waits is relieved by the next one to come to another file."""
    events: list[str] = []
    meeting = SharedOffsetBarrier(Timers(), VainWaits())
    for worker, path in (("A", "x"), ("B", "y"), ("A", "z"), ("B", "z")):
        meeting.arrive(_worker(), path, lambda text=f"{worker} read {path}": events.append(text))

    assert events == ["A read x", "B read y", "A read z", "B read z"]


def _worker():
    return SimpleNamespace(notes=defaultdict(set))


@pytest.mark.parametrize("meets", [True, False])
def test_the_first_vain_wait_is_noted_unless_workers_meet(meets):
    timers, worker = Timers(), _worker()
    barrier = SharedOffsetBarrier(timers, VainWaits())
    for path in ("x", "y"):
        barrier.arrive(worker, path, lambda: None)
        timers.expire(everything=path == "x" or not meets)
    if meets:
        barrier.arrive(_worker(), "y", lambda: None)

    assert worker.notes["vain_waits"] == (set() if meets else {"x"})


def test_no_worker_waits_at_a_file_that_is_left_out():
    events: list[str] = []
    barrier = SharedOffsetBarrier(Timers(), VainWaits(("x",)))
    for path in ("x", "y"):
        barrier.arrive(_worker(), path, lambda path=path: events.append(path))

    assert events == ["x"]
