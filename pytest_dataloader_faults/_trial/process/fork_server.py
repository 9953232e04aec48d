"""One fork server for each trial of this process, from a process that has imported torch once."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing import current_process, forkserver, process, spawn, util
from typing import Any, NamedTuple, NoReturn

from pytest_dataloader_faults._engine.system import proc, temporary
from pytest_dataloader_faults._engine.system.imports import FOR_FORK_SERVER, import_late_modules
from pytest_dataloader_faults._engine.system.libc import Prctl, end_with_parent, prctl
from pytest_dataloader_faults._engine.system.processes import (
    LONGEST_WAIT,
    accept_signals,
    fork,
    main_code,
    ready_in_time,
    wait_until_readable,
)
from pytest_dataloader_faults._engine.system.temporary import (
    AnonymousFile,
    OwnedDescriptor,
    SharedMemoryCleaner,
)
from pytest_dataloader_faults._trial.job import Job

# Some facts about workers that are started by "forkserver". multiprocessing starts its server where
# the first one is needed, which is in each trial again, since a server that pytest had started
# would have its workers outside of the trial's tree. A server that imports torch takes a second. So
# one process, the preloaded one, imports torch once per session, and forks a server for each trial.
# What that server starts is not below the trial's warden: so it has its own keeper, a subreaper,
# which ends all of it once the warden closes a socket or dies. The keeper has the trial's
# environment variables, working directory and limit of descriptors: those of the preloaded process
# may be old. multiprocessing gives a worker the rest (multiprocessing/spawn.py,
# get_preparation_data).


_KEY_LENGTH = 32
"""Bytes; multiprocessing demands this many."""
_PATIENCE = 60.0
"""Seconds until torch is imported, those not counted that wait for a processor."""
_END_PATIENCE = 10.0
_LONGEST = 64


class TrialServer(NamedTuple):
    """The fork server of one trial.

    *address*: of the socket for requests. *key*: what its clients prove to have, from Python 3.14
    on. *alive*: a descriptor that each client of the server holds. *warden_socket*: the socket that
    the warden lets go of. *pids*: those of the keeper and of the server.
    """

    address: str
    key: bytes
    alive: int
    warden_socket: socket.socket
    pids: tuple[int, int] = (0, 0)

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
        """Close the connection. The keeper, unless it was killed, then ends what is left."""
        os.close(self.alive)
        self.warden_socket.close()
        temporary.remove(os.path.dirname(self.address))


_MOST = 4
"""How many are started, one after the other: the import of the main module may never end."""
_started: list[_Preloaded] = []
"""The preloaded processes that this process has started; the last one may run."""


def begin() -> None:
    """Import torch for future workers, while this process does something else."""
    with contextlib.suppress(OSError):  # The trial that needs it will report it.
        if not _started:
            _started.append(_Preloaded())


def server_for(job: Job, printed: int) -> TrialServer | None:
    """A fork server for *job*, whose processes print to *printed*.

    None if *job* needs none, or if there is none: then multiprocessing starts one, and that imports
    torch first.
    """
    method = method_of(job.loader.get("multiprocessing_context"))
    if method != "forkserver" or job.is_reference:
        return None
    for _ in range(2):  # Only its answer shows that it was not killed just now.
        if not (_started and _started[-1].is_ready()) and len(_started) < _MOST:
            _started.append(_Preloaded())
        if not _started[-1].is_ready():
            return None
        if server := _started[-1].fork_server(job, printed):
            return server
        _started[-1].kill()
    return None


class _Preloaded:
    """The process that has imported torch, and forks a server for each trial."""

    def __init__(self) -> None:
        self._owner, self._has_imported = os.getpid(), False
        self._control, theirs = socket.socketpair()
        self._owned = OwnedDescriptor(self._control.fileno())
        arguments = json.dumps([theirs.fileno(), sys.path, _path_of_main()])
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", main_code(__name__), arguments]
        # tox sets PYTHONHASHSEED. Each interpreter of a real job has a seed of its own.
        environment = {**os.environ, "PYTHONHASHSEED": "random"}
        with theirs:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.kill)

    def is_ready(self) -> bool:
        """Whether it runs and has imported torch. Wait for that, and end it if it is too slow."""
        if self._owner != os.getpid() or self._process.poll() is not None:
            return False
        if not self._has_imported and self._owned.is_open and self._answers(self._control):
            self._has_imported = bool(self._control.recv(1))
        if not (self._has_imported and self._owned.is_open):
            self.kill()
            return False
        return True

    def _answers(self, connection: socket.socket) -> bool:
        """Whether it answers by *connection* in time."""
        return bool(ready_in_time([connection.fileno()], _PATIENCE, [self._process.pid]))

    def fork_server(self, job: Job, printed: int) -> TrialServer | None:
        """One for *job*, which prints to *printed*; None if this process does not answer."""
        warden_socket, theirs = socket.socketpair()
        reading, alive = os.pipe()
        address = os.path.join(temporary.name_for_sockets(), "fork-server")
        server = TrialServer(address, os.urandom(_KEY_LENGTH), alive, warden_socket)
        message = AnonymousFile("fork-server")
        environment = {**os.environ, **(job.rank.environment if job.rank else {})}
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        inherited = environment, os.getcwd(), limits, job.options.descriptors
        os.write(message.fd, json.dumps([address, server.key.hex(), *inherited]).encode())
        pids = b""
        with contextlib.suppress(ConnectionError):  # It was killed just now.
            descriptors = [theirs.fileno(), reading, printed, message.fd]
            with theirs, contextlib.closing(message):
                socket.send_fds(self._control, [b"\n"], descriptors)
            pids = warden_socket.recv(_LONGEST) if self._answers(warden_socket) else b""
        os.close(reading)
        if pids:
            return server._replace(pids=tuple(json.loads(pids)))
        server.close()
        return None

    def kill(self) -> None:
        """End it, if this process has started it."""
        if self._owner == os.getpid():
            if not self._owned.is_open:  # Code of the user's has closed it, and uses its number.
                self._control.detach()
            self._control.close()
            self._process.kill()
            self._process.wait()


def _path_of_main() -> str | None:
    """The file of the main module, if multiprocessing imports that in workers by its path.

    ``spawn.get_preparation_data`` would settle the default start method; see below.
    """
    main_module = sys.modules["__main__"]
    path = None if main_module.__spec__ else getattr(main_module, "__file__", None)
    return path and os.path.join(process.ORIGINAL_DIR, path)  # type: ignore[attr-defined]


# Some facts about start methods. A ``DataLoader`` without a ``multiprocessing_context`` takes the
# default of multiprocessing: what ``set_start_method()`` has set, or else ``"fork"`` on Linux up to
# Python 3.13, and ``"forkserver"`` from 3.14 on. Whatever uses that default settles it, also a look
# at it by ``get_context()`` or ``get_start_method()``: ``set_start_method()`` raises RuntimeError
# afterwards. In pytest's process only the user may do so.


def method_of(context: Any) -> str:
    """The start method of a ``multiprocessing_context``: a name, a context, or None."""
    if context is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        return chosen or multiprocessing.get_all_start_methods()[0]
    ask = getattr(context, "get_start_method", None)
    return str(ask() if callable(ask) else context)


# The preloaded process does not start a thread, and loads nothing of the user's except the main
# module, which multiprocessing would import in each worker.


def main() -> None:
    """Import torch, and serve the process that started this one, until that ends."""
    number, sys.path, main_module = json.loads(sys.argv[1])
    _import(main_module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No child needs to be waited for.
    with socket.socket(fileno=number) as control:
        control.sendall(b"\n")
        while descriptors := socket.recv_fds(control, 1, 4)[1]:
            if not fork():
                control.close()
                _keep(*descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _import(main_module: str | None) -> None:
    import_late_modules(FOR_FORK_SERVER)
    if main_module is not None:
        this_process: Any = current_process()
        this_process._inheriting = True  # It must not start processes while it is imported.
        try:
            spawn.import_main_path(main_module)
        except BaseException:  # noqa: BLE001  # the worker will report it, like a spawned one
            sys.modules.pop("__mp_main__", None)
        finally:
            del this_process._inheriting


def _keep(warden_socket: int, alive: int, printed: int, message: int) -> NoReturn:
    """Run a server until the warden lets go of the socket, then end all that is below."""
    from pytest_dataloader_faults._trial.resources import end_all  # It imports psutil.

    status = 70
    try:
        address, key, *inherited = json.loads(os.pread(message, os.fstat(message).st_size, 0))
        accept_signals()
        prctl(Prctl.SET_CHILD_SUBREAPER, 1)
        for number in (1, 2):
            os.dup2(printed, number)
        for number in (printed, message):
            os.close(number)
        _inherit(*inherited)
        shared_memory = SharedMemoryCleaner()
        keeper = os.getpid()
        temporary.make_for_sockets(os.path.dirname(address))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        server = fork()
        if not server:
            os.close(warden_socket)
            _serve(keeper, listener.detach(), alive, bytes.fromhex(key))
        listener.close()
        os.close(alive)
        os.write(warden_socket, json.dumps([keeper, server]).encode())
        wait_until_readable([warden_socket], LONGEST_WAIT)
        shared_memory.remove(end_all())
        temporary.remove(os.path.dirname(address))
        status = 0
    except BaseException:  # noqa: BLE001  # there is nothing to return to
        traceback.print_exc()
    finally:
        os._exit(status)


def _inherit(
    environment: dict[str, str], folder: str, limits: list[int], descriptors: int | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    soft, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit_descriptors(descriptors)


def limit_descriptors(count: int | None) -> None:
    """Allow *count* more descriptors than are open, here and in processes started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is not None:
        room = max(proc.descriptors("self")) + 1 + count
        limit = room if soft == resource.RLIM_INFINITY else min(soft, room)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _serve(keeper: int, listener: int, alive: int, key: bytes) -> NoReturn:
    end_with_parent(keeper)
    try:
        serve: Any = forkserver.main
        has_key = "authkey_r" in inspect.signature(serve).parameters  # From Python 3.14 on.
        serve(listener, alive, [], **({"authkey_r": _pipe_with(key)} if has_key else {}))
    finally:
        os._exit(0)


def _pipe_with(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading
