"""The processes of a trial, what they have open, and the accelerator [in all of its processes]."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import psutil
import torch

from pytest_dataloader_faults._engine.fetch_hooks import FetchListener, observe_fetches
from pytest_dataloader_faults._engine.supervisor.start import NAME as SUPERVISOR
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import Patience, has_ended, run_in_child
from pytest_dataloader_faults.exceptions import HarnessError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.leaks import (
    FEWEST_EPOCHS,
    TIMES_TO_CONFIRM,
    find_growth,
    is_constant,
)
from pytest_dataloader_faults.outcomes.records import Footprint

# Some facts about ending a tree of processes. Killing a session or a group misses those that left
# it. A process whose parent dies goes to the nearest ancestor that is a "child subreaper"
# (prctl(2)), so with this process as one, everything below stays below, whatever it does. Killing
# one while another forks can miss the new one: so stop all first, kill, reap, and look again until
# none is left. multiprocessing's resource tracker removes named semaphores when its clients have
# exited, and torch's manager of shared memory its segments: both get the time to do so.
#
# Some facts about what only looks like a leak. multiprocessing keeps a resource tracker, and a
# forkserver, for the life of the process; torch may keep its shared memory manager. A dead child
# that was not waited for is a zombie, not a running process. A listing of /proc can miss a process
# whose parent dies at that moment, hence a second listing if the first one finds none.

CALLS_USER_CODE = ("use_accelerator", "copy_to_device", "bytes_in_use")

_INFRASTRUCTURE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch_shm")
_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""They end with their clients, and remove what their clients have left."""
_CLEANERS_PATIENCE = 10.0
_UNKILLABLE = 20.0
"""Seconds until the warden gives up on a process that survives SIGKILL, as one in disk sleep."""


def trial_processes(server: tuple[int, int] | None) -> list[psutil.Process]:
    """The descendants of this process, and of a fork server with its keeper, *server*."""
    return [
        *psutil.Process().children(recursive=True),
        *(_list_descendants(*server) if server else ()),
    ]


