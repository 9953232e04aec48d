"""Threads and processes that cannot start, in each way in which programs start them."""

import _thread
import contextlib
import ctypes
import errno
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.scope import arm_faults
from pytest_dataloader_faults.faults import ThreadExhaustion
from support.attempts import attempt
from support.corpus.threads import ReadsInPool
from support.epochs import alone, epoch, shares_memory_by
from support.tries import Reads, Tries

pytestmark = pytest.mark.usefixtures("engine")
TEMPORARILY = os.strerror(errno.EAGAIN)
NO_THREAD = "RuntimeError: can't start new thread"
DONE, _ECHO = "done", "/bin/echo"
LATER = 9999
"""A turn that does not come."""


def _start_thread():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return DONE


def _start_plain_thread():
    ended = threading.Lock()
    ended.acquire()
    _thread.start_new_thread(ended.release, ())
    ended.acquire()
    return DONE


def _run_executor():
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(str, DONE).result()


def _run_pool():
    with ThreadPool(2) as pool:
        return pool.apply(str, (DONE,))


def _start_in_c():
    """pthread_create(3) itself, which returns the errno."""
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    routine = ctypes.cast(library.pause, ctypes.c_void_p)
    number = library.pthread_create(ctypes.byref(thread), None, routine, None)
    if number:
        raise OSError(number, os.strerror(number))
    library.pthread_cancel(thread)
    library.pthread_join(thread, None)
    return DONE


def _fork():
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return DONE


def _run():
    return subprocess.check_output([_ECHO, DONE], text=True).strip()


def _run_prepared():
    """Python forks for this, instead of calling vfork(2)."""
    return subprocess.check_output([_ECHO, DONE], text=True, preexec_fn=int).strip()


def _spawn():
    child = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(child, 0)[1] == 0
    return DONE


def _call_shell():
    """system(3) returns -1, and Python does not raise an error."""
    status = os.system("/bin/true")  # noqa: S605  # no input
    if status:
        raise OSError(errno.EAGAIN, f"status {status}")
    return DONE


@contextlib.contextmanager
def _as_parent():
    """A worker may have no children of multiprocessing, as a daemonic process."""
    config = multiprocessing.current_process()._config
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = True


def _start_process():
    with _as_parent():
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
    return DONE


def _run_processes():
    with _as_parent(), ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(str, DONE).result()


THREADS = {
    "Thread": _start_thread,
    "_thread": _start_plain_thread,
    "ThreadPoolExecutor": _run_executor,
    "ThreadPool": _run_pool,
    "pthread_create": _start_in_c,
}
PROCESSES = {
    "fork": _fork,
    "subprocess": _run,
    "preexec_fn": _run_prepared,
    "posix_spawn": _spawn,
    "system": _call_shell,
    "Process": _start_process,
    "ProcessPoolExecutor": _run_processes,
}
WAYS = {**THREADS, **PROCESSES}


def _call(name):
    return WAYS[name]()


def _attempt(names, fault, **options):
    gave, injection = attempt([*names], _call, fault, **options)
    return dict(zip(names, gave, strict=True)), injection


def test_no_way_starts_a_thread():
    gave, injection = _attempt(THREADS, ThreadExhaustion())

    assert gave.pop("pthread_create") == f"BlockingIOError: [Errno 11] {TEMPORARILY}"
    assert set(gave.values()) == {NO_THREAD}
    assert injection.fired == len(THREADS)


def test_no_way_starts_a_process():
    gave, injection = _attempt(PROCESSES, ThreadExhaustion())

    assert all("BlockingIOError" in text for text in gave.values()), gave
    assert injection.fired >= len(PROCESSES)


def test_each_way_works_when_its_turn_has_not_come():
    gave, injection = _attempt(WAYS, ThreadExhaustion(nth=LATER), require_fired=False)

    assert gave == dict.fromkeys(WAYS, DONE)
    (worker,) = injection.workers
    assert worker.counts_of("starts")["process"] >= len(PROCESSES)
    assert worker.counts_of("starts")["thread"] >= len(THREADS)


def test_triggers_count_starts():
    gave, injection = attempt(["Thread"] * 4, _call, ThreadExhaustion(nth=2, times=1))

    assert gave == [DONE, NO_THREAD, DONE, DONE]
    (firing,) = injection.faults[0].firings
    assert (firing.call, firing.path, firing.fetch) == ("clone3", None, 2)


TENSORS = [torch.full((1000,), number) for number in range(16)]
"""Samples that torch's own threads of a worker pass on."""


def _start_thread_before(tensor):
    _start_thread()
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


def test_nothing_fails_after_the_scope():
    loader = alone(Tries(["Thread"] * 2, _call), persistent_workers=True)
    with inject(ThreadExhaustion()):
        assert [each.gave for each in epoch(loader).batches] == [NO_THREAD] * 2
    assert [each.gave for each in epoch(loader).batches] == [DONE] * 2


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
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(method, records):
    options = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": method}
    with inject(ThreadExhaustion()) as injection:
        read = epoch(DataLoader(ReadsInPool(records), **options))
    assert "can't start new thread" in read.text
    assert read.batches == []
    assert injection.mentioned == 1
