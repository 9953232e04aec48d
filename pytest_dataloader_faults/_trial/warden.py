"""The warden, which enforces a trial's deadline and ends all its processes, and how these start.

It is a process of its own. What is done before the fork runs in pytest, and what a process of the
trial does first runs in that.
"""

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
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import current_process, forkserver, resource_sharer, resource_tracker
from typing import Any, NamedTuple, NoReturn, TypeAlias

import psutil

from pytest_dataloader_faults._engine.iterator import LoaderMonitor  # noqa: F401  # For preload().
from pytest_dataloader_faults._engine.protocol import (
    SupervisorHandle,
    WorkerReports,
    describe_output,
)
from pytest_dataloader_faults._engine.supervisor.refusals import SharedFiles
from pytest_dataloader_faults._engine.supervisor.start import REPORT_SIGNAL, fork_supervisor
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.imports import FOR_LOADER, import_late_modules
from pytest_dataloader_faults._engine.system.libc import (
    Prctl,
    end_with_parent,
    leave_no_core,
    prctl,
)
from pytest_dataloader_faults._engine.system.processes import (
    SIGN_OF_LIFE,
    Patience,
    StackRequest,
    accept_signals,
    describe_child_exit,
    describe_end,
    end_if_interrupted,
    has_ended,
    raise_on_sigint,
    ready_in_time,
    reap,
    wait_until_readable,
    write_on_signal,
)
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    FaultsArmed,
    Journal,
    JournalEvent,
    PhaseStarted,
    ProcessesStarted,
    TrialEnded,
    failed,
)
from pytest_dataloader_faults._trial.process.clock import OVERDUE, SLICE, TrialClock
from pytest_dataloader_faults._trial.process.surroundings import (
    NOTHING_SHOWN,
    STOPPED,
    Surroundings,
    describe_warden,
    forbidden_call_error,
)
from pytest_dataloader_faults._trial.resources import (
    end_all,
    is_infrastructure,
    send,
    trial_processes,
)
from pytest_dataloader_faults._trial.run import run
from pytest_dataloader_faults.exceptions import (
    HarnessError,
    InvalidArgumentError,
    LostProcessError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.faults.globs import package_folders
from pytest_dataloader_faults.outcomes import TrialEnd
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import printable

_Root: TypeAlias = Callable[[SupervisorHandle | None, int], None]
"""What each process of the trial does, by its number from 0."""
_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})
_PATIENCE = 10.0
"""Seconds in which a supervisor that owes its report neither works nor waits for a processor."""
_BETWEEN_LOOKS = 0.002


def run_under_deadline(job: Job, around: Surroundings, root: _Root) -> None:
    """Run *root* in a child for each process of *job*, and end all that these start.

    Folders that are *around* it are removed, with what is in them.
    """
    journal, pytest_pid = around.facts, os.getppid()
    accept_signals()
    os.setsid()
    try:
        around.make_folders()
    except InvalidArgumentError as error:
        journal.write(failed(error))
        return
    parent = os.pidfd_open(pytest_pid)
    prctl(Prctl.SET_CHILD_SUBREAPER, 1)
    # Before this process has its own signal handlers, which the supervisor would inherit.
    supervisor = None
    if not job.is_reference:
        files = SharedFiles(around.fired, job.history)
        supervisor = _Supervisor(fork_supervisor(journal.fd, files), journal)
    handle = supervisor.handle if supervisor else None
    began = time.monotonic()
    clock = TrialClock(
        journal, job, handle, lambda: (each.pid for each in trial_processes(around.server_pids))
    )
    warden = _Warden(around, clock, supervisor, parent, _pipe_of_signals())
    spared = [supervisor.pid] if supervisor else []
    end = warden.run(partial(root, handle, 0))
    for number, process in enumerate(job.processes[1:], start=1):
        if not warden.is_over:
            break
        # Whether it can run may depend on what an earlier one has written.
        if all(step.may_run(journal) for step in process):
            around.remove_shared_memory(end_all(spared))
            end = warden.run(partial(root, handle, number))
    _end_server(around)
    killed = end_all(spared)
    if supervisor:
        supervisor.end()
    around.remove_shared_memory(killed)
    around.remove_segments()
    around.remove_folders(shared=os.getppid() != pytest_pid)
    duration = round(time.monotonic() - began, 3)
    journal.write(TrialEnded(end, duration, began))


