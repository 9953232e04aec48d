"""Epochs over pinned batches that nobody reads to their end."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import PinMemoryThreadDeath, ReadError
from support.children import in_a_process
from support.datasets import Records
from support.waiting import until


def _descriptors():
    return len(os.listdir("/proc/self/fd"))


def _begin(loader):
    """Take the first batch of an epoch and leave it; the threads and processes that it started."""
    iterator = iter(loader)
    next(iterator)
    loader._iterator = None  # Of persistent workers; as the loader's own end would do.
    return [iterator._pin_memory_thread], [each.pid for each in iterator._workers]


def _abandon(loader):
    """Begin two epochs under a fault that is armed for a batch that nobody comes to."""
    with inject(PinMemoryThreadDeath(at=100), require_fired=False):
        first, second = _begin(loader), _begin(loader)
    gc.collect()
    return [thread for each in (first, second) for thread in each[0]], first[1] + second[1]


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_abandoned_epoch_leaves_nothing(accelerator, records, persistent):
    """Threads, workers and descriptors are gone once the scope has ended."""
    options = {"batch_size": 2, "num_workers": 2, "pin_memory": True}

    def body():
        loader = DataLoader(Records(records), **options, persistent_workers=persistent)
        _abandon(loader)  # What the first use opens for good is no leak.
        before = _descriptors()
        threads, workers = _abandon(loader)
        assert until(lambda: not any(each.is_alive() for each in threads))
        assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
        assert until(lambda: _descriptors() <= before), (before, _descriptors())

    assert in_a_process(body) == ""


def test_epoch_that_failed_leaves_no_thread(accelerator, records):
    """An error of a worker, and the loop ends there."""

    def body():
        loader = DataLoader(Records(records), batch_size=2, num_workers=2, pin_memory=True)
        with inject(ReadError(nth=3)), pytest.raises(OSError, match="Input/output error"):
            list(loader)
        assert until(lambda: threading.active_count() == 1)

    assert in_a_process(body) == ""
