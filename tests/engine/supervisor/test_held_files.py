"""Files that workers bring along: more than a message takes, and those that share an offset."""

from __future__ import annotations

import errno
import os

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset, inject
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.shared_offsets import (
    SharedOffsetBarrier,
    are_one_description,
)
from pytest_dataloader_faults.faults import ClosedDescriptor, TruncatedFile
from support.corpus.archives import Unbuffered
from support.corpus.handles import MappedInInit, PositionalAtFirstUse, UnbufferedInInit
from support.epochs import alone, epoch

SIZE = 64
COUNTS = [60, 61, 70, 300]
"""About the 60 that go into one message, and beyond the 253 that the kernel takes (unix(7))."""


class OpensAll(Dataset):
    """Opens every file as it is made, and names the one that is too short."""

    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())
        self.files = [os.open(path, os.O_RDONLY) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = os.pread(self.files[index], SIZE, 0)
        if len(data) != SIZE:
            message = f"{self.paths[index]} is truncated"
            raise ValueError(message)
        return list(data)

    def __del__(self):
        for file in self.files:
            os.close(file)


class Sizes(OpensAll):
    """Tells how much of each file there is, or the errno."""

    def __getitem__(self, index):
        try:
            return len(os.pread(self.files[index], SIZE, 0))
        except OSError as error:
            return -error.errno


@pytest.fixture(name="folder", params=COUNTS, ids="{} files".format)
def _folder(request, tmp_path):
    return _filled(tmp_path, request.param)


def _filled(tmp_path, count):
    for number in range(count):
        (tmp_path / f"{number:03}.bin").write_bytes(bytes([number % 256]) * SIZE)
    return tmp_path


@pytest.mark.parametrize(
    ("fault", "gives"),
    [
        (TruncatedFile("*.bin"), SIZE // 2),
        (ClosedDescriptor("*.bin"), -errno.EBADF),
        (ClosedDescriptor("*.bin", sample=0), -errno.EBADF),
    ],
)
def test_each_of_many_held_files_meets_the_fault(folder, fault, gives):
    """However many messages that takes."""
    dataset = Sizes(folder)
    with inject(fault) as injection:
        read = epoch(alone(dataset))

    assert [int(each) for each in read.batches] == [gives] * len(dataset)
    assert injection.fired == len(dataset)


@pytest.mark.parametrize("reuse", [False, True])
def test_numbers_of_many_held_files_belong_to_others(folder, reuse):
    """Files of the same length stand in for all of them, or none does."""
    dataset = Sizes(folder)
    with inject(ClosedDescriptor("*.bin", reuse=reuse)):
        read = epoch(alone(dataset))

    assert {int(each) for each in read.batches} == {SIZE if reuse else -errno.EBADF}


@pytest.mark.parametrize(
    "count", [*(pytest.param(each, marks=pytest.mark.slow) for each in COUNTS[:-1]), COUNTS[-1]]
)
def test_a_healthy_dataset_with_many_open_files(tmp_path, count):
    """The battery's checks of damaged files fail it for none of the harness's own errors."""
    folder = _filled(tmp_path, count)
    names = ["truncated-half", "corrupted-file"]
    results = check_dataset(lambda: OpensAll(folder), only=names, on_fail=None)

    assert [(each.verdict, each.failed) for each in results] == [
        ("failed_cleanly", False),
        ("survived", False),
    ]


def _shared(make):
    (result,) = check_dataset(make, only="workers-agree", on_fail=None)
    shared = {path for worker in result.outcome.workers for path in worker.shared_offset_files}
    return result, {os.path.basename(path) for path in shared}


def test_file_read_by_several_workers_through_one_offset_is_named(records):
    """The evidence says which file it is, beside the samples that are wrong."""
    result, shared = _shared(lambda: UnbufferedInInit(records))

    assert {"records.pack"} == shared
    assert (
        "records.pack: opened before the fork, so 2 workers share its file offset"
        in result.explanation
    )


@pytest.mark.parametrize("kind", [Unbuffered, MappedInInit, PositionalAtFirstUse])
def test_file_that_each_worker_reads_on_its_own_is_not(kind, records):
    """Neither an offset of one's own, nor a read at a place, nor a mapping is shared."""
    result, shared = _shared(lambda: kind(records))

    assert set() == shared
    assert result.passed


def test_duplicates_are_one_description_and_two_opens_are_not(tmp_path):
    """And looking leaves their flags as they were."""
    path = tmp_path / "file"
    path.touch()
    with open(path) as one, open(path) as other:
        duplicate = os.dup(one.fileno())
        try:
            assert are_one_description(one.fileno(), duplicate)
            assert not are_one_description(one.fileno(), other.fileno())
            assert os.get_blocking(duplicate)
        finally:
            os.close(duplicate)


def test_workers_at_two_files_take_turns_until_they_meet():
    """Whoever waits is relieved by the next one to come to another file."""
    came: list[str] = []
    meeting = SharedOffsetBarrier(Timers())
    for worker, path in (("A", "x"), ("B", "y"), ("A", "z"), ("B", "z")):
        meeting.arrive(path, lambda text=f"{worker} read {path}": came.append(text))

    assert came == ["A read x", "B read y", "A read z", "B read z"]
