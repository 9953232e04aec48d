"""Threads and processes that cannot start, in each way in which programs start them."""

import contextlib
import ctypes
import multiprocessing
import os
import subprocess
import threading
from errno import EAGAIN

from pytest_dataloader_faults.faults import ThreadExhaustion
from support.contracts.row import Row, errno, text

DONE, _ECHO = "done", "/bin/echo"


def _start_thread(_):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return DONE


def _start_in_c(_):
    """pthread_create(3) itself, which returns the errno."""
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    routine = ctypes.cast(library.pause, ctypes.c_void_p)
    number = library.pthread_create(ctypes.byref(thread), None, routine, None)
    if number:
        raise OSError(number, os.strerror(number))
    library.pthread_cancel(thread)
    library.pthread_join(thread, None)
    return DONE


def _fork(_):
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return DONE


def _run(_):
    return subprocess.check_output([_ECHO, DONE], text=True).strip()


def _run_prepared(_):
    """Python forks for this, instead of calling vfork(2)."""
    return subprocess.check_output([_ECHO, DONE], text=True, preexec_fn=int).strip()


def _spawn(_):
    child = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(child, 0)[1] == 0
    return DONE


def _call_shell(_):
    """system(3) returns -1, and Python does not raise an error."""
    status = os.system("/bin/true")  # noqa: S605  # no input
    if status:
        raise OSError(EAGAIN, f"status {status}")
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


def _start_process(_):
    with _as_parent():
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
    return DONE


THREADS = {"Thread": _start_thread, "pthread_create": _start_in_c}
PROCESSES = {
    "fork": _fork,
    "subprocess": _run,
    "preexec_fn": _run_prepared,
    "posix_spawn": _spawn,
    "system": _call_shell,
    "Process": _start_process,
}
WAYS = {**THREADS, **PROCESSES}


NO_THREAD = text("RuntimeError: can't start new thread")
NO_PROCESS = text("BlockingIOError")
STARTS = {
    **{name: Row(ThreadExhaustion, way, NO_THREAD) for name, way in THREADS.items()},
    **{name: Row(ThreadExhaustion, way, NO_PROCESS) for name, way in PROCESSES.items()},
    "pthread_create": Row(ThreadExhaustion, _start_in_c, errno(EAGAIN)),
}
