"""What processes have open, and how much memory they use [in the trial].

Some facts about memory that only looks lost. Private and proportional sizes (PSS, USS) of a forked
worker grow by some 20 KiB with each epoch for dozens of epochs: reading an inherited object changes
its reference count, and the page becomes a copy of the worker's own. Pages of files that were read
through a mapping count as well, and can be dropped at any time. So what is counted is "Anonymous"
of /proc/<pid>/smaps_rollup (proc(5)): all memory that does not belong to a file, shared with
another process or not, which a copy of a page does not add to; and shared memory that is mapped, in
proportion.

Each epoch requests the same samples, by the seed of the samplers: so a cache fills in the first
one. And each starts with a garbage collection: cycles would wait for a collection of the oldest
generation, which comes after dozens of epochs. malloc(3) raises its threshold for mmap(2) to the
size of what was freed last (mallopt(3), M_MMAP_THRESHOLD), so that large tensors come from its
heap, where they are aligned, and leave holes that the next one may not fit into: a healthy dataset
of samples of 1 MiB took 8 MiB more with each epoch. A threshold that is set stays, and large blocks
are unmapped when freed; malloc_trim(3) returns the pages of small ones.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.worker.fetch_hooks import FetchListener, observe_fetches
from pytest_dataloader_faults._trial import accelerator
from pytest_dataloader_faults._trial.process.tree import running_commands
from pytest_dataloader_faults.outcomes import Resources, Stage
from pytest_dataloader_faults.outcomes.leaks import (
    FEWEST_EPOCHS,
    TIMES_TO_CONFIRM,
    find_growth,
    is_constant,
)
from pytest_dataloader_faults.outcomes.records import Footprint


def look(stage: Stage, server: tuple[int, int] | None) -> Resources:
    """What this process has open, and what runs below it."""
    return Resources(stage, proc.descriptor_links(), running_commands(server))


_ENOUGH_SECONDS = 0.5
_ENOUGH_EPOCHS = 40
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 17
_COUNTED = ("Anonymous", "Pss_Shmem", "Private_Hugetlb", "Swap")
_LIBC = ctypes.CDLL(None)


def map_large_blocks() -> None:
    """Have malloc(3) map each large block on its own from now on."""
    if hasattr(_LIBC, "mallopt"):  # glibc has it, musl has not.
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def collect_and_trim() -> None:
    """Free cycles of Python's objects, and return free pages in the heap of malloc(3)."""
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(ctypes.c_size_t(0))


@dataclass(frozen=True)
class GcEachEpoch:
    """A ``worker_init_fn`` that frees unused memory at the start of each epoch. Picklable.

    *batches*: how many an epoch has for each worker, if that is known. If a loader keeps its
    iterator, workers do not notice otherwise that the next epoch starts.
    """

    init_fn: Callable[[int], object] | None
    batches: int | None = None

    def __call__(self, worker: int) -> None:
        map_large_blocks()
        observe_fetches(_GcListener(self.batches), samples=False)
        if self.init_fn is not None:
            self.init_fn(worker)


@dataclass
class _GcListener(FetchListener):
    batches: int | None
    _fetches: int = 0

    def restart(self) -> None:
        self._fetches = 0
        collect_and_trim()

    def begin(self) -> None:
        if self._fetches == self.batches:
            self.restart()
        self._fetches += 1


class FootprintSampler:
    """Measures all processes of a loader after each epoch, until there are enough epochs."""

    def __init__(self, most_seconds: float) -> None:
        map_large_blocks()
        self._began = time.monotonic()
        self._most_seconds = most_seconds
        self._first: dict[int, Counter[str]] = {}
        self._found: list[Footprint] = []
        self._last: int | None = None

    def is_sufficient(self, epoch: int) -> bool:
        """Whether *epoch* should be the last one: growth is confirmed by four times as many."""
        if time.monotonic() - self._began > self._most_seconds:
            return True
        return self._last is not None and epoch >= self._last

    def look(self, epoch: int, workers: Iterable[Any]) -> list[Footprint]:
        """What the main process and *workers* use after *epoch*."""
        collect_and_trim()
        pids = {"loader": os.getpid()} | {f"worker {i}": each.pid for i, each in enumerate(workers)}
        footprints = [Footprint(epoch, name, **self._measure(pid)) for name, pid in pids.items()]
        footprints[0] = accelerator.add_usage(footprints[0])
        self._found += footprints
        if self._last is None:
            self._last = self._find_last_epoch(epoch)
        return footprints

    def _find_last_epoch(self, epoch: int) -> int | None:
        """Which epoch should be the last, after those up to *epoch*; None if that is unknown."""
        if is_constant(self._found):
            return epoch
        seconds = time.monotonic() - self._began
        if epoch < FEWEST_EPOCHS or (epoch < _ENOUGH_EPOCHS and seconds <= _ENOUGH_SECONDS):
            return None
        return TIMES_TO_CONFIRM * epoch if find_growth(self._found) is not None else epoch

    def _measure(self, pid: int) -> dict[str, Any]:
        targets = proc.descriptor_links(pid).values()
        # Kernel objects without a path are counted by their kind.
        names = Counter(each if each[0] == "/" else each.partition(":")[0] for each in targets)
        added = names - self._first.setdefault(pid, names)
        return {
            "memory": proc.memory_of(pid, _COUNTED),
            "descriptors": names.total(),
            "threads": len(proc.threads(pid)),
            "newly_open": max(added, key=added.__getitem__, default=""),
        }
