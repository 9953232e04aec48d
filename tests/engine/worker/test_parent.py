"""A worker ends with the process that started it, also if that died before the worker looked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.waiting import until


def _look(starter: int, tell: int, *, at_once: bool) -> None:
    """In a worker: wait until *starter* is gone, look, and tell if this process still runs."""
    while os.getppid() == starter:
        time.sleep(0.01)
    end_with_parent(at_once=at_once)
    os.write(tell, b"it runs")


def _start_and_die(tell: int, *, at_once: bool) -> None:
    context = multiprocessing.get_context("fork")
    keywords = {"at_once": at_once}
    context.Process(target=_look, args=(os.getpid(), tell), kwargs=keywords).start()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at_once", [True, False], ids=["in a trial", "elsewhere"])
def test_a_parent_that_is_dead_already_is_missed(at_once):
    """The worker exits before it comes to anything else."""
    listen, tell = os.pipe()
    keywords = {"at_once": at_once}
    starter = multiprocessing.Process(target=_start_and_die, args=(tell,), kwargs=keywords)
    starter.start()
    os.close(tell)
    with open(listen, "rb") as told:  # Read to its end, which comes when both are gone.
        assert told.read() == b""
    starter.join()
    assert starter.exitcode == -signal.SIGKILL


class WatchesParent(Dataset[int]):
    """Its samples are the pid that torch's loop takes for the parent's."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return torch_worker.ManagerWatchdog().manager_pid


@pytest.mark.parametrize("engine", ["kernel", "python"])
def test_torch_looks_for_the_parent_that_the_worker_began_with(engine):
    """Not for the one that it has later."""
    with inject(ReadError("*.none"), engine=engine, require_fired=False):
        (batch,) = DataLoader(WatchesParent(), num_workers=1, batch_size=None)
    assert batch == os.getpid()


def test_an_iterator_that_is_dropped_ends_its_workers(records):
    """At once, as without faults, and not when the scope ends."""
    with inject(ReadError("*.none"), require_fired=False):
        iterator = iter(DataLoader(Records(records), num_workers=2, persistent_workers=False))
        next(iterator)
        workers = iterator._workers
        del iterator
        assert until(lambda: not any(each.is_alive() for each in workers), 4.0)
