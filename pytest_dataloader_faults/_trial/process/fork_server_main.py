"""Import torch once, and fork a server of workers for each trial [runs as that process].

It does not start a thread, and loads nothing of the user's except the main module, which
multiprocessing would import in each worker.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import socket
import sys
import traceback
from multiprocessing import current_process, forkserver, spawn
from typing import Any, NoReturn

from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.imports import FOR_FORK_SERVER, import_late_modules
from pytest_dataloader_faults._engine.system.libc import Prctl, end_with_parent, prctl
from pytest_dataloader_faults._engine.system.processes import (
    accept_signals,
    fork,
    wait_until_readable,
)
from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner
from pytest_dataloader_faults._trial import resources
from pytest_dataloader_faults._trial.process.warden import end_all

_FOREVER = 1e6
READY = b"\n"
"""Sent once everything is imported."""


def main() -> None:
    """Serve the process that started this one, until that ends."""
    number, sys.path, main_module = json.loads(sys.argv[1])
    _preload(main_module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No child needs to be waited for.
    with socket.socket(fileno=number) as control:
        control.sendall(READY)
        while received := _receive(control):
            if not fork():
                control.close()
                _keep(*received)
            for descriptor in received[0]:
                os.close(descriptor)


def _preload(main_module: str | None) -> None:
    import_late_modules(FOR_FORK_SERVER)
    if main_module is not None:
        process: Any = current_process()
        process._inheriting = True  # It must not start processes while it is imported.
        try:
            spawn.import_main_path(main_module)
        except BaseException:  # noqa: BLE001  # the worker will report it, like a spawned one
            sys.modules.pop("__mp_main__", None)
        finally:
            del process._inheriting


def _receive(control: socket.socket) -> tuple[list[int], Any] | None:
    """Three descriptors, and what the trial's processes start with; None at the end."""
    length, descriptors, _, _ = socket.recv_fds(control, 4, 3)
    if not length:
        return None
    message = bytearray()
    while len(message) < int.from_bytes(length, "little"):
        message += control.recv(1 << 16)
    return descriptors, json.loads(message)


def _keep(descriptors: list[int], message: Any) -> NoReturn:
    """Run a server until the warden lets go of the socket, then end all that is below."""
    status = 70
    try:
        warden_socket, alive, printed = descriptors
        address, key, *begin_with = message
        folder = os.path.dirname(address)
        accept_signals()
        prctl(Prctl.SET_CHILD_SUBREAPER, 1)
        for number in (1, 2):
            os.dup2(printed, number)
        os.close(printed)
        _begin_with(*begin_with)
        shared_memory = SharedMemoryCleaner()
        keeper = os.getpid()
        temporary.make_for_sockets(folder)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        server = fork()
        if not server:
            os.close(warden_socket)
            _serve(keeper, listener.detach(), alive, bytes.fromhex(key))
        listener.close()
        os.close(alive)
        os.write(warden_socket, json.dumps([os.getpid(), server]).encode())
        wait_until_readable([warden_socket], _FOREVER)
        shared_memory.remove(end_all())
        temporary.remove(folder)
        status = 0
    except BaseException:  # noqa: BLE001  # there is nothing to return to
        traceback.print_exc()
    finally:
        os._exit(status)


def _begin_with(
    environment: dict[str, str], folder: str, limits: list[int], descriptors: int | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    soft, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resources.limit_descriptors(descriptors)


def _serve(keeper: int, listener: int, alive: int, key: bytes) -> NoReturn:
    end_with_parent(keeper)
    try:
        main: Any = forkserver.main
        has_key = "authkey_r" in inspect.signature(main).parameters  # From Python 3.14 on.
        main(listener, alive, [], **({"authkey_r": _pipe_with(key)} if has_key else {}))
    finally:
        os._exit(0)


def _pipe_with(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading
