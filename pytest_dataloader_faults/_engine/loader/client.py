"""Start a supervisor and talk to it [runs in the process that drives the loader]."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing import util
from typing import Any, NamedTuple, TypeVar

from torch import multiprocessing

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.channel import Channel, Door
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.patience import (
    SIGN_OF_LIFE,
    Patience,
    has_ended,
)
from pytest_dataloader_faults._engine.system.proc import is_dead, is_stopped
from pytest_dataloader_faults._engine.system.processes import describe_end, main_code
from pytest_dataloader_faults._engine.system.temporary import AnonymousFile
from pytest_dataloader_faults.exceptions import (
    HarnessError,
    LostProcessError,
    UnusableEnvironmentError,
)

_HOST = "pytest_dataloader_faults._engine.supervisor.host"
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
_hosts: dict[int, _Host] = {}
"""By process: what forks its supervisors. A forked process has none of its own at first."""
_Answer = TypeVar("_Answer", bound=protocol.ToLoader)


class SupervisorClient:
    """The connection to a running supervisor, while its scope lasts."""

    def __init__(
        self, plan: FaultPlan, stacks: bool, running: protocol.SupervisorHandle | None
    ) -> None:
        self._lock = threading.Lock()
        self._closed = self._stopped = False
        self._unsent: list[protocol.FromLoader] = []
        # A trial has its own folder.
        self._folder = None if running else temporary.name_for_sockets()
        self._process: _SupervisorProcess | None
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
        request = protocol.Configure(plan, os.getpid(), self._folder, unlinks)
        try:
            if refused := self._request(request, protocol.Ready).no_folder:
                message = _NO_ROOM.format(refused)
                raise UnusableEnvironmentError(message, "no disk space for temporary files")
        except BaseException:  # Also for Ctrl-C.
            self.close()
            raise
        self.config = protocol.WorkerConfig(
            handle.door, self.pid, plan, fake_files() is not None, stacks, self._folder
        )

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
            with self._lock, self._connection.waiting_for(workers):
                return self._exchange(request, protocol.Idle)
        except TimeoutError:
            return protocol.Idle()

    def end_faults(self) -> None:
        """Let no fault happen from now on."""
        self._request(protocol.EndFaults(), protocol.FaultsEnded)

    def note_dataset_made(self) -> None:
        """What fires in this process from now on does not fire while it makes the dataset."""
        self._request(protocol.DatasetMade(), protocol.MadeNoted)

    def report(self, *, finish: bool = False) -> protocol.WorkerReports:
        """What has happened so far; *finish*: and inject nothing from now on."""
        return self._request(protocol.GetReport(finish), protocol.WorkerReports)

    def require_running(self) -> None:
        """Raise if the supervisor has been stopped for two looks, or is dead, in an open scope."""
        was, self._stopped = self._stopped, is_stopped(self.pid)
        if not self._closed and self._stopped and was:
            raise self._silence_error()
        if not self._closed and self._process is not None and is_dead(self.pid):
            raise self._exited_error()

    def close(self) -> None:
        """Hang up. The supervisor ends with the last process whose calls it answers."""
        with self._lock:
            self._closed = True
            self._channel.close()
            self._handle.door.channel.close()
        if self._process is not None and self._folder is not None:
            self._process.end(self._folder)
            self._handle.printed.close()

    def _request(self, message: protocol.FromLoader, kind: type[_Answer]) -> _Answer:
        try:
            with self._lock:
                return self._exchange(message, kind)
        except TimeoutError as error:
            raise self._silence_error() from error

    def _exchange(self, message: protocol.FromLoader, kind: type[_Answer]) -> _Answer:
        """The answer to *message*. A late answer to an earlier one may arrive before it."""
        self._send_pending()
        try:
            self._send(message)
            answer = self._channel.receive()[0]
            while not isinstance(answer, kind):
                answer = self._channel.receive()[0]
        except (EOFError, ConnectionError) as error:
            raise self._exited_error() from error
        self._send_pending()
        return answer

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
        if self._process is not None and has_ended(self.pid, _END_PATIENCE):
            return self._process.describe_end()
        return "has exited"

    def _silence_error(self) -> LostProcessError:
        state = "is stopped (SIGSTOP, or a debugger)" if is_stopped(self.pid) else "is running"
        return LostProcessError(
            f"the supervisor (pid {self.pid}) {state}, but did not answer for {_PATIENCE:g} s. The"
            " workers' system calls wait for it, which says nothing about the dataset. Run the"
            " test again. If it happens again, find out what stops processes on this machine"
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
        """Wait for the processes *workers*, and for the supervisor that serves them."""
        self._workers = workers
        try:
            yield
        finally:
            self._workers = ()

    def recvmsg_into(self, *arguments: Any) -> Any:
        return self._in_time(super().recvmsg_into, *arguments)

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
        """The remaining seconds after the first attempt."""
        work = 1.0 if self._workers else SIGN_OF_LIFE
        return Patience(_PATIENCE - self._slice, [self._supervisor, *self._workers], work)


class _Host(NamedTuple):
    """The process that forks supervisors for this one, and the name of its listening socket."""

    pid: int
    address: str


class _SupervisorProcess:
    """The supervisor of one scope, which *host* forks with the *descriptors* of the scope.

    Raises EOFError or ConnectionError if the host has ended.
    """

    def __init__(self, host: _Host, descriptors: list[int]) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(connection)
        try:
            connection.connect(f"\0{host.address}")
            self._channel.connection = _Connection(connection, host.pid)
            self._channel.send(protocol.StartSupervisor(), descriptors)
            started, _ = self._channel.receive()
            assert isinstance(started, protocol.SupervisorStarted)
            if started.refused:
                raise UnusableEnvironmentError(started.refused, "too few processes")
        except BaseException:
            self._channel.close()
            raise
        self.pid = started.pid

    def describe_end(self) -> str:
        """How it has ended, as far as that is known."""
        with contextlib.suppress(EOFError, OSError, HarnessError):
            self._channel.send(protocol.GetEnd())
            end, _ = self._channel.receive()
            if isinstance(end, protocol.EndOfSupervisor) and end.code is not None:
                return describe_end(end.code)
        return "has exited"

    def end(self, folder: str) -> None:
        """Wait for it unless its workers outlive the scope. It removes *folder* in the end."""
        if is_stopped(self.pid):  # It would never end.
            os.kill(self.pid, signal.SIGKILL)
        if has_ended(self.pid, _WITHOUT_WORKERS):
            temporary.remove(folder)  # It has done so, unless it was killed.
        self._channel.close()


def _start() -> tuple[_SupervisorProcess, protocol.SupervisorHandle]:
    """Have a supervisor forked that imports no code of the user."""
    with contextlib.ExitStack() as until_started:
        printed = AnonymousFile("supervisor")
        until_started.callback(printed.close)
        ours, theirs = Channel.pair()
        door, inside = Channel.pair()
        for each in (ours, door):
            until_started.callback(each.close)
        with contextlib.closing(theirs), contextlib.closing(inside):
            process = _fork_in_host([theirs.fileno(), inside.fileno(), printed.fd], printed)
        until_started.pop_all()
    handle = protocol.SupervisorHandle(process.pid, ours, Door(door), printed)
    return process, handle


def _fork_in_host(inherited: list[int], printed: AnonymousFile) -> _SupervisorProcess:
    """The supervisor, forked by this process's host; by another host if that has been killed."""
    if host := _hosts.get(os.getpid()):
        with contextlib.suppress(EOFError, ConnectionError):
            return _fork_in(host, inherited)
        _wait_for_end(host)
    host = _start_host(printed)
    try:
        return _fork_in(host, inherited)
    except (EOFError, ConnectionError) as error:
        ending = _wait_for_end(host)
        raise LostProcessError(
            f"the process that starts supervisors (pid {host.pid}) {ending}, so no fault can be"
            " injected, which says nothing about the dataset."
            f"{protocol.describe_output(printed)}"
        ) from error


