"""After a scope everything is as it was: this process, its children, and the user's files."""

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
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerKilled,
)
from support.datasets import Records
from support.epochs import alone, epoch
from support.inner import PYTHONPATH, start_python
from support.tries import WAYS, Tries
from support.waiting import output_of, until

FILE_FAULTS = (OpenError, ReadError, TruncatedFile, CorruptedFile, ClosedDescriptor)
SCOPES = [
    ("strict", [WorkerKilled()]),
    ("tolerant", [kind(f"*/{number:02}.rec") for number, kind in enumerate(FILE_FAULTS)]),
]


def _files(folder):
    """What a checksum and stat(2) say of each file."""
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def _process_state():
    """What a scope might change in it, and must not."""
    return {
        "patched": (DataLoader._get_iterator, vars(_BaseDataLoaderIter)["__init__"]),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "directory": os.getcwd(),
        "handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "filtered": Path("/proc/self/status").read_text(encoding="utf-8").count("Seccomp:\t2"),
    }


def _list_descriptors():
    """Descriptor numbers, and what each one is."""
    targets = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that listed the folder.
            targets[number] = os.readlink(f"/proc/self/fd/{number}")
    return targets


def _list_living():
    """Threads, and descendants that are not dead."""
    children = psutil.Process().children(recursive=True)
    processes = {each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE}
    return {*processes, *threading.enumerate()}


def _has_ended(earlier_state):
    """Whether everything that *earlier_state* lacks has ended.

    Errors of torch stay until they are collected.
    """
    gc.collect()
    descriptors, living = earlier_state
    return descriptors.items() >= _list_descriptors().items() and living >= _list_living()


@pytest.fixture(name="undisturbed")
def _undisturbed(records):
    """Compare before and after.

    The first loader of a process leaves torch's own things.
    """
    with inject(ReadError("*.none"), require_fired=False):
        epoch(alone(Records(records)))
    earlier_state, earlier_resources = (
        (_process_state(), _files(records)),
        (_list_descriptors(), _list_living()),
    )
    yield
    assert earlier_state == (_process_state(), _files(records))
    assert until(lambda: _has_ended(earlier_resources)), (
        earlier_resources,
        _list_descriptors(),
        _list_living(),
    )


@pytest.mark.parametrize(("dataset", "faults"), SCOPES)
def test_nothing_is_left_of_a_scope(undisturbed, records, paths, dataset, faults):
    source = Records(records) if dataset == "strict" else Tries(paths, WAYS["read"])
    with inject(*faults) as injection:
        read = epoch(alone(source, num_workers=2))
    assert all(each.fired for each in injection.faults)
    assert (dataset == "strict") == (read.error is not None)


def _leave_early(records):
    with inject(ReadError("*.rec", nth=99), require_fired=False):
        iterator = iter(alone(Records(records), num_workers=2))
        next(iterator)
    iterator._shutdown_workers()


def _raise_in_the_scope(records):
    with contextlib.suppress(ZeroDivisionError), inject(ReadError("*.rec")):
        assert 1 / len(epoch(alone(Records(records))).batches)


@pytest.mark.parametrize("use", [_leave_early, _raise_in_the_scope])
def test_nothing_is_left_of_a_scope_that_ends_early(undisturbed, records, use):
    use(records)


SHARES_BY_NAME = """
import os
import torch
from torch.utils.data import DataLoader
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError

torch.multiprocessing.set_sharing_strategy("file_system")
with inject(ReadError("*.none"), require_fired=False):
    batches = list(DataLoader([torch.zeros(4)] * 4, num_workers=2))
assert torch.zeros(4).share_memory_().is_shared()
os.kill(os.getpid(), 9)
"""


def _list_processes(folder):
    """What has *folder* in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().values():
                found.append(process)
    return found


@pytest.mark.slow
def test_torch_shares_memory_by_name_after_a_scope(tmp_path):
    """Processes that workers started keep the names, also for this one, and end after it."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path)}
    process = start_python("-c", SHARES_BY_NAME, env=environment)

    assert output_of(process) == ("", "")
    assert -signal.SIGKILL == process.returncode
    assert until(lambda: not _list_processes(tmp_path)), _list_processes(tmp_path)
    assert list(tmp_path.iterdir()) == []
