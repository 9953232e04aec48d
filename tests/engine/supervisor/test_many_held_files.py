"""Workers that bring along more open files than one message takes descriptors."""

from __future__ import annotations

import errno
import os

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset, inject
from pytest_dataloader_faults.faults import ClosedDescriptor, TruncatedFile
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
