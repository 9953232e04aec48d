"""Allocations, threads and processes that fail, and locks that another job holds for a while."""

import errno
import fcntl
import mmap
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.c_library import reserve_memory
from pytest_dataloader_faults._engine.scope import arm_faults
from pytest_dataloader_faults.faults import LockError, MemoryExhaustion, ThreadExhaustion
from pytest_dataloader_faults.faults.workers import MIN_ALLOCATION
from support.attempts import attempt
from support.children import in_a_process
from support.contracts.allocations import ALLOCATORS, KIB, MIB
from support.contracts.locks import AT_ONCE, FLOCK, WAITING
from support.contracts.starts import DONE, WAYS
from support.epochs import alone, epoch, shares_memory_by
from support.tries import Reads, Tries, TriesBesideThread
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")


SMALL_ENOUGH = 48 * KIB
SMALL = 450


def _allocate(name_and_size):
    name, size = name_and_size
    return ALLOCATORS[name][0](size)


def test_once_is_once():
    """What the C library tries instead belongs to the allocation, and the next one succeeds."""
    names = sorted(ALLOCATORS.keys() - {"grown"})
    sources = [(name, MIB) for name in names for _ in range(4)]
    results, injection = attempt(sources, _allocate, MemoryExhaustion(nth=2, every=4))
    failed = [
        bool(ALLOCATORS[name][1].search(str(each)))
        for (name, _), each in zip(sources, results, strict=True)
    ]
    assert failed == [False, True, False, False] * len(names)
    assert (len(sources), len(names)) == (injection.matched, injection.fired)


@pytest.mark.parametrize("min_bytes", [MIN_ALLOCATION, MIB])
def test_smaller_allocations_do_not_fail(min_bytes):
    sizes = [min_bytes // 2, min_bytes - 8 * KIB, min_bytes, 2 * min_bytes]
    results, _ = attempt(sizes, bytes, MemoryExhaustion(min_bytes))
    assert ["MemoryError: "] * 2 == results[2:]
    assert results[:2] == [bytes(size) for size in sizes[:2]]


def _start_thread(_):
    results = queue.Queue()
    thread = threading.Thread(target=lambda: results.put(bytes(1000)))
    thread.start()
    thread.join()
    return len(results.get(timeout=60))


def _map_file(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        return len(mapped)


def _use_small_objects(_):
    """The interpreter gets several arenas of 1 MiB for them."""
    return sum(map(len, [[f"{number}." for number in range(1000)] for _ in range(100)]))


UNHARMED = {
    "a thread": (_start_thread, 1000),
    "a file": (_map_file, 4 * MIB),
    "small objects": (_use_small_objects, 100_000),
}


def test_what_is_not_an_allocation_does_not_fail(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(4 * MIB))
    uses, expected = zip(*UNHARMED.values(), strict=True)
    fault = MemoryExhaustion()
    results, injection = attempt([*uses] * 3, lambda use: use(path), fault, require_fired=False)
    assert results == [*expected] * 3
    assert injection.errors == []


def test_torchs_own_thread_gets_its_memory():
    """It pickles each batch, while the next one is made."""
    fault = MemoryExhaustion()
    results, _ = attempt([SMALL_ENOUGH] * 20, _return_many, fault, require_fired=False)
    assert [len(each) for each in results] == [200] * 20


def _return_many(size):
    return [bytes(size)] * 200


def test_only_the_chosen_sample_is_hit():
    results, injection = attempt([MIB] * 5, bytes, MemoryExhaustion(sample=3))
    assert [isinstance(each, str) for each in results] == [False, False, False, True, False]
    (firing,) = injection.faults[0].firings
    assert (firing.sample, firing.call.startswith("mmap of ")) == (3, True)


def test_a_thread_that_allocates_does_not_keep_its_worker_from_starting():
    """It has the GIL while the kernel holds its call, which only the supervisor can answer."""
    options = {"multiprocessing_context": "forkserver", "timeout": allowed(40)}
    with inject(MemoryExhaustion(sample=1), require_fired=False):
        read = epoch(alone(TriesBesideThread([MIB] * 2, bytes), **options))
    assert read.text == ""


def test_a_worker_that_starts_needs_no_new_memory_until_the_supervisor_answers():
    """Such an allocation would wait for the supervisor, and the supervisor for the worker."""

    def body():
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_pages(statm) * mmap.PAGESIZE, limits[1]))
        objects = ()
        with suppress(MemoryError):
            while True:
                objects = (bytes(SMALL), objects)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        reserve_memory()
        pages = _pages(statm)
        assert all(bytes(size + 1) for size in range(0, SMALL, 16) for _ in range(50))
        assert bytes(SMALL_ENOUGH)
        assert pages == _pages(statm)

    assert in_a_process(body) == ""


def _pages(statm):
    return int(os.pread(statm, 20, 0).split()[0])


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


def _unlock(path):
    with open(path, "ab") as file:
        for unlock in (fcntl.flock, fcntl.lockf):
            unlock(file, fcntl.LOCK_UN)
        for command in (fcntl.F_SETLK, fcntl.F_OFD_SETLK):
            unlocked = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, command, unlocked)
        locked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_GETLK, locked)
    return "unlocked"


def test_a_file_can_be_unlocked(tmp_path):
    path = str(tmp_path / "x.lock")
    (gave,), injection = attempt([path], _unlock, LockError(path), require_fired=False)

    assert (gave, injection.matched) == ("unlocked", 0)


def test_a_call_that_waits_does_so_until_the_loader_gives_up(tmp_path):
    paths = {name: str(tmp_path / name) for name in WAITING}
    with inject(*map(LockError, paths.values())) as injection:
        for number, (name, path) in enumerate(paths.items(), 1):
            read = epoch(alone(Tries([path], WAITING[name])), (injection, 0))
            assert "timed out" in read.text
            assert injection.fired == number


SECONDS = 0.4
"""For which the other job holds the lock."""


def test_a_lock_that_is_released_ends_the_wait(tmp_path):
    paths = {name: str(tmp_path / name) for name in WAITING}

    def lock_twice(name):
        began = time.monotonic()
        WAITING[name](paths[name])
        seconds = time.monotonic() - began
        AT_ONCE["F_SETLK"](paths[name])
        return seconds

    faults = [LockError(path, seconds=SECONDS) for path in paths.values()]
    gave, injection = attempt([*paths], lock_twice, *faults)

    assert all(SECONDS * 0.9 <= seconds < allowed(5) for seconds in gave)
    assert [1] * len(paths) == [each.fired for each in injection.faults]


def test_a_lock_that_is_released_can_be_had_by_polling(tmp_path):
    def poll(path):
        while True:
            try:
                return AT_ONCE["flock"](path)
            except BlockingIOError:
                time.sleep(0.01)

    path = str(tmp_path / "x.lock")
    (gave,), injection = attempt([path], poll, LockError(path, seconds=SECONDS))
    times = [each.time for each in injection.faults[0].firings]

    assert gave is None
    assert SECONDS / 4 < times[-1] - times[0] < SECONDS
