"""Threads and processes that cannot start, in each way in which programs start them."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.scope import arm_faults
from pytest_dataloader_faults.faults import ThreadExhaustion
from support.attempts import attempt
from support.contracts.starts import DONE, WAYS
from support.corpus.threads import ReadsInPool
from support.epochs import alone, epoch, shares_memory_by
from support.tries import Reads, Tries

pytestmark = pytest.mark.usefixtures("engine")
TEMPORARILY = os.strerror(errno.EAGAIN)
NO_THREAD = "RuntimeError: can't start new thread"


def _call(name):
    return WAYS[name](None)


def test_triggers_count_starts():
    gave, injection = attempt(["Thread"] * 4, _call, ThreadExhaustion(nth=2, times=1))

    assert gave == [DONE, NO_THREAD, DONE, DONE]
    (firing,) = injection.faults[0].firings
    assert (firing.call, firing.path, firing.fetch) == ("clone3", None, 2)


TENSORS = [torch.full((1000,), number) for number in range(16)]
"""Samples that torch's own threads of a worker pass on."""


def _start_thread_before(tensor):
    WAYS["Thread"](None)
    return tensor


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
def test_threads_of_torch_start(sharing):
    """Of its queue, and of the descriptors of tensors, in spite of a fault for all threads."""
    with shares_memory_by(sharing), inject(ThreadExhaustion(), require_fired=False) as injection:
        read = epoch(DataLoader(TENSORS, batch_size=1, num_workers=2))

    assert len(read.batches) == 16
    assert not injection.matched
    assert "no targeted worker started a thread or a process" in injection.explain_unfired()


def test_the_loop_continues_after_an_error():
    with inject(ThreadExhaustion(times=1)) as injection:
        dataset = Reads(TENSORS, _start_thread_before)
        iterator = iter(DataLoader(dataset, batch_size=1, num_workers=1))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(iterator)
        assert len(list(iterator)) == 15
    assert injection.mentioned == 1


def test_a_process_of_a_worker_cannot_start_another():
    program = "import os, sys\ntry: os.fork()\nexcept OSError as error: print(error)"

    def run(_):
        return subprocess.check_output([sys.executable, "-c", program], text=True).strip()

    (gave,), _ = attempt(["x"], run, ThreadExhaustion(nth=2))
    assert gave == f"[Errno 11] {TEMPORARILY}"


def test_a_watched_run_counts_starts():
    with arm_faults(watch_files=True) as injection:
        epoch(alone(Tries(["Thread", "subprocess", "Thread"], _call)))
        epoch(DataLoader(TENSORS, batch_size=1, num_workers=1))
    counts = [each.counts_of("starts") for each in injection.workers]
    assert counts == [{"thread": 2, "process": 1}, {}]


@pytest.mark.slow
def test_workers_that_are_not_forked(records):
    options = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": "forkserver"}
    with inject(ThreadExhaustion()) as injection:
        read = epoch(DataLoader(ReadsInPool(records), **options))
    assert "can't start new thread" in read.text
    assert read.batches == []
    assert injection.mentioned == 1
