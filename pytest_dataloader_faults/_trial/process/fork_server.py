"""One fork server for all trials of this process [runs in pytest].

Some facts about workers that are started by "forkserver". multiprocessing starts its server where
the first one is needed, which is in each trial again, since a server that pytest had started would
have its workers outside of the trial's tree. A server that imports torch takes a second. So one
process imports torch once per session, and forks a server for each trial. What that server starts
is not below the trial's warden: so it has its own keeper, a subreaper, which ends all of it once
the warden closes a socket or dies. The keeper has the trial's environment variables, working
directory and limit of descriptors: those of the process that has torch may be old. multiprocessing
gives a worker the rest (multiprocessing/spawn.py, get_preparation_data).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver, spawn, util
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.ownership import OwnedDescriptor
from pytest_dataloader_faults._engine.system.patience import has_ended, ready_in_time
from pytest_dataloader_faults._engine.system.processes import main_code
from pytest_dataloader_faults._settings.jobs import Job, ReferenceJob

_MAIN = "pytest_dataloader_faults._trial.process.fork_server_main"
_KEY_LENGTH = 32
"""Bytes; multiprocessing demands this many."""
_PATIENCE = 60.0
"""Seconds until torch is imported, those not counted that wait for a processor."""
_END_PATIENCE = 10.0
_LONGEST = 64


class TrialServer(NamedTuple):
    """The fork server of one trial.

    *pids*: those of the keeper and of the server. *address*: of the socket for requests. *key*:
    what its clients prove to have, from Python 3.14 on. *alive*: a descriptor that each client of
    the server holds. *warden_socket*: the socket that the warden lets go of.
    """

    pids: tuple[int, int]
    address: str
    key: bytes
    alive: int
    warden_socket: socket.socket

    def use(self) -> None:
        """Have multiprocessing start workers from it [in the trial's process]."""
        client: Any = forkserver._forkserver
        client._forkserver_address, client._forkserver_alive_fd = self.address, self.alive
        client._forkserver_authkey = self.key
        client.ensure_running = lambda: None  # It waits for a child, and this is none.
        self.warden_socket.close()  # It is the warden's.

    def end(self) -> None:
        """End all that the server has started, and wait until that is done.

        [in the warden, or in pytest if the warden was killed]
        """
        self.warden_socket.shutdown(socket.SHUT_WR)
        ready_in_time([self.warden_socket.fileno()], _END_PATIENCE, self.pids)

    def close(self) -> None:
        """Let go of it; the keeper, unless it was killed, ends what is left."""
        os.close(self.alive)
        self.warden_socket.close()
        temporary.remove(os.path.dirname(self.address))


_MOST = 4
"""How many are started, one after the other: the import of the main module may never end."""
_started: list[_Preloaded] = []
"""The preloaded processes that this process has started; the last one may run."""


def _is_needed(job: Job) -> bool:
    """Whether the loader of *job* starts its workers by a fork server, as far as *job* shows."""
    method = method_of(job.loader.get("multiprocessing_context"))
    return method == "forkserver" and not isinstance(job, ReferenceJob)


def begin() -> None:
    """Import torch for future workers, while this process does something else."""
    with contextlib.suppress(OSError):  # The trial that needs it will report it.
        if not _started:
            _started.append(_Preloaded())


def start_for(job: Job) -> None:
    """Have torch imported for the workers of *job*, if they need it, and wait for that.

    It takes a second, so it is done before the trial has anything that a killed process may leave.
    """
    if _is_needed(job) and not _is_running() and len(_started) < _MOST:
        _started.append(_Preloaded())
        _is_running()  # This waits for it.


def _is_running() -> bool:
    return bool(_started) and _started[-1].is_usable()


def server_for(job: Job, printed: int) -> TrialServer | None:
    """A fork server for *job*, whose processes print to *printed*.

    None if *job* needs none, or if there is none: then multiprocessing starts one, and that imports
    torch first.
    """
    if not _is_needed(job):
        return None
    for _ in range(2):  # Only this shows that a process was killed just now.
        if not _is_running():
            return None
        if server := _started[-1].fork_server(job, printed):
            return server
        _started[-1].kill()
        start_for(job)
    return None


class _Preloaded:
    """The process that has imported torch, and forks a server for each trial."""

    def __init__(self) -> None:
        self._owner, self._has_imported = os.getpid(), False
        self._control, theirs = socket.socketpair()
        self._owned = OwnedDescriptor(self._control.fileno())
        with keep_start_method():
            main = spawn.get_preparation_data("").get("init_main_from_path")
        arguments = json.dumps([theirs.fileno(), sys.path, main])
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", main_code(_MAIN), arguments]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def is_usable(self) -> bool:
        """Whether this process has started it, and it runs and has imported torch in time."""
        if self._owner != os.getpid() or self._process.poll() is not None:
            return False
        if not self._owned.is_open:
            self.kill()
            return False
        if not self._has_imported:
            self._has_imported = self._is_ready(self._control) and bool(self._control.recv(1))
            if not self._has_imported:
                self.kill()
        return self._has_imported

    def _is_ready(self, connection: socket.socket) -> bool:
        """Whether it answers by *connection* in time."""
        return bool(ready_in_time([connection.fileno()], _PATIENCE, [self._process.pid]))

    def fork_server(self, job: Job, printed: int) -> TrialServer | None:
        """One for *job*, which prints to *printed*; None if this process does not answer."""
        folder = temporary.name_for_sockets()
        address = os.path.join(folder, "fork-server")
        warden_socket, theirs = socket.socketpair()
        alive_r, alive_w = os.pipe()
        key = os.urandom(_KEY_LENGTH)
        try:
            with theirs:
                self._send((theirs.fileno(), alive_r, printed), address, key, job)
            pids = warden_socket.recv(_LONGEST) if self._is_ready(warden_socket) else b""
        except ConnectionError:
            pids = b""
        finally:
            os.close(alive_r)
        if pids:
            keeper, server = json.loads(pids)
            return TrialServer((keeper, server), address, key, alive_w, warden_socket)
        os.close(alive_w)
        warden_socket.close()
        temporary.remove(folder)
        return None

    def _send(self, descriptors: Iterable[int], address: str, key: bytes, job: Job) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        environment = {**os.environ, **(job.rank.environment if job.rank else {})}
        begin_with = environment, os.getcwd(), limits, job.options.descriptors
        message = json.dumps([address, key.hex(), *begin_with]).encode()
        length = len(message).to_bytes(4, "little")
        socket.send_fds(self._control, [length], list(descriptors))
        self._control.sendall(message)

    def kill(self) -> None:
        """End it at once."""
        self._hang_up()
        self._process.kill()
        self._process.wait()

    def _hang_up(self) -> None:
        """Close the connection, unless code of the user's has done so and uses its number."""
        if not self._owned.is_open:
            self._control.detach()
        self._control.close()

    def _end(self) -> None:
        """End it with this process instead of some time later."""
        if self._owner != os.getpid():
            return
        if not self._has_imported:
            self.kill()
        self._hang_up()
        if has_ended(self._process.pid, _END_PATIENCE):
            self._process.wait()


# Some facts about start methods. A ``DataLoader`` without a ``multiprocessing_context`` takes the
# default of multiprocessing: what ``set_start_method()`` has set, or else ``"fork"`` on Linux up to
# Python 3.13, and ``"forkserver"`` from 3.14 on. Whatever uses that default settles it, also a look
# at it by ``get_context()`` or ``get_start_method()``: ``set_start_method()`` raises RuntimeError
# afterwards. In pytest's process only the user may do so.


def method_of(context: Any) -> str:
    """That of a ``multiprocessing_context``: a name, a context, or None for the default."""
    if context is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        return chosen or multiprocessing.get_all_start_methods()[0]
    ask = getattr(context, "get_start_method", None)
    return str(ask() if callable(ask) else context)


@contextlib.contextmanager
def keep_start_method() -> Iterator[None]:
    """Leave the default as it is, whatever in this scope uses it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(chosen, force=True)
