"""Start a supervisor [runs in its parent, and in it]."""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import gc
import io
import os
import posix
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.supervisor.refusals import SharedFiles
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.libc import end_with_parent
from pytest_dataloader_faults._engine.system.proc import descriptors, is_dead, set_own_name
from pytest_dataloader_faults._engine.system.processes import accept_signals, fork
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    SharedCount,
    SharedMemoryCleaner,
)
from pytest_dataloader_faults.faults.globs import package_folders

# Some facts about a supervisor as a copy of its parent, which may be in the midst of a test. If the
# copy of a loader's iterator were finalized, it would end its workers: so objects are frozen, and
# never freed. The copy of a descriptor would keep the user's files and pipes open: so it is closed,
# which releases no lock, neither of flock(2) nor of fcntl(2). A tracer of the user's would be
# called for each line. The wakeup descriptor of signals has been closed, too.


REPORT_SIGNAL = signal.SIGUSR1
"""By this, a warden requests the report of a trial that cannot do so."""
NAME = "dlf-supervisor"
"""What ps(1) shows; its command line is its parent's."""


def _serve(
    channel: protocol.Channel,
    door: protocol.Channel,
    report_fd: int | None,
    bytes_read: SharedCount,
    files: SharedFiles | None,
) -> None:
    """Serve one scope, unless the starter closes the connection before it sends a plan."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        message, _ = channel.receive()
    except (EOFError, ConnectionError):
        if report_fd is not None:
            signal.pause()  # The warden ends it.
        return
    assert isinstance(message, protocol.Configure)
    with contextlib.ExitStack() as scope:
        refused = ""
        if message.folder is not None:  # In a trial the warden removes what is left.
            # Or it would make a file to see whether it can, and leave that when it is killed.
            tempfile.tempdir = os.path.dirname(message.folder)
            try:
                temporary.make_for_sockets(message.folder)
            except OSError as error:
                refused = str(error)
            scope.callback(temporary.remove, message.folder)
        shared_memory = None if message.folder is None else SharedMemoryCleaner()
        supervisor = Supervisor(channel, door, message.plan, message.driver, report_fd, files)
        if shared_memory is not None:
            scope.callback(_remove_shared_memory, message, shared_memory, supervisor)
        supervisor.services.bytes_read = bytes_read
        _end_by_signal(supervisor)
        # A second signal would interrupt the removal.
        scope.callback(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        signal.signal(REPORT_SIGNAL, lambda _number, _frame: supervisor.report())
        channel.send(protocol.Done(refused))
        supervisor.run()
    _end_by_signal(supervisor)
    supervisor.run_for_others()


def _end_by_signal(supervisor: Supervisor) -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: supervisor.end())


# Some facts about the segments of a dead worker. By torch's strategy "file_descriptor", a segment
# has a name only from shm_open(3) to shm_unlink(3) in the next line, so that the name of a process
# that is dead is nobody's. By "file_system" it has one until it is received, and may be on its way.


def _remove_shared_memory(
    scope: protocol.Configure, shared_memory: SharedMemoryCleaner, supervisor: Supervisor
) -> None:
    """Remove what a loader and its workers leave in /dev/shm, in the user's own process."""
    if scope.unlinks or is_dead(scope.driver):
        pids = {scope.driver, *(worker.pid for worker in supervisor.workers)}
        shared_memory.remove(set(filter(is_dead, pids)))


def fork_supervisor(
    report_fd: int | None = None, files: SharedFiles | None = None
) -> protocol.SupervisorHandle:
    """Fork a supervisor from the process that drives the loader, or from a trial's warden.

    One of a trial ends with its warden, and writes its report to *report_fd* when it is ended.
    """
    package_folders()  # Once for all supervisors and workers.
    (ours, theirs), (door, inside) = protocol.Channel.pair(), protocol.Channel.pair()
    printed, bytes_read, parent = AnonymousFile("supervisor"), SharedCount(), os.getpid()
    kept = [theirs.fileno(), inside.fileno(), *([] if report_fd is None else [report_fd])]

    def supervise() -> None:
        _leave_all_but(kept, printed.fd)
        if report_fd is not None:
            end_with_parent(parent, signal.SIGTERM)
        _serve(theirs, inside, report_fd, bytes_read, files)

    try:
        pid = fork()
    except BaseException:
        for each in (ours, theirs, door, inside, printed):
            each.close()
        raise
    if not pid:
        _run(supervise)
    theirs.close()
    inside.close()
    return protocol.SupervisorHandle(pid, ours, protocol.Door(door), printed, bytes_read)


def _run(supervise: Callable[[], None]) -> NoReturn:
    """Never return into what the parent does next."""
    status = 70
    try:
        supervise()
        status = 0
    except SystemExit:
        status = 0
    except BaseException:  # noqa: BLE001  # there is nothing to return to
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_all_but(kept: Iterable[int], printed: int) -> None:
    """Let go of what belongs to the parent, but for the descriptors *kept*; print to *printed*."""
    _restore_functions()
    set_own_name(NAME)
    gc.freeze()
    sys.settrace(None)
    sys.setprofile(None)
    signal.set_wakeup_fd(-1)
    accept_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process.
    for stream in (1, 2):
        os.dup2(printed, stream)
    for each in descriptors("self").difference((0, 1, 2), kept):
        with contextlib.suppress(OSError):  # The one by which they were listed.
            os.close(each)
    sys.stdout = sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1)
    faulthandler.enable(file=2)
    warnings.simplefilter("ignore")
    os.chdir("/")  # It shall not keep a folder of the user's in use.


def _restore_functions() -> None:
    """Take back what a test may have replaced, such as os.listdir() or the clock."""
    vars(os).update({name: each for name, each in vars(posix).items() if callable(each)})
    builtins.open = io.open
    time.monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
