"""Allocations that fail, by several libraries, and those that must not fail."""

import ctypes
import gc
import mmap
import os
import queue
import resource
import threading
from contextlib import suppress

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor.answers.memory import end_of_heap
from pytest_dataloader_faults._engine.worker.allocations import (
    LargeAllocations,
    reserve_memory,
)
from pytest_dataloader_faults.faults import MemoryExhaustion
from pytest_dataloader_faults.faults.resources import MIN_ALLOCATION
from support.attempts import allocate_in_thread, attempt
from support.children import in_a_process
from support.contracts.allocations import ALLOCATORS, KIB, MIB
from support.epochs import alone, epoch
from support.inner import start_python
from support.nobody import become_nobody
from support.rows import rows
from support.tries import Tries, TriesBesideThread
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


def _retry(size):
    for number in range(5):
        try:
            return number if bytes(size) else None
        except MemoryError:
            gc.collect(0)
    return "never"


@rows(("times", "expected"), [(1, {1, 2}), (2, {2, 3}), (None, {"never"})])
def test_a_retry_succeeds_when_the_fault_is_over(times, expected):
    """An attempt that follows at once may belong to the allocation before: see the answers.

    In the second batch: from then on, a worker has several threads.
    """
    (first, second), _ = attempt([MIB] * 2, _retry, MemoryExhaustion(times=times, sample=1))
    assert first == 0
    assert second in expected


@pytest.mark.parametrize("min_bytes", [MIN_ALLOCATION, MIB])
def test_smaller_allocations_do_not_fail(min_bytes):
    sizes = [min_bytes // 2, min_bytes - 8 * KIB, min_bytes, 2 * min_bytes]
    results, _ = attempt(sizes, bytes, MemoryExhaustion(min_bytes))
    assert ["MemoryError: "] * 2 == results[2:]
    assert results[:2] == [bytes(size) for size in sizes[:2]]


def _start_thread(_):
    """Its stack has 8 MiB, and its first allocation needs an arena."""
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


class Batches(Tries):
    """It makes the samples of a batch at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_a_sample_of_several_that_are_made_at_once():
    with inject(MemoryExhaustion(sample=5)) as injection:
        read = epoch(alone(Batches([MIB] * 12, bytes), batch_size=4))
    results = [each.gave for batch in read.batches for each in batch]
    assert [isinstance(each, str) for each in results] == [False] * 4 + [True] * 4 + [False] * 4
    assert injection.fired >= 2


def test_a_thread_that_allocates_does_not_keep_its_worker_from_starting():
    """It has the GIL while the kernel holds its call, which only the supervisor can answer."""
    options = {"multiprocessing_context": "forkserver", "timeout": allowed(40)}
    with inject(MemoryExhaustion(sample=1), require_fired=False):
        read = epoch(alone(TriesBesideThread([MIB] * 2, bytes), **options))
    assert read.text == ""


THREADS_THAT_FREE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from pytest_dataloader_faults.faults import MemoryExhaustion
from support.attempts import allocate_in_thread, attempt

ARENAS = 8
together = Barrier(ARENAS)

def use_arena(_):
    together.wait()
    objects = [bytearray(100 << 10) for _ in range(100)]
    together.wait()

with ThreadPoolExecutor(ARENAS) as pool:
    list(pool.map(use_arena, range(ARENAS)))
for allocate in bytes, allocate_in_thread:
    results, _ = attempt([80 << 10, 1 << 20, 5 << 20] * 2, allocate, MemoryExhaustion())
    print(results)
"""


@pytest.mark.slow
def test_memory_that_threads_of_the_main_process_freed_is_not_used():
    """A forked worker has their arenas, and each thread that it starts gets another one.

    In a new interpreter: in a process that has run for long, what a sample frees may lie between
    two free blocks, and all three together may be large enough.
    """
    with start_python("-c", THREADS_THAT_FREE) as process:
        output = process.communicate(timeout=allowed(100))
    assert output == (f"{['MemoryError: '] * 6}\n" * 2, "")


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


def test_what_the_kernel_gives_is_not_kept():
    """In a process of its own, because the limits of the C library cannot be restored entirely."""

    def body():
        allocations = LargeAllocations(64 * KIB)
        allocations.free_kept()
        allocations.keep_free()  # Returns, although nothing is refused.
        allocations.end()
        assert allocations._last is None

    assert in_a_process(body) == ""


def test_a_heap_with_much_free_memory_is_prepared():
    """Its free memory is larger than the least allocation that otherwise has a mapping."""

    def body():
        chunks, last = [bytearray(100 * KIB) for _ in range(800)], bytearray(100 * KIB)
        del chunks
        sent = []
        LargeAllocations(64 * KIB).prepare(sent.append)
        assert (bool(sent), len(last)) == (True, 100 * KIB)

    assert in_a_process(body) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without processes")
def test_memory_is_kept_where_no_thread_can_start():
    def body():
        allocate_in_thread(MIB)  # It leaves an arena.
        allocations = LargeAllocations(64 * KIB)
        become_nobody(0)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        with pytest.raises(RuntimeError, match="start new thread"):
            threading.Thread(target=int).start()
        threads = []
        allocations.prepare(lambda message: threads.append(message.thread))
        assert threads == [os.getpid()]

    assert in_a_process(body) == ""


def test_the_end_of_the_heap_is_that_of_brk():
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    end = libc.sbrk(0)
    assert end <= end_of_heap(os.getpid()) < end + 4 * KIB
