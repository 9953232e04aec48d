"""After a scope everything is as it was: this process, its children, and the user's files."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import resource
import signal
import threading
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    DescriptorExhaustion,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from support.datasets import Records
from support.epochs import alone, epoch
from support.tries import WAYS, Tries
from support.waiting import until

FAULTS = [
    OpenError("*.rec"),
    ReadError("*.rec"),
    TruncatedFile("*.rec"),
    ClosedDescriptor("*.rec"),
    DescriptorExhaustion(),
    WorkerKilled(),
]


def _files(folder):
    """What a checksum and stat(2) say of each file."""
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def _this_process():
    """What a scope might change in it, and must not."""
    return {
        "patched": (DataLoader._get_iterator, vars(_BaseDataLoaderIter)["__init__"]),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "directory": os.getcwd(),
        "handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "filtered": Path("/proc/self/status").read_text(encoding="utf-8").count("Seccomp:\t2"),
    }


def _open_here():
    """Descriptor numbers, and what each one is."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that listed the folder.
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def _living():
    """Threads, and descendants that are not dead."""
    children = psutil.Process().children(recursive=True)
    processes = {each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE}
    return {*processes, *threading.enumerate()}


def _is_gone(before):
    """Whether all that was not there *before* has ended. torch's errors wait for the collector."""
    gc.collect()
    descriptors, living = before
    return descriptors.items() >= _open_here().items() and living >= _living()


@pytest.fixture(name="undisturbed")
def _undisturbed(records):
    """Compare before and after; the first loader of a process leaves torch's own things."""
    epoch(alone(Records(records)))
    before, there = (_this_process(), _files(records)), (_open_here(), _living())
    yield
    assert before == (_this_process(), _files(records))
    assert until(lambda: _is_gone(there)), (there, _open_here(), _living())


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("dataset", ["strict", pytest.param("tolerant", marks=pytest.mark.slow)])
def test_nothing_is_left_of_a_scope(undisturbed, records, dataset, fault):
    """Whether the dataset's error ended the loop or each was taken as a sample."""
    paths = [str(path) for path in sorted(records.iterdir())]
    source = Records(records) if dataset == "strict" else Tries(paths, WAYS["read"])
    with inject(fault) as injection:
        read = epoch(alone(source, num_workers=2))
    assert injection.fired
    assert (dataset == "strict" or isinstance(fault, WorkerKilled)) == (read.error is not None)


def test_nothing_is_left_of_a_loop_that_is_left_early(undisturbed, records):
    """Its workers are still busy when the scope ends; they end with their iterator."""
    with inject(ReadError("*.rec", nth=99), require_fired=False):
        iterator = iter(alone(Records(records), num_workers=2))
        next(iterator)
    iterator._shutdown_workers()


def test_nothing_is_left_of_a_loop_that_raises(undisturbed, records):
    """The scope ends the workers of a loop that nobody ended."""
    with inject(ReadError("*/03.rec")), pytest.raises(OSError, match="Errno 5"):
        list(DataLoader(Records(records), num_workers=2))


def test_nothing_is_left_of_a_scope_that_raises(undisturbed, records):
    """The body's own error takes the same way out."""
    with pytest.raises(ZeroDivisionError), inject(ReadError("*.rec")):
        _read_and_raise(records)


def _read_and_raise(records):
    epoch(alone(Records(records)))
    raise ZeroDivisionError


@pytest.mark.parametrize("fault", FAULTS[:4], ids=repr)
def test_files_are_never_written(records, fault):
    """Not even while the fault is armed: others see them whole."""
    before = _files(records)
    with inject(fault):
        paths = [str(path) for path in sorted(records.iterdir())]
        for _ in alone(Tries(paths, WAYS["read"])):
            assert before == _files(records)


class _DiesWithASegment(Records):
    """Its worker is killed between shm_open(3) and shm_unlink(3) of a segment."""

    def __getitem__(self, index):
        Path(f"/dev/shm/torch_{os.getpid()}_1_1").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("strategy", "stays"), [("file_descriptor", False), ("file_system", True)])
def test_the_segment_of_a_killed_worker(records, strategy, stays):
    """Nobody can receive it where torch unlinks it at once; otherwise it may be on its way."""
    before, pids = torch.multiprocessing.get_sharing_strategy(), []
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        with inject(ReadError("*.none"), require_fired=False) as injection:
            with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
                list(DataLoader(_DiesWithASegment(records), num_workers=1))
            pids += [each.pid for each in injection.workers]
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    segment = Path(f"/dev/shm/torch_{pids[0]}_1_1")
    assert until(lambda: not segment.exists(), patience=1.0 if stays else 10.0) is not stays
    segment.unlink(missing_ok=True)