def _fork_in(host: _Host, inherited: list[int]) -> _SupervisorProcess:
    """The supervisor, forked by *host*, which is this process's host from now on."""
    try:
        process = _SupervisorProcess(host, inherited)
    except TimeoutError as error:
        os.kill(host.pid, signal.SIGKILL)
        raise ConnectionError from error
    _hosts[os.getpid()] = host
    return process


def _wait_for_end(host: _Host) -> str:
    """How *host* ended, whose connection has ended."""
    with contextlib.suppress(ChildProcessError):  # The user's code has waited for all children.
        if has_ended(host.pid, _END_PATIENCE):
            return describe_end(os.waitstatus_to_exitcode(os.waitpid(host.pid, 0)[1]))
    return "has exited"


def _start_host(printed: AnonymousFile) -> _Host:
    """Start a process, isolated and without site-packages, which imports no code of the user."""
    flags = ["-I", "-S", *_bytecode_flags()]
    command = [sys.executable, *flags, "-c", main_code(_HOST)]
    listening, address = _listening_socket()
    with listening:
        process = subprocess.Popen(
            [*command, str(listening.fileno()), str(os.getpid())],
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=printed.fd,
            stderr=printed.fd,
        )
    process.returncode = 0  # Or Popen would warn at exit that it still runs, as it should.
    host = _Host(process.pid, address)
    util.Finalize(None, _end_if_stopped, [host], exitpriority=-1)
    return host


def _end_if_stopped(host: _Host) -> None:
    """End *host* at the end of this process, which it would not notice if it is stopped."""
    kind = socket.AF_UNIX, socket.SOCK_SEQPACKET
    with contextlib.suppress(OSError), socket.socket(*kind) as connection:
        connection.setblocking(False)
        connection.connect(f"\0{host.address}")  # Otherwise its number may be another process's.
        if is_stopped(host.pid):
            os.kill(host.pid, signal.SIGKILL)


def _listening_socket() -> tuple[socket.socket, str]:
    """A socket that scopes connect to, and its name in the abstract namespace."""
    address = f"pytest-dataloader-faults-{os.getpid()}-{os.urandom(8).hex()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"\0{address}")
    listening.listen()
    return listening, address


def _bytecode_flags() -> list[str]:
    """Where to write it, as in this process: an isolated one ignores environment variables."""
    if sys.dont_write_bytecode:
        return ["-B"]
    return ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
