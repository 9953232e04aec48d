"""Measure the memory of one worker that reads samples in a row [in the trial].

Some facts about pages of a forked process. Each is shared with the parent until either writes to
it; the writer gets a copy, and the other one has the page for itself. So a page that a worker does
not share may be one that the main process wrote to. A third process, which is forked at the same
time and sleeps, shares all pages, so that only those that the worker wrote to are the worker's
alone. A copy is a page, also of a huge page: the kernel splits it first. Pages of mapped files do
not count, although smaps calls them dirty until they are on the disk.

Some facts about free memory. Python and malloc(3) put new objects between the inherited ones, where
others were freed, and so copy pages with every sample for a long time. A worker that has filled
these places first puts new objects into new pages, which it uses again for the next sample. Whole
pages that are free in the heap of malloc(3), megabytes after a large dataset was dropped, are
returned before the fork: then they count as new ones. The garbage collector writes to every object:
so it leaves out those that the worker inherited.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.children import run_in_child
from pytest_dataloader_faults._engine.system.libc import Prctl, prctl
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._engine.worker.arm import EndsWithParent, end_with_parent
from pytest_dataloader_faults._trial.journal import Noted, PhaseStarted
from pytest_dataloader_faults._trial.loaders import (
    USERS_ERRORS,
    dataset_of,
    end_workers,
    length_of,
    reraise_own_error,
)
from pytest_dataloader_faults._trial.resources import collect_and_trim
from pytest_dataloader_faults._trial.samples.draws import Draw
from pytest_dataloader_faults.battery.checks.memory import (
    BLOCKS,
    TIMES_TO_CONFIRM,
    WorkerMemory,
    block_size,
    estimate_scattered,
    growth_of,
)
from pytest_dataloader_faults.outcomes.chains import shorten_chain
from pytest_dataloader_faults.outcomes.stages import START
from pytest_dataloader_faults.outcomes.text import format_value, shorten

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

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
_SNAPSHOTS = (BLOCKS // 4, BLOCKS * 5 // 8, BLOCKS)
"""After these blocks the pages themselves are noted."""


class _Blocks(Sampler[int]):
    """Draws the next *size* of the *indices* each time it is iterated, from place *start* on."""

    def __init__(self, indices: Sequence[int], size: int, start: int) -> None:
        self.indices = indices
        self.size = size
        self.start = start
        self.drawn = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        begin = self.start + self.drawn
        self.drawn += self.size
        return iter(self.indices[begin : begin + self.size])


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
    settings = process.job.settings
    seconds = _SHARE_OF_DEADLINE * process.job.deadline
    until = time.monotonic() + seconds
    indices = indices_of_epoch(loader, process.sampler, _SHARE_OF_SAMPLER * seconds)
    memory = WorkerMemory(
        len(indices),
        loader.num_workers,
        settings.contract.worker_memory,
        stays=loader.persistent_workers,
        page=proc.PAGE,
    )
    row = _Row(loader, indices, memory, until)
    try:
        with _shared_memory():
            row.read()
    except USERS_ERRORS as error:
        if not isinstance(error, OSError):  # This package raises one if the worker has ended.
            reraise_own_error(error)
        text = shorten(shorten_chain(format_value(error)))
        row.memory = replace(row.memory, error=text)
    process.journal.write(Noted(row.memory))


@dataclass
class _Row:
    """Reads samples in one worker, block by block, until the *memory* shows enough."""

    loader: DataLoader[Any]
    indices: Sequence[int]
    memory: WorkerMemory
    until: float
    _snapshots: list[set[int]] = field(default_factory=list)

    def read(self) -> None:
        """Read the blocks, and measure the worker after each."""
        length, size = self.memory.length, block_size(self.memory.length)
        # The first objects of a dataset fill gaps between older ones, and copy more than others.
        start = max(0, length - TIMES_TO_CONFIRM * BLOCKS * size) // 2
        blocks = _Blocks(self.indices, size, start)
        loader = _one_worker(self.loader, blocks)
        try:
            while self._needs_more(blocks) and start + blocks.drawn + blocks.size <= length:
                for _ in loader:
                    if time.monotonic() > self.until:
                        return
                self._measure(loader._iterator._workers[0].pid, blocks.drawn)  # type: ignore[union-attr]
        finally:
            end_workers(loader._iterator)

    def _needs_more(self, blocks: _Blocks) -> bool:
        """Whether more blocks follow: growth is confirmed by larger ones."""
        if len(self.memory.samples) < BLOCKS:
            return True
        size = block_size(self.memory.length)
        blocks.size = TIMES_TO_CONFIRM * size
        is_confirmed = blocks.drawn >= TIMES_TO_CONFIRM * BLOCKS * size
        return not is_confirmed and growth_of(self.memory) is not None

    def _measure(self, pid: int, drawn: int) -> None:
        memory, pages = self.memory, proc.unshared_pages(pid)
        unshared, allocated = len(pages) * proc.PAGE, proc.memory_of(pid, _ALLOCATED)
        self.memory = replace(
            memory,
            samples=(*memory.samples, drawn),
            unshared=(*memory.unshared, unshared),
            allocated=(*memory.allocated, allocated),
            shared=memory.shared or max(0, allocated - unshared),
        )
        if len(self.memory.samples) in _SNAPSHOTS:
            self._take_snapshot(pages)

    def _take_snapshot(self, pages: set[int]) -> None:
        """Note the *pages* themselves; the last snapshot shows whether they are scattered."""
        self._snapshots.append(pages)
        if len(self._snapshots) == len(_SNAPSHOTS):
            first, second, third = self._snapshots
            scattered = estimate_scattered(second - first, third - second, proc.PAGE)
            self.memory = replace(self.memory, scattered=scattered)


def _one_worker(loader: DataLoader[Any], blocks: _Blocks) -> DataLoader[Any]:
    """A loader like *loader* with one worker, which stays, and the samples of *blocks*."""
    return DataLoader(
        dataset_of(loader),
        batch_size=_BATCH_SIZE if loader._auto_collation else None,
        sampler=blocks,
        num_workers=1,
        collate_fn=loader.collate_fn,
        multiprocessing_context="fork",
        worker_init_fn=EndsWithParent(_FillFreeMemory(loader.worker_init_fn)),
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
    count = _count_from_zero(sampler, stays=loader.persistent_workers)
    if count is not None:
        return range(min(count, length))
    indices = array(_INDEX_TYPE)
    indices.frombytes(run_in_child(lambda: _sort_draws(loader, sampler, length), seconds))
    return indices


def _count_from_zero(sampler: Any, *, stays: bool) -> int | None:
    """How many samples, from the first one on, torch's own *sampler* draws; None if it is another.

    *stays*: whether workers are persistent, and so read in time what other epochs draw at random.
    """
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is SequentialSampler:
        return len(inner.data_source)
    if type(inner) is RandomSampler:
        count = len(inner.data_source)
        is_whole = not inner.replacement and inner.num_samples >= count
        return count if is_whole or stays else None
    if type(inner) is DistributedSampler and inner.shuffle and stays:
        return len(inner.dataset)  # type: ignore[arg-type]
    return None


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
