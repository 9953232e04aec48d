"""Start a supervisor and talk to it [runs in the process that drives the loader]."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from multiprocessing.util import get_temp_dir
from typing import TypeVar

from torch import multiprocessing

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.supervisor.start import fork_supervisor
from pytest_dataloader_faults._engine.system import processes, temporary
from pytest_dataloader_faults._engine.system.libc import collapse_after_two_scopes
from pytest_dataloader_faults._engine.system.proc import is_dead, is_stopped
from pytest_dataloader_faults.exceptions import LostProcessError, UnusableEnvironmentError

_PATIENCE = 10.0
"""Seconds in which a supervisor that owes an answer neither works nor waits for a processor."""
_WITHOUT_WORKERS = 0.2
"""Seconds in which a supervisor that has no workers ends."""
_END_PATIENCE = 1.0
"""Seconds between the last descriptor that a supervisor closes and its end."""
_NO_ROOM = (
    "no disk space for temporary files: {}. Workers need a socket there to send a batch; without it"
    " a loader waits forever. Free some disk space, or set TMPDIR to a folder that has some"
)
_unreaped: list[int] = []
"""Supervisors of closed scopes, until they have ended and this process has waited for them."""
_Answer = TypeVar("_Answer", bound=protocol.ToLoader)


class SupervisorClient:
    """The connection to a running supervisor, while its scope lasts."""

    def __init__(
        self,
        plan: FaultPlan,
        stacks: bool,
        running: protocol.SupervisorHandle | None,
        *,
        has_folder: bool = True,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = self._stopped = False
        self._unsent: list[protocol.FromLoader] = []
        # A trial has its own folder.
        is_needed = running is None and has_folder
        self._folder = temporary.name_for_sockets() if is_needed else None
        # Workers may change the fake files there, also after a fault.
        plan = replace(plan, spared=(*plan.spared, os.path.realpath(self.folder)))
        if running is None:
            collapse_after_two_scopes()
        self._handle = handle = running or fork_supervisor()
        self._is_own = running is None
        self.pid = handle.pid
        """The supervisor's process id."""
        self._channel = handle.control
        self._channel.connection.settimeout(_PATIENCE)  # For a message that it does not take.
        strategy = multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        unlinks = strategy == "file_descriptor"
        request = protocol.Configure(plan, os.getpid(), self._folder, unlinks)
        try:
            if refused := self._request(request, protocol.Done).no_folder:
                message = _NO_ROOM.format(refused)
                raise UnusableEnvironmentError(message, "no disk space for temporary files")
        except BaseException:  # Also for Ctrl-C.
            self.close()
            raise
        self.config = protocol.WorkerConfig(
            handle.door, self.pid, plan, stacks=stacks, folder=self._folder
        )

    @property
    def folder(self) -> str:
        """For the sockets of workers, and the fake files that they see."""
        return self._folder or get_temp_dir()

    def send(self, message: protocol.FromLoader) -> None:
        """Send *message*, which is not answered. After the scope it is dropped.

        The garbage collector may end an iterator, which sends ``ReleaseLoader``, while this very
        thread sends another message. The sender of that message then also sends this one.
        """
        self._unsent.append(message)
        if self._lock.acquire(blocking=False):
            try:
                self._send_pending()
            finally:
                self._lock.release()

    def _send_pending(self) -> None:
        with contextlib.suppress(ConnectionError):  # report() gets it again, and raises.
            while self._unsent:
                message = self._unsent.pop(0)
                if not self._closed:
                    self._send(message)

    def wait_until_idle(
        self,
        loader: int,
        epoch: int,
        sent: Mapping[int, int],
        workers: Collection[int],
        patience: float | None = None,
    ) -> protocol.Idle:
        """Wait until every live worker has made the batches it was sent, or hangs.

        *workers*: their processes. They have some seconds in which they can run. *patience*: for
        how many seconds to wait for the others if one hangs.
        """
        try:
            request = protocol.WaitUntilIdle(loader, epoch, tuple(sent.items()), patience)
            with self._lock:
                return self._exchange(request, protocol.Idle, workers)
        except TimeoutError:
            return protocol.Idle()

    def end_faults(self) -> None:
        """Let no fault happen from now on."""
        self._request(protocol.EndFaults(), protocol.Done)

    def note_dataset_made(self) -> None:
        """What fires in this process from now on does not fire while it makes the dataset."""
        self._request(protocol.DatasetMade(), protocol.Done)

    def report(self, *, finish: bool = False) -> protocol.WorkerReports:
        """What has happened so far; *finish*: and inject nothing from now on."""
        return self._request(protocol.GetReport(finish), protocol.WorkerReports)

    def require_running(self) -> None:
        """Raise if the supervisor has been stopped for two looks, or is dead, in an open scope."""
        was, self._stopped = self._stopped, is_stopped(self.pid)
        if not self._closed and self._stopped and was:
            raise self._silence_error()
        if not self._closed and self._is_own and is_dead(self.pid):
            raise self._exited_error()

    def close(self) -> None:
        """Hang up. The supervisor ends with the last process whose calls it answers."""
        with self._lock:
            self._closed = True
            self._channel.close()
            self._handle.door.channel.close()
        if self._folder is not None:
            _end(self.pid, self._folder)
            self._handle.printed.close()

    def _request(self, message: protocol.FromLoader, kind: type[_Answer]) -> _Answer:
        try:
            with self._lock:
                return self._exchange(message, kind)
        except TimeoutError as error:
            raise self._silence_error() from error

    def _exchange(
        self, message: protocol.FromLoader, kind: type[_Answer], workers: Collection[int] = ()
    ) -> _Answer:
        """The answer to *message*. A late answer to an earlier one may arrive before it.

        *workers*: the processes that it waits for, in addition to the supervisor.
        """
        self._send_pending()
        try:
            self._send(message)
            answer = self._receive(workers)
            while not isinstance(answer, kind):
                answer = self._receive(workers)
        except (EOFError, ConnectionError) as error:
            raise self._exited_error() from error
        self._send_pending()
        return answer

    def _receive(self, workers: Collection[int]) -> object:
        """The next answer. TimeoutError: the supervisor had its time, and did nothing."""
        work = 1.0 if workers else processes.SIGN_OF_LIFE
        pids = [self.pid, *workers]
        if not processes.ready_in_time([self._channel.fileno()], _PATIENCE, pids, work):
            raise TimeoutError
        return self._channel.receive()[0]

    def _send(self, message: protocol.FromLoader) -> None:
        """Send *message*."""
        try:
            self._channel.send(message)
        except TimeoutError as error:
            raise self._silence_error() from error

    def _exited_error(self) -> LostProcessError:
        return LostProcessError(
            f"the supervisor (pid {self.pid}) {self._describe_exit()}, so the workers' system calls"
            " fail with ENOSYS, which says nothing about the dataset."
            f"{protocol.describe_output(self._handle.printed)}"
        )

    def _describe_exit(self) -> str:
        """How the supervisor ended; only if it is not a trial's, whose warden is its parent."""
        is_over = self._is_own and processes.has_ended(self.pid, _END_PATIENCE)
        return (is_over and processes.describe_child_exit(self.pid)) or "has exited"

    def _silence_error(self) -> LostProcessError:
        state = "is stopped (SIGSTOP, or a debugger)" if is_stopped(self.pid) else "is running"
        return LostProcessError(
            f"the supervisor (pid {self.pid}) {state}, but did not answer for {_PATIENCE:g} s. The"
            " workers' system calls wait for it, which says nothing about the dataset. Run the"
            " test again. If it happens again, find out what stops processes on this machine"
        )


def _end(supervisor: int, folder: str) -> None:
    """Wait for *supervisor* unless workers outlive its scope. It removes *folder* in the end."""
    if is_stopped(supervisor):  # It would never end.
        os.kill(supervisor, signal.SIGKILL)
    if processes.has_ended(supervisor, _WITHOUT_WORKERS):
        temporary.remove(folder)  # It has done so, unless it was killed.
    _unreaped.append(supervisor)
    _unreaped[:] = [each for each in _unreaped if not _is_reaped(each)]


def _is_reaped(child: int) -> bool:
    """Whether *child* has ended, and this process, or code of the user's, has waited for it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True