def _list_descendants(keeper: int, server: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(keeper).children(recursive=True)
        return [each for each in children if each.pid != server]
    return []


def running_commands(server: tuple[int, int] | None, seconds: float = 1.0) -> dict[str, str]:
    """The commands, by pid, of ``trial_processes`` that still run after *seconds* of ``Patience``.

    Helpers of torch and Python are left out.
    """
    if not _has_children() and not (server and _list_descendants(*server)):
        return {}
    patience = Patience(seconds)
    while (commands := _commands(server) or _commands(server)) and not patience.is_over(
        map(int, commands)
    ):
        time.sleep(0.01)
    return commands


def _has_children() -> bool:
    """Whether there are descendants; orphans are children of a subreaper, which this process is.

    The kernel reports it at once and reliably; a listing of /proc takes 2 ms.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _commands(server: tuple[int, int] | None) -> dict[str, str]:
    commands = {}
    for process in trial_processes(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline()) or process.name()
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            is_own = process.name() == SUPERVISOR
            if not (is_zombie or is_own or is_infrastructure(command)):
                commands[str(process.pid)] = command[:200]
    return commands


def is_infrastructure(command: str) -> bool:
    """Whether a command line is one of multiprocessing's or torch's helpers."""
    return any(name in command for name in _INFRASTRUCTURE)


def _is_cleaner(process: psutil.Process) -> bool:
    """Whether *process* removes what others have left, and ends with them."""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return any(name in command for name in _CLEANERS)
    return False


def end_session(leader: int, seconds: float, grace: float = 0.0) -> None:
    """End what the process *leader* has started; cleaners end by themselves with the others.

    Wait for each for *seconds* at most. Those that end within *grace* seconds are not killed.
    """
    members = list(_session_of(leader))
    for process in members:
        with contextlib.suppress(psutil.Error):
            if not has_ended(process.pid, grace) and not _is_cleaner(process):
                process.kill()
    for process in members:
        has_ended(process.pid, seconds)


def _session_of(leader: int) -> Iterator[psutil.Process]:
    """The processes of a session.

    ``psutil.process_iter`` may return its object for a dead process if the pid was reused, and that
    object refuses to kill the new process.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                yield psutil.Process(pid)


def end_all(spared: Collection[int] = ()) -> set[int]:
    """End all processes below this one but *spared*, which have no children; their pids.

    Helpers may remove what those have left.
    """
    killed: set[int] = set()
    for_cleaners, for_all = Patience(_CLEANERS_PATIENCE), Patience(_UNKILLABLE)
    doomed: list[psutil.Process] = []
    while _has_others(spared) and not for_all.is_over(each.pid for each in doomed):
        below = psutil.Process().children(recursive=True)
        children = [each for each in below if each.pid not in spared]
        cleaners = list(filter(_is_cleaner, children))
        may_clean = not for_cleaners.is_over(each.pid for each in cleaners)
        doomed = [each for each in children if not (may_clean and each in cleaners)]
        send(signal.SIGSTOP, doomed)
        killed.update(each.pid for each in doomed)
        send(signal.SIGKILL, doomed)
        for _ in range(20):  # Dying ones need a moment.
            if not _has_others(spared):
                break
            time.sleep(0.002)
    return killed


def _has_others(spared: Collection[int]) -> bool:
    """Reap dead children, and return whether others than *spared* are below this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    # psutil would take 4 ms for that.
    return any(pid not in spared for pid in itertools.islice(proc.family(os.getpid()), 1, None))


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


# Some facts about memory that only looks lost. Private and proportional sizes (PSS, USS) of a
# forked worker grow by some 20 KiB with each epoch for dozens of epochs: reading an inherited
# object changes its reference count, and the page becomes a copy of the worker's own. Pages of
# files that were read through a mapping count as well, and can be dropped at any time. So what is
# counted is "Anonymous" of /proc/<pid>/smaps_rollup (proc(5)): all memory that does not belong to a
# file, shared with another process or not, which a copy of a page does not add to; and shared
# memory that is mapped, in proportion.
#
# Each epoch requests the same samples, by the seed of the samplers: so a cache fills in the first
# one. And each starts with a garbage collection: cycles would wait for a collection of the oldest
# generation, which comes after dozens of epochs. malloc(3) raises its threshold for mmap(2) to the
# size of what was freed last (mallopt(3), M_MMAP_THRESHOLD), so that large tensors come from its
# heap, where they are aligned, and leave holes that the next one may not fit into: a healthy
# dataset of samples of 1 MiB took 8 MiB more with each epoch. A threshold that is set stays, and
# large blocks are unmapped when freed; malloc_trim(3) returns the pages of small ones.

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
        footprints[0] = replace(footprints[0], **bytes_in_use())
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


# The accelerator.


_PROBE_SECONDS = 120.0
"""A driver may take long to start on a machine with many devices."""
_CANNOT_USE = "a trial cannot use the accelerator: {}"


# Some facts about finding a device. A build for CUDA queries the driver, and a process that has
# done so can no longer fork one that uses CUDA (torch/cuda/__init__.py, ``is_available``). Trials
# are forked. So a disposable child does the query when it is needed.


@cache
def missing_accelerator() -> str | None:
    """Why there is none; None if there is one."""
    answer = run_in_child(lambda: b"%d" % torch.accelerator.is_available(), _PROBE_SECONDS)
    if not answer:
        message = (
            "torch could not check for an accelerator: the process that called"
            f" torch.accelerator.is_available() exited, or took more than {_PROBE_SECONDS:g} s"
        )
        raise HarnessError(message)
    return None if int(answer) else f"torch {torch.__version__} finds no accelerator here"


def require_accelerator() -> None:
    """Raise an error if torch refuses to use it here, in a fork of pytest's process."""
    module = _accelerator_module()
    if module is not None and getattr(module, "_is_in_bad_fork", bool)():
        why = (
            f"{module.__name__} was used in pytest's own process, and torch refuses to use it in"
            " forks of that process, such as trials. If torch.cuda.is_available() is the only use,"
            " set the environment variable PYTORCH_NVML_BASED_CUDA_CHECK=1. Otherwise run these"
            " tests in a separate session"
        )
        raise UnusableDatasetError(_CANNOT_USE.format(why))


def use_accelerator() -> None:
    """Put a tensor on it, as a training job does with its model before its first epoch."""
    require_accelerator()
    try:
        torch.empty(1, device=_accelerator())
    except RuntimeError as error:
        raise UnusableDatasetError(_CANNOT_USE.format(error)) from error


def copy_to_device(batch: Any, device: torch.device | None = None) -> Any:
    """*batch* with its tensors copied to *device*, by default the accelerator.

    Does not wait for the copy, as training loops do not. Looks into what ``default_collate``
    makes; other classes stay as they are.
    """
    device = device or _accelerator()
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copy_to_device(each, device) for each in batch))
    if type(batch) in {list, tuple}:
        return type(batch)(copy_to_device(each, device) for each in batch)
    if type(batch) is dict:
        return {name: copy_to_device(each, device) for name, each in batch.items()}
    return batch


# Some facts about pinned memory that is returned. torch keeps unused blocks for the next request,
# and a block is in use until the copies from it are done, which torch checks only when it
# allocates, or empties its cache. ``active_bytes`` of ``torch.cuda.host_memory_stats`` should show
# what is in use, but in torch 2.11 it grows with each batch that is pinned and freed. So the cache
# is emptied first: then ``allocated_bytes`` has nothing else. Nothing here starts CUDA.


def bytes_in_use() -> dict[str, Any]:
    """Bytes of pinned memory that this process uses, and bytes on the accelerator."""
    module = _accelerator_module()
    pinned: Mapping[str, int] = {}
    if hasattr(module, "host_memory_stats") and module.is_initialized():
        module.synchronize()
        torch._C._host_emptyCache()
        pinned = module.host_memory_stats()
    in_use = pinned.get("allocated_bytes.current", 0)
    return {"pinned": in_use, "device": getattr(module, "memory_allocated", int)()}


def _accelerator_module() -> Any:
    """The module of torch for the accelerator, as ``torch.cuda``; None if there is none."""
    device = _accelerator()
    return None if device is None else torch.get_device_module(device)


def _accelerator() -> torch.device | None:
    """The accelerator; None if this torch is built without."""
    return torch.accelerator.current_accelerator()
