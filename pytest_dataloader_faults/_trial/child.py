"""The processes of a trial, from before the fork on [runs in pytest, the warden and the trial]."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import linecache
import logging
import multiprocessing.popen_fork
import multiprocessing.queues
import multiprocessing.synchronize  # noqa: F401  # These three for preload().
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import current_process, forkserver, resource_sharer, resource_tracker
from typing import Any, NoReturn

from pytest_dataloader_faults._engine.loader.iterator import LoaderMonitor  # noqa: F401  # For preload().
from pytest_dataloader_faults._engine.protocol import SupervisorHandle
from pytest_dataloader_faults._engine.system import stacks
from pytest_dataloader_faults._engine.system.imports import FOR_LOADER, import_late_modules
from pytest_dataloader_faults._engine.system.libc import Prctl, leave_no_core, prctl
from pytest_dataloader_faults._engine.system.processes import end_if_interrupted
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    Journal,
    ProcessesStarted,
    failed,
)
from pytest_dataloader_faults._trial.process.surroundings import Surroundings, forbidden_call_error
from pytest_dataloader_faults._trial.process.warden import run_under_deadline
from pytest_dataloader_faults._trial.run import run
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults.globs import package_folders

# Some facts about a process forked from pytest. It has pytest's capture on its standard streams,
# pytest's faulthandler, its multiprocessing helpers and their descriptors, and every buffer that
# was not flushed. It must not print into that capture, and must not use those helpers: a forkserver
# that it shared with pytest would start its workers outside of the trial's tree, and a tensor that
# it sends to a worker, as an index, would be looked for in pytest. And it must never return.


def preload() -> None:
    """Do, in pytest's process, what each trial and each of its workers would do again."""
    import_late_modules()
    import_late_modules(FOR_LOADER)
    package_folders()
    _read_sources()


# Some facts about torch.manual_seed(), which each worker calls. For each kind of device that is not
# in use torch keeps the stack of the call, as text with a line of source for each frame
# (``_lazy_call`` in torch/cuda/__init__.py, and the same for xpu and mtia). A worker that was
# forked below pytest has sixty frames or more, of thirty files, and would read each of those. What
# linecache has read before the fork is there in all of them.


_IN_STACKS = """
    pytest_dataloader_faults._engine.loader.iterator
    pytest_dataloader_faults._engine.worker.fetch_hooks
    pytest_dataloader_faults._trial.child
    pytest_dataloader_faults._trial.driver
    pytest_dataloader_faults._trial.process.warden
    pytest_dataloader_faults._trial.run
    torch._utils torch.cuda torch.cuda.random torch.mtia torch.random torch.xpu torch.xpu.random
    torch.utils.data.dataloader torch.utils.data._utils.fetch torch.utils.data._utils.worker
    multiprocessing.context multiprocessing.popen_fork multiprocessing.process
""".split()


def _read_sources() -> None:
    """Have linecache read the sources that are in the stack of a worker."""
    loaded = (getattr(sys.modules.get(name), "__file__", None) for name in _IN_STACKS)
    running = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    for path in {*filter(None, loaded), *running}:
        with contextlib.suppress(Exception):  # Code may name anything as its file, even a FIFO.
            if os.path.isfile(path):
                linecache.getlines(path)


def main(job: Job, around: Surroundings) -> NoReturn:
    """Run the warden in this process, and the trial in a child of it."""
    # The caller may be handling an exception, which would be the context of all errors here.
    ctypes.pythonapi.PyErr_SetExcInfo(None, None, None)
    vars(sys).pop("tracebacklimit", None)  # The last frames say whose code failed.

    def warden() -> None:
        _use_streams(around.printed.fd)
        gc.freeze()  # To look through pytest's objects would take 50 ms.
        run_under_deadline(job, around, root)

    def root(supervision: SupervisorHandle | None, number: int) -> None:
        _run_then_exit(lambda: trial(supervision, number), around.facts)

    def trial(supervision: SupervisorHandle | None, number: int) -> None:
        around.facts.write(ProcessesStarted((os.getpid(),)))
        os.register_at_fork(after_in_child=around.facts.close_in_worker)  # It is not for workers.
        leave_no_core()
        prctl(Prctl.SET_CHILD_SUBREAPER, 1)  # Then orphans of the workers count as leftovers.
        _forget_helpers()
        if around.server:
            around.server.use()
        logging.getLogger().handlers.clear()  # pytest's write to its terminal.
        threading.excepthook = threading.__excepthook__  # pytest's prints nothing.
        warnings.resetwarnings()  # pytest's "error" would make a warning of torch's an error.
        for category in (DeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        # The folder for the sockets of workers: one that is killed cannot remove its own.
        current_process()._config["tempdir"] = around.for_sockets  # type: ignore[attr-defined]
        around.stacks.close()  # The warden writes to it.
        stacks.write_on_signal()
        run(job, around, supervision, number)

    _run_then_exit(warden, around.facts)


def _run_then_exit(action: Callable[[], None], facts: Journal) -> NoReturn:
    """Run *action*, then end the process; write down an error of the harness's own code."""
    status = 70
    try:
        action()
        status = 0
    except OSError as error:
        lack = forbidden_call_error(error)
        facts.write(failed(lack or HarnessError(traceback.format_exc())))
    except BaseException as error:  # noqa: BLE001  # there is nothing to return to
        end_if_interrupted(error)
        facts.write(failed(HarnessError(traceback.format_exc())))
    finally:
        os._exit(status)


def _use_streams(printed: int) -> None:
    """Send standard output and error to the journal; standard input is empty."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (1, 2):
        os.dup2(printed, number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    faulthandler.enable(file=2)


def _forget_helpers() -> None:
    """Leave multiprocessing's helpers to pytest: this process starts its own when it needs them."""
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    server._forkserver_authkey = server._inherited_fds = None
    sharer: Any = vars(resource_sharer)["_resource_sharer"]
    sharer._afterfork()
