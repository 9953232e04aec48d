"""Start a supervisor and talk to it [runs in the process that drives the loader]."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest_dataloader_faults as package
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.processes import is_stopped
from pytest_dataloader_faults._engine.protocol import (
    Channel,
    SupervisorHandle,
    WorkerConfig,
    new_door,
)
from pytest_dataloader_faults.exceptions import InjectionError

_ROOT = os.path.realpath(os.path.join(os.path.dirname(package.__file__), ".."))
_START = (
    "import sys; sys.path.insert(0, {root!r});"
    "from pytest_dataloader_faults._engine.supervisor.main import main; main()"
)
_PATIENCE = 10.0
_outliving: list[subprocess.Popen[bytes]] = []
"""Supervisors whose workers were still there when their scope ended; they end with them."""


class EndedWorkers(NamedTuple):
    """Ids of workers that have ended: *early*, or once their stream had no more samples."""

    early: Sequence[int] = ()
    in_time: Sequence[int] = ()


class SupervisorClient:
    """A running supervisor, for as long as its scope lasts."""

    def __init__(
        self,
        plan: Plan,
        engine: str,
        stacks: str | None = None,
        supervision: SupervisorHandle | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._untold: list[dict[str, Any]] = []
        process, supervision = (None, supervision) if supervision else _start()
        self._process: subprocess.Popen[bytes] | None = process
        self.pid = supervision.pid
        """The supervisor's process id."""
        self._channel = Channel(supervision.control)
        supervision.control.settimeout(_PATIENCE)
        self._ask({"plan": plan.to_dict(), "driver": os.getpid()}, "ready")
        self.posting = WorkerConfig(supervision.address, self.pid, plan, engine, stacks)

    def tell(self, message: dict[str, Any]) -> None:
        """Send *message*; nothing comes back. After the scope it goes nowhere.

        The garbage collector may end an iterator, which tells so, in the midst of another message
        of this very thread: then it is that message's sender who sends this one, too.
        """
        self._untold.append(message)
        if self._lock.acquire(blocking=False):
            try:
                self._send_untold()
            finally:
                self._lock.release()

    def _send_untold(self) -> None:
        with contextlib.suppress(ConnectionError):  # report() finds out and tells.
            while self._untold:
                message = self._untold.pop(0)
                if not self._closed:
                    self._send(message)

    def drain(self, loader: int, epoch: int, sent: dict[int, int]) -> EndedWorkers:
        """Wait until every live worker has made the batches it was asked for, or is stuck.

        Returns those that have ended.
        """
        message = {"drain": loader, "epoch": epoch, "sent": sent}
        with contextlib.suppress(TimeoutError):
            answer = self._exchange(message, "drained")
            return EndedWorkers(answer["drained"], answer["ended"])
        return EndedWorkers()

    def switch(self, active: Sequence[int]) -> None:
        """Let the faults in these places of the schedule happen from now on, and no other."""
        self._ask({"active": list(active)}, "switched")

    def report(self, *, finish: bool = False) -> dict[str, Any]:
        """What has happened so far; *finish*: and inject nothing from now on."""
        return self._ask({"report": True, "finish": finish}, "workers")

    def close(self) -> None:
        """Hang up. The supervisor ends with the last process it has to answer."""
        with self._lock:
            self._closed = True
            self._channel.close()
        if self._process is not None:
            _let_end(self._process)

    def _ask(self, message: dict[str, Any], key: str) -> dict[str, Any]:
        """The answer to *message*, which has to come."""
        try:
            return self._exchange(message, key)
        except TimeoutError as error:
            raise self._silent() from error

    def _exchange(self, message: dict[str, Any], key: str) -> dict[str, Any]:
        """The answer to *message*, known by its *key*: a late one to drain() may come before it."""
        with self._lock:
            self._send_untold()
            try:
                self._send(message)
                while key not in (answer := self._channel.receive()[0]):
                    pass
            except (EOFError, ConnectionError) as error:
                raise self._broken() from error
            self._send_untold()
            return answer

    def _send(self, message: dict[str, Any]) -> None:
        """Half of a message may be gone when there is no room for the rest: that is the end."""
        try:
            self._channel.send(message)
        except TimeoutError as error:
            raise self._silent() from error

    def _silent(self) -> InjectionError:
        how = "is stopped (SIGSTOP, or a debugger)" if is_stopped(self.pid) else "lives"
        message = (
            f"the supervisor (pid {self.pid}) {how}, and gave no answer for {_PATIENCE:g} s; the"
            " workers' system calls wait for it, which says nothing about the dataset. Run it"
            " again; if it comes again, find out what stops processes on this machine"
        )
        return InjectionError(message)

    def _broken(self) -> InjectionError:
        message = (
            f"the supervisor (pid {self.pid}) is gone; the workers' system calls then fail with"
            " ENOSYS, which says nothing about the dataset"
        )
        return InjectionError(message)


def _start() -> tuple[subprocess.Popen[bytes], SupervisorHandle]:
    """Isolated and without site-packages: it imports nothing of the user's."""
    command = [sys.executable, "-I", "-S", "-c", _START.format(root=_ROOT)]
    ours, theirs = socket.socketpair()
    door, address = new_door()
    with door, theirs:
        inherited = [theirs.fileno(), door.fileno()]
        process = subprocess.Popen(
            [*command, *map(str, inherited)], pass_fds=inherited, stdin=subprocess.DEVNULL
        )
    return process, SupervisorHandle(process.pid, ours, address)


def _let_end(process: subprocess.Popen[bytes]) -> None:
    if is_stopped(process.pid):  # It would answer nobody, and never end.
        process.kill()
    _outliving[:] = [each for each in _outliving if each.poll() is None]
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        _outliving.append(process)
