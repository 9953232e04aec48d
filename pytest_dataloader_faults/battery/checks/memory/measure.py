"""Measure the memory of one worker that reads samples in a row [in the trial]."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DataLoader

from pytest_dataloader_faults._engine.arm import end_with_parent, start_unarmed
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.libc import Prctl, prctl
from pytest_dataloader_faults._engine.system.processes import fork, run_in_child
from pytest_dataloader_faults._trial.journal import PhaseStarted
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    dataset_of,
    end_workers,
    length_of,
    reraise_own_error,
)
from pytest_dataloader_faults._trial.resources import collect_and_trim
from pytest_dataloader_faults._trial.samplers import DEFAULT_SAMPLERS
from pytest_dataloader_faults._trial.samples import Draw
from pytest_dataloader_faults.battery.checks.memory import (
    BLOCKS,
    TIMES_TO_CONFIRM,
    WorkerMemory,
    block_size,
    growth_of,
)
from pytest_dataloader_faults.outcomes.chains import shorten_chain
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.outcomes.text import format_value, shorten

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

# Some facts about pages of a forked process. Each is shared with the parent until either writes to
# it; the writer gets a copy, and the other one has the page for itself. So a page that a worker
# does not share may be one that the main process wrote to. A third process, which is forked at the
# same time and sleeps, shares all pages, so that only those that the worker wrote to are the
# worker's alone. A copy is a page, also of a huge page: the kernel splits it first. Pages of mapped
# files do not count, although smaps calls them dirty until they are on the disk.
#
# Some facts about free memory. Python and malloc(3) put new objects between the inherited ones,
# where others were freed, and so copy pages with every sample for a long time. A worker that has
# filled these places first puts new objects into new pages, which it uses again for the next
# sample. Whole pages that are free in the heap of malloc(3), megabytes after a large dataset was
# dropped, are returned before the fork: then they count as new ones. The garbage collector writes
# to every object: so it leaves out those that the worker inherited.


CALLS_USER_CODE = True

_SHARE_OF_DEADLINE = 0.6
_SHARE_OF_SAMPLER = 0.5
"""Of that share. Without it, no time would be left to read samples."""
_ALLOCATED = ("Anonymous", "Private_Hugetlb", "Swap")
_SMALL_SIZES, _SMALL_COUNT, _BYTES_HEADER = range(48, 513, 16), 2000, 33
_LARGE_SIZES, _LARGE_BYTES = (
    (600, 1000, 1600, 2600, 4200, 7000, 12_000, 20_000, 40_000, 80_000),
    1 << 20,
)
_BATCH_SIZE = 32
"""A batch costs as much time as dozens of small samples."""


class _Blocks:
    """A sampler that draws the next *size* of the *indices* each time it is iterated."""

    def __init__(self, indices: Iterable[int], size: int) -> None:
        self._indices = iter(indices)
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self._indices, self.size)


class _FillFreeMemory:
    """A ``worker_init_fn`` that runs the user's own, and then fills the free memory.

    From then on, new memory comes in small pages.
    """

    def __init__(self, init_fn: Any) -> None:
        self._then = init_fn
        self._fillers: list[Any] = []

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        prctl(Prctl.SET_THP_DISABLE, 1)
        if self._then is not None:
            self._then(worker)
        self._fillers += [object() for _ in range(_SMALL_COUNT)]
        self._fillers += map(float, range(_SMALL_COUNT))
        for size in _SMALL_SIZES:
            self._fillers += [bytes(size - _BYTES_HEADER) for _ in range(_SMALL_COUNT)]
        for size in _LARGE_SIZES:
            self._fillers += [bytearray(size) for _ in range(_LARGE_BYTES // size)]


@contextlib.contextmanager
def _shared_memory() -> Iterator[None]:
    """Have a process that sleeps share the memory of this one as it is now."""
    collect_and_trim()
    gc.freeze()
    sleeper = fork()
    if not sleeper:
        try:
            end_with_parent(at_once=True)
            signal.pause()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
        gc.unfreeze()


def measure(process: TrialProcess, loader: DataLoader[Any]) -> None:
    """Write down the memory of a worker that reads what *loader* draws, in a row."""
    process.journal.write(PhaseStarted(START, time.monotonic()))
    seconds = _SHARE_OF_DEADLINE * process.job.deadline
    until = time.monotonic() + seconds
    indices = indices_of_epoch(loader, process.sampler, _SHARE_OF_SAMPLER * seconds)
    memory = WorkerMemory(
        len(indices),
        loader.num_workers,
        process.job.settings.contract.worker_memory,
        stays=loader.persistent_workers,
        page=proc.PAGE,
    )
    try:
        with _shared_memory():
            memory = _read_in_a_row(loader, indices, memory, until)
    except USERS_ERRORS as error:
        if not isinstance(error, OSError):  # This package raises one if the worker has ended.
            reraise_own_error(error)
        memory = replace(memory, error=shorten(shorten_chain(format_value(error))))
    process.journal.write(memory)


def _read_in_a_row(
    loader: DataLoader[Any], indices: Sequence[int], memory: WorkerMemory, until: float
) -> WorkerMemory:
    """*memory* after one worker has read blocks of samples, until it shows enough."""
    count, size = len(indices), block_size(len(indices))
    max_count = BLOCKS * size * TIMES_TO_CONFIRM
    # The first objects of a dataset fill gaps between older ones, and copy more than others.
    start, drawn = max(0, count - max_count) // 2, 0
    blocks = _Blocks(indices[start:], size)
    reader = _one_worker(loader, blocks)
    try:
        while drawn < max_count and start + drawn + blocks.size <= count:
            for _ in reader:
                if time.monotonic() > until:
                    return memory
            drawn += blocks.size
            memory = _measure(memory, reader._iterator._workers[0].pid, drawn)  # type: ignore[union-attr]
            if len(memory.samples) == BLOCKS:
                blocks.size *= TIMES_TO_CONFIRM  # Larger blocks confirm that memory grows.
            if len(memory.samples) >= BLOCKS and growth_of(memory) is None:
                break
    finally:
        end_workers(reader._iterator)
    return memory


def _measure(memory: WorkerMemory, pid: int, drawn: int) -> WorkerMemory:
    """*memory*, with that of the worker *pid* after so many samples were *drawn*."""
    unshared = len(proc.unshared_pages(pid)) * proc.PAGE
    allocated = proc.memory_of(pid, _ALLOCATED)
    return replace(
        memory,
        samples=(*memory.samples, drawn),
        unshared=(*memory.unshared, unshared),
        allocated=(*memory.allocated, allocated),
        shared=memory.shared or max(0, allocated - unshared),
    )


def _one_worker(loader: DataLoader[Any], blocks: _Blocks) -> DataLoader[Any]:
    """A loader like *loader* with one worker, which stays, and the samples of *blocks*."""
    return DataLoader(
        dataset_of(loader),
        batch_size=_BATCH_SIZE if loader._auto_collation else None,
        sampler=blocks,
        num_workers=1,
        collate_fn=loader.collate_fn,
        multiprocessing_context="fork",
        worker_init_fn=partial(start_unarmed, None, _FillFreeMemory(loader.worker_init_fn)),
        persistent_workers=True,
    )


# Some facts about which samples to read. A worker copies only what it reads: a sampler of 2000
# samples leaves the rest of a large dataset alone, and may leave samples out because they cannot be
# read. A sampler may change when it is iterated, so a child does that.


_MOST_TIMES = 4
"""An endless sampler is iterated until it has drawn this many times the samples there are."""
_INDEX_TYPE = "q"


def indices_of_epoch(loader: DataLoader[Any], sampler: Any, seconds: float) -> Sequence[int]:
    """The samples that *sampler* has *loader* draw in an epoch, each once, by their indices.

    Empty if they are unknown: not all are numbers below the length of the dataset, or the sampler
    fails, or takes longer than *seconds*.
    """
    length = length_of(dataset_of(loader)) or 0
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    is_of_torch = type(inner) in DEFAULT_SAMPLERS and not getattr(inner, "replacement", False)
    if is_of_torch and len(inner) == len(inner.data_source):
        return range(length)
    indices = array(_INDEX_TYPE)
    indices.frombytes(run_in_child(lambda: _sort_draws(loader, sampler, length), seconds))
    return indices


def _sort_draws(loader: DataLoader[Any], sampler: Any, length: int) -> bytes:
    """The different indices that *sampler* draws; b"" if one is no number below *length*."""
    batched, indices, count = bool(loader._auto_collation), set[Any](), 0
    for drawn in sampler:
        names = Draw.of(drawn, dataset_of(loader), batched=batched).names
        if not all(type(name) is int and 0 <= name < length for name in names):
            return b""
        count += len(names)
        indices.update(names)
        if count >= _MOST_TIMES * length:
            break
    return array(_INDEX_TYPE, sorted(indices)).tobytes()
