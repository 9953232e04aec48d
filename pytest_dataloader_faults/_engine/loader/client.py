"""Start a supervisor and talk to it [runs in the process that drives the loader]."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from torch import multiprocessing

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.patience import (
    SIGN_OF_LIFE,
    Patience,
    has_ended,
)
from pytest_dataloader_faults._engine.system.proc import is_stopped
from pytest_dataloader_faults._engine.system.processes import code_to_run, end_in_words
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults.exceptions import LostProcessError, UnusableEnvironmentError

_MAIN = "pytest_dataloader_faults._engine.supervisor.server"
_PATIENCE = 10.0
"""Seconds in which a supervisor that owes an answer neither works nor waits for a processor."""
_END_PATIENCE = 1.0
"""Seconds between the last descriptor that a supervisor closes and its end."""
_NO_ROOM = (
    "no room for temporary files: {}. A worker needs a socket there to pass on a batch. A loader"
    " waits forever for a batch that does not come. Free some, or set TMPDIR to a folder"
    " that has room"
)
_outliving: list[int] = []
"""Supervisors whose workers outlived their scope; each ends with the last of its workers."""
_Answer = TypeVar("_Answer", bound=protocol.ToLoader)


class SupervisorClient:
    """The connection to a running supervisor, for as long as its scope lasts."""

    def __init__(
        self, plan: Plan, engine: str, stacks: str | None, running: protocol.SupervisorHandle | None
    ) -> None:
        self._lock = threading.Lock()
        self._closed = self._stopped = False
        self._unsent: list[protocol.FromLoader] = []
        # A trial has a folder of its own.
        self._folder = None if running else temporary.name_for_sockets()
        self._process: subprocess.Popen[bytes] | None
        self._process, handle = (None, running) if running else _start()
        self._handle = handle
        self.pid = handle.pid
        """The supervisor's process id."""
        self._channel = handle.control
        self._channel.require()
        self._connection = _Connection(self._channel.connection, self.pid)
        self._channel.connection = self._connection
        strategy = multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        unlinks = strategy == "file_descriptor"
        asked = protocol.Configure(plan.to_dict(), os.getpid(), self._folder, unlinks)
        try:
            if refused := self._ask(asked, protocol.Ready).no_folder:
                message = _NO_ROOM.format(refused)
                raise UnusableEnvironmentError(message, "no room for temporary files")
        except BaseException:  # Ctrl-C, too.
            self.close()
            raise
        where = handle.address, self.pid
        self.config = protocol.WorkerConfig(*where, plan, engine, stacks, self._folder)

    def send(self, message: protocol.FromLoader) -> None:
        """Send *message*, which has no answer. After the scope it is dropped.

        The garbage collector may end an iterator, which sends ``ReleaseLoader``, while this very
        thread sends another message. The sender of that message then sends this one, too.
        """
        self._unsent.append(message)
        if self._lock.acquire(blocking=False):
            try:
                self._send_pending()
            finally:
                self._lock.release()

    def _send_pending(self) -> None:
        with contextlib.suppress(ConnectionError):  # report() meets it again, and raises.
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
        how many seconds to wait for the others where one hangs.
        """
        try:
            asked = protocol.WaitUntilIdle(loader, epoch, tuple(sent.items()), patience)
            with self._lock, self._connection.waiting_for(workers):
                return self._exchange(asked, protocol.Idle)
        except TimeoutError:
            return protocol.Idle()

    def end_faults(self) -> None:
        """Let no fault happen from now on."""
        self._ask(protocol.EndFaults(), protocol.FaultsEnded)

    def note_dataset_made(self) -> None:
        """What fires in this process from now on does not fire while it makes the dataset."""
        self._ask(protocol.DatasetMade(), protocol.MadeNoted)

    def report(self, *, finish: bool = False) -> protocol.Report:
        """What has happened so far; *finish*: and inject nothing from now on."""
        return self._ask(protocol.GetReport(finish), protocol.Report)

    def require_running(self) -> None:
        """Raise if the supervisor has been stopped for two looks, or is dead, in an open scope."""
        was, self._stopped = self._stopped, is_stopped(self.pid)
        if not self._closed and self._stopped and was:
            raise self._silent()
        if not self._closed and self._process is not None and self._process.poll() is not None:
            raise self._gone()

    def close(self) -> None:
        """Hang up. The supervisor ends with the last process whose calls it answers."""
        with self._lock:
            self._closed = True
            self._channel.close()
        if self._process is not None and self._folder is not None:
            _let_end(self._process, self._folder)
            self._handle.printed.close()

    def _ask(self, message: protocol.FromLoader, kind: type[_Answer]) -> _Answer:
        try:
            with self._lock:
                return self._exchange(message, kind)
        except TimeoutError as error:
            raise self._silent() from error

    def _exchange(self, message: protocol.FromLoader, kind: type[_Answer]) -> _Answer:
        """The answer to *message*. A late answer to an earlier one may come before it."""
        self._send_pending()
        try:
            self._send(message)
            answer = self._channel.receive()[0]
            while not isinstance(answer, kind):
                answer = self._channel.receive()[0]
        except (EOFError, ConnectionError) as error:
            raise self._gone() from error
        self._send_pending()
        return answer

    def _send(self, message: protocol.FromLoader) -> None:
        """Send *message*. A timeout may leave half of it sent, so it ends the scope."""
        try:
            self._channel.send(message)
        except TimeoutError as error:
            raise self._silent() from error

    def _gone(self) -> LostProcessError:
        return LostProcessError(
            f"the supervisor (pid {self.pid}) is gone{self._how_it_ended()}; the workers' system"
            " calls then fail with ENOSYS, which says nothing about the dataset."
            f"{self._handle.what_it_printed()}"
        )

    def _how_it_ended(self) -> str:
        """Empty if this process is not its parent: then it is for the warden to say."""
        if self._process is not None and has_ended(self.pid, _END_PATIENCE):
            return f": it {end_in_words(self._process.wait())}"
        return ""

    def _silent(self) -> LostProcessError:
        how = "is stopped (SIGSTOP, or a debugger)" if is_stopped(self.pid) else "lives"
        return LostProcessError(
            f"the supervisor (pid {self.pid}) {how}, and gave no answer for {_PATIENCE:g} s; the"
            " workers' system calls wait for it, which says nothing about the dataset. Run it"
            " again; if it comes again, find out what stops processes on this machine"
        )


class _Connection(socket.socket):
    """The socket of the supervisor. TimeoutError: that one had its time, and did nothing."""

    def __init__(self, connection: socket.socket, supervisor: int) -> None:
        super().__init__(fileno=connection.detach())
        self._slice = _PATIENCE / 10  # It is over before anything is known of those that work.
        self.settimeout(self._slice)
        self._supervisor = supervisor
        self._workers: Collection[int] = ()

    @contextlib.contextmanager
    def waiting_for(self, workers: Collection[int]) -> Iterator[None]:
        """Wait for the processes *workers* and, for them, for the supervisor."""
        self._workers = workers
        try:
            yield
        finally:
            self._workers = ()

    def recvmsg(self, *arguments: Any) -> Any:
        return self._in_time(super().recvmsg, *arguments)

    def sendmsg(self, *arguments: Any) -> Any:
        return self._in_time(super().sendmsg, *arguments)

    def _in_time(self, call: Callable[..., Any], *arguments: Any) -> Any:
        patience: Patience | None = None
        while patience is None or not patience.is_over():
            with contextlib.suppress(TimeoutError):
                return call(*arguments)
            patience = patience or self._patience()
        raise TimeoutError

    def _patience(self) -> Patience:
        """What is left of it after the first attempt."""
        work = 1.0 if self._workers else SIGN_OF_LIFE
        return Patience(_PATIENCE - self._slice, [self._supervisor, *self._workers], work)


def _start() -> tuple[subprocess.Popen[bytes], protocol.SupervisorHandle]:
    """Start a process, isolated and without site-packages, which imports no code of the user."""
    flags = ["-I", "-S", *_about_bytecode()]
    command = [sys.executable, *flags, "-c", code_to_run(_MAIN)]
    printed = AnonymousFile("supervisor")
    try:
        ours, theirs = socket.socketpair()
        listening, address = protocol.listening_socket()
        with listening, theirs:
            inherited = [theirs.fileno(), listening.fileno()]
            process = subprocess.Popen(
                [*command, *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=printed.fd,
                stderr=printed.fd,
            )
    except BaseException:
        printed.close()
        raise
    return process, protocol.SupervisorHandle(process.pid, protocol.Channel(ours), address, printed)


def _about_bytecode() -> list[str]:
    """Where to write it, as in this process: an isolated one reads no environment variables."""
    if sys.dont_write_bytecode:
        return ["-B"]
    return ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []


def _let_end(process: subprocess.Popen[bytes], folder: str) -> None:
    if is_stopped(process.pid):  # It would never end.
        process.kill()
    _outliving[:] = [pid for pid in _outliving if not _reap(pid)]
    try:
        process.wait(0.2)
        temporary.remove(folder)  # It has done so, unless it was killed.
    except subprocess.TimeoutExpired:
        _outliving.append(process.pid)
        process.returncode = 0  # Or Popen would warn at exit that it still runs, as it should.


def _reap(pid: int) -> bool:
    """Ask how a child ended; whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