def _end_server(around: Surroundings) -> None:
    """End the fork server, if there is one, with its workers."""
    if around.server is None:
        return
    server = around.server.pids[1]
    if has_ended(server, 0) and (number := proc.signal_that_ended(server)):
        what = f"the fork server (pid {server}), which starts the workers,"
        why = f"{what} {describe_end(-number)}{NOTHING_SHOWN}."
        around.facts.write(failed(LostProcessError(why)))
    around.server.end()


class _Warden(NamedTuple):
    """Runs one process of the trial after the other, and watches it.

    *parent* and *signals* are descriptors: of pytest's process, and of numbers of signals.
    """

    around: Surroundings
    clock: TrialClock
    supervisor: _Supervisor | None
    parent: int
    signals: int

    @property
    def is_over(self) -> bool:
        """Whether the latest process of the trial completed its work."""
        phases = [event.phase for event in self.around.facts.of(PhaseStarted)]
        return phases[-1:] == [DONE]

    def run(self, action: Callable[[], None]) -> TrialEnd:
        """Run *action* in a child until it ends, or its time is up."""
        journal, supervisor = self.around.facts, self.supervisor
        child = _start(action)
        if supervisor:
            supervisor.handle.control.close()  # So that the trial's death ends the connection.
        why = self._wait_until_over(os.pidfd_open(child))
        is_stopped = why == "deadline" and proc.is_stopped(child)
        at_deadline = self.clock.activity() if why == "deadline" else None
        if at_deadline:
            ours = supervisor.pid if supervisor else None
            hung = [each for each in trial_processes(self.around.server_pids) if each.pid != ours]
            _write_stacks(hung, self.around.stacks)
            send(signal.SIGSTOP, hung)  # Or they would continue once faults are over.
        exitcode = (reap(child) or 0) if why == "ended" else 0
        failure = describe_stop(child) if is_stopped else self._find_failure(why, exitcode)
        if journal.loss:
            journal.write(failed(UnusableDatasetError(journal.loss)))
        elif failure:
            printed = describe_output(supervisor.handle.printed) if supervisor else ""
            journal.write(failed(LostProcessError(f"{failure}.{printed}")))
        return TrialEnd(exitcode, at_deadline)

    def _wait_until_over(self, child: int) -> str:
        """Why the wait is over: ``"ended"``, ``"deadline"``, or one of these.

        ``"abandoned"``: pytest has exited, or the trial's own work takes too long. ``"supervisor
        ended"``: the supervisor ended too early. A signal's name: that signal requested the end of
        the trial.
        """
        while not self.clock.look():
            if why := self._wait(child, min(self.clock.until, time.monotonic() + SLICE)):
                return why
        if self.clock.whose != HARNESS:
            return "deadline"
        self.around.facts.write(failed(HarnessError(OVERDUE)))
        return "abandoned"

    def _wait(self, child: int, until: float) -> str | None:
        """Why the wait for the descriptor *child* is over before *until*; None if it is not."""
        reasons = {child: "ended", self.parent: "abandoned"}
        if self.supervisor:
            reasons[self.supervisor.fd] = "supervisor ended"
        watched = [*reasons, self.signals]
        while readable := wait_until_readable(watched, until - time.monotonic()):
            if why := next((why for each, why in reasons.items() if each in readable), None):
                return why
            if received := _TO_END.intersection(os.read(self.signals, 1 << 10)):
                return signal.Signals(min(received)).name
        return None

    def _find_failure(self, why: str, exitcode: int) -> str | None:
        """What happened to the harness, so that the trial shows nothing."""
        if why in signal.Signals.__members__:
            return f"{why} was sent to {describe_warden(os.getpid())}{NOTHING_SHOWN}"
        if self.supervisor and (exitcode or why in ("supervisor ended", "deadline")):
            return self.supervisor.find_failure(must_report=why != "supervisor ended")
        return None


def describe_stop(child: int) -> str:
    return (
        f"the main process (pid {child}), which iterates the loader, {STOPPED}."
        " Unless the dataset stopped it, the trial proves nothing about the dataset"
    )


