"""How much of the machine each process of a loader takes, epoch after epoch [runs in the trial].

Some facts about memory that only looks lost. Private and proportional sizes (PSS, USS) of a forked
worker grow by some 20 KiB with each epoch for dozens of epochs: reading an inherited object changes
its reference count, and the page becomes a copy of the worker's own. Pages of files that were read
through a mapping count as well, and can be dropped at any time. So what is counted is "Anonymous"
of /proc/<pid>/smaps_rollup (proc(5)): all memory that is no file's, whoever else has it, which a
copy of a page does not add to; and shared memory that is mapped, in proportion.

Each epoch asks for the same, by the seed of the samplers: so a cache fills in the first one. And
each begins tidily: garbage in cycles would wait for a collection of the oldest generation, which
comes after dozens of epochs. malloc(3) raises its threshold for mmap(2) to the size of what was
freed last (mallopt(3), M_MMAP_THRESHOLD), so that large tensors come from its heap, where they are
aligned, and leave holes that the next one may not fit into: a healthy dataset of samples of 1 MiB
took 8 MiB more with each epoch. A threshold that is set stays, and large blocks go when freed; of
small ones, malloc_trim(3) gives back the pages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine._announce import Nobody, announce_fetches
from pytest_dataloader_faults._epochs import FEWEST_EPOCHS
from pytest_dataloader_faults._trial import _device
from pytest_dataloader_faults._trial._probes import descriptors

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_ENOUGH_SECONDS = 0.5
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 17
_COUNTED = ("Anonymous:", "Pss_Shmem:", "Private_Hugetlb:", "Swap:")


def keep_heap_small() -> None:
    """Have large blocks mapped each on its own, from now on."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc has it, musl has not.
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def tidy() -> None:
    """Give back what nobody uses: cycles of Python's, and free pages in the heap of malloc(3)."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


class CollectEachEpoch:
    """A ``worker_init_fn``: each process is tidied up as each epoch begins. Picklable."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker."""
        keep_heap_small()
        announce_fetches(_Tidying(), samples=False)
        if self._then is not None:
            self._then(worker)


class _Tidying(Nobody):
    def restart(self) -> None:
        tidy()


class Footprints:
    """Looks at all processes of a loader after each epoch, until it has seen enough."""

    def __init__(self, deadline: float) -> None:
        keep_heap_small()
        self._began = time.monotonic()
        self._most_seconds = deadline / 2
        self._first: dict[int, Counter[str]] = {}

    def are_enough(self, epoch: int) -> bool:
        """Whether *epoch* is to be the last one."""
        seconds = time.monotonic() - self._began
        enough = epoch >= FEWEST_EPOCHS and seconds > _ENOUGH_SECONDS
        return enough or seconds > self._most_seconds

    def look(self, epoch: int, loader: DataLoader[Any]) -> list[dict[str, Any]]:
        """What each process has after *epoch*, as plain data."""
        tidy()
        workers = getattr(loader._iterator, "_workers", ())
        pids = {"loader": os.getpid()} | {f"worker {i}": each.pid for i, each in enumerate(workers)}
        found = [{"epoch": epoch, "process": name, **self._of(pid)} for name, pid in pids.items()]
        found[0].update(_device.held())
        return found

    def _of(self, pid: int) -> dict[str, Any]:
        names = _open_in(pid)
        more = names - self._first.setdefault(pid, names)
        return {
            "memory": _memory(pid),
            "descriptors": names.total(),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "opened": max(more, key=more.__getitem__, default=""),
        }


def _memory(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_COUNTED))


def _open_in(pid: int) -> Counter[str]:
    """What *pid* has open and how often; what has no name, by its kind."""
    targets = descriptors(pid).values()
    return Counter(each if each.startswith("/") else each.partition(":")[0] for each in targets)
