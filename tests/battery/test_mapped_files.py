"""Files that are mapped, before the workers start or in them, and what can be asked of them."""

import mmap

import numpy as np
import pytest
import torch

from pytest_dataloader_faults import check_dataset
from support.datasets import SIZE
from support.results import failure_of
from support.specimens import Packed, SharedHandle

CHECK = "closed-descriptor"


class ArrowMapped(Packed):
    """Maps the file by Arrow, which closes the descriptor then."""

    def __init__(self, folder):
        super().__init__(folder)
        self.data = self.mapped()

    def mapped(self):
        arrow = pytest.importorskip("pyarrow")
        return np.frombuffer(arrow.memory_map(str(self.pack)).read_buffer(), np.uint8)

    def __getitem__(self, index):
        return torch.tensor(self.data[index * SIZE : (index + 1) * SIZE])

    def __getstate__(self):
        return {**self.__dict__, "data": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.data = self.mapped()


class NumpyMapped(ArrowMapped):
    """Maps the file by NumPy, whose mapping keeps a descriptor."""

    def mapped(self):
        return np.memmap(self.pack, np.uint8, "r")


class MappedInWorker(NumpyMapped):
    """Maps the file for the first sample."""

    def __init__(self, folder):
        Packed.__init__(self, folder)
        self.data = None

    def __getitem__(self, index):
        if self.data is None:
            self.data = self.mapped()
        return super().__getitem__(index)


class ZerosIfClosed(SharedHandle):
    """Has zeros for what it cannot read through its descriptor, which all workers share."""

    def __getitem__(self, index):
        try:
            with mmap.mmap(self.handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return torch.tensor(list(data[index * SIZE : (index + 1) * SIZE]))
        except (OSError, ValueError):
            return torch.zeros(SIZE, dtype=torch.int64)


def test_zeros_in_place_of_a_closed_file_are_found(records):
    assert failure_of(lambda: ZerosIfClosed(records), CHECK).verdict == "corrupted"


def test_what_is_out_of_reach_is_grouped(records):
    """The summary has all checks of a file that was mapped before; others have no such reason.

    Its descriptor can be closed.
    """
    only = ("open-error", "short-read", "hung-read", "write-error")
    results = check_dataset(lambda: NumpyMapped(records), only=(*only, CHECK))
    by_name = {each.check: each for each in results}

    closed = by_name.pop(CHECK)
    assert (closed.passed, closed.outcome.fired > 0) == (True, True)
    assert {each.applies for each in by_name.values()} == {False}
    causes = {name: each.cause for name, each in by_name.items()}
    assert "writes outside" in causes.pop("write-error")
    assert {*causes.values()} == {"its files were opened or mapped before the workers started"}


def test_a_mapping_of_a_worker_is_cut_off_and_closed(records):
    only = ("truncated-file", CHECK)
    cut, closed = check_dataset(lambda: MappedInWorker(records), only=only, on_fail=None)

    assert (cut.applies, cut.outcome.fired > 0) == (True, True)
    assert (closed.passed, closed.outcome.fired > 0) == (True, True)