def _start(action: Callable[[], None]) -> int:
    warden = os.getpid()
    child = os.fork()
    if not child:
        os.setsid()  # Signals that a worker sends to its group must not reach the warden.
        end_with_parent(warden)
        signal.set_wakeup_fd(-1)  # The trial has its own signals.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise_on_sigint()
        action()
    return child


def _pipe_of_signals() -> int:
    """A descriptor from which to read the numbers of the signals that arrived.

    They include every signal that pytest's process has a handler for. It has one for SIGCHLD once
    torch has started workers in it.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    for number in _TO_END:
        signal.signal(number, lambda _number, _frame: None)
    return read


def _write_stacks(processes: Iterable[psutil.Process], file: AnonymousFile) -> None:
    """Ask *processes* for their stacks, and write these, or what else is known, to *file*."""
    requests: list[tuple[str, StackRequest | None]] = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            where = proc.waits_in(process.pid)
            state = f"{process.status()}, in {where}" if where else process.status()
            title = f"\nProcess {process.pid} ({state}):"
            try:
                requests.append((title, StackRequest(process.pid)))
            except LookupError:
                if not is_infrastructure(command):
                    command_line = printable(command)[:120]  # File names in it may have any bytes.
                    requests.append((f"{title} {command_line}", None))
    for title, request in requests:
        stacks = request.text() if request else ""
        os.write(file.fd, f"{title}\n{stacks}".encode())


# Some facts about a supervisor's end. The calls of all processes of a trial wait for it, also those
# of the helpers that remove what others have left. So it lives until the warden ends it, as the
# last of them. It writes its report if the trial cannot request it: when the trial's process has
# died, and on a signal of the warden. If it ends earlier, the calls fail with ENOSYS from then on,
# and what the dataset makes of that says nothing about it. Like any process, it may be killed or
# stopped.


class _Supervisor:
    """The supervisor of a trial, until the last other process of that has ended."""

    def __init__(self, handle: SupervisorHandle, journal: Journal) -> None:
        self.handle, self.pid = handle, handle.pid
        self.fd = os.pidfd_open(self.pid)
        """Readable once it has ended."""
        self._journal = journal

    def find_failure(self, *, must_report: bool) -> str | None:
        """What is wrong with it, if anything, when the trial's process has ended, or it has.

        *must_report*: whether it must now write its report, if faults were armed.
        """
        if must_report and not self._has_written(FaultsArmed):
            return None
        failure = self._describe_end()
        if failure is None and must_report:
            failure = self._request_report()
        name = f"the supervisor (pid {self.pid}), which answers the workers' system calls,"
        return failure and f"{name} {failure}{NOTHING_SHOWN}"

    def _describe_end(self) -> str | None:
        """How it ended; None if it runs."""
        end = describe_child_exit(self.pid)
        return "was terminated by SIGTERM" if end == "" else end

    def _request_report(self) -> str | None:
        if proc.is_stopped(self.pid):
            return STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, REPORT_SIGNAL)
        patience = Patience(_PATIENCE, [self.pid], SIGN_OF_LIFE)
        has_ended = partial(wait_until_readable, [self.fd], _BETWEEN_LOOKS)
        while not (self._has_written(WorkerReports) or has_ended()):
            if patience.is_over():
                is_stopped = proc.is_stopped(self.pid)
                return STOPPED if is_stopped else f"wrote no report for {_PATIENCE:g} s"
        return self._describe_end()

    def end(self) -> None:
        """End it, after all processes whose calls it answers."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            is_stopped = proc.is_stopped(self.pid)
            if is_stopped or not ready_in_time([self.fd], _PATIENCE, [self.pid]):
                os.kill(self.pid, signal.SIGKILL)
        reap(self.pid)

    def _has_written(self, kind: type[JournalEvent]) -> bool:
        return any(True for _ in self._journal.of(kind))


# The processes of a trial, from before the fork on.
#
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
    pytest_dataloader_faults._engine.iterator
    pytest_dataloader_faults._engine.fetch_hooks
    pytest_dataloader_faults._trial.driver
    pytest_dataloader_faults._trial.warden
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
        write_on_signal()
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
