"""One process that forks the supervisors of all scopes of ``inject`` [runs in that process].

Some facts about the start of a supervisor. A new interpreter reads its modules for 80 ms, a third
of a short trial. A warden has them loaded, has one thread and nothing of the user's yet, and forks
its own. A process in the midst of a test, as that of ``inject``, must not: the copy would
keep the user's locks, pipes and files open. So the first scope in a process starts this one, which
has the modules and nothing of the user's, and forks a supervisor in a millisecond.

Each scope has a connection to it. A supervisor that has ended keeps its process id until its scope
closes that, and is then waited for. The host ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any, NoReturn, get_args, get_type_hints

from pytest_dataloader_faults import wire
from pytest_dataloader_faults._engine.channel import Channel
from pytest_dataloader_faults._engine.protocol import (
    EndOfSupervisor,
    GetEnd,
    StartSupervisor,
    SupervisorStarted,
)
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults._engine.supervisor.server import run_supervisor
from pytest_dataloader_faults._engine.system.proc import set_own_name
from pytest_dataloader_faults._engine.system.processes import exit_code_of, fork
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.globs import package_folders

NAME = "dlf-host"
_CREDENTIALS = struct.Struct("3i")
"""A process, its user and its group: struct ucred in unix(7)."""


@dataclass
class _Scope:
    """The connection of a scope, and the process id of its supervisor."""

    channel: Channel
    supervisor: int = 0


class SupervisorHost:
    """Forks a supervisor for each connection to *listening*, until the process *starter* ends."""

    def __init__(self, listening: socket.socket, starter: int) -> None:
        self._listening = listening
        self._starter, self._starter_fd = starter, os.pidfd_open(starter)
        self._scopes: list[_Scope] = []
        self._events = Events()
        self._events.watch(listening.fileno(), self._on_connection)
        self._events.watch(self._starter_fd, lambda _events: sys.exit(0))

    def run(self) -> NoReturn:
        """Serve until the starter ends."""
        while True:
            for action, events in self._events.wait(None):
                action(events)

    def _on_connection(self, _events: int) -> None:
        connection, _ = self._listening.accept()
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(peer)[0] != self._starter:  # Anybody may connect to such an address.
            connection.close()
            return
        scope = _Scope(Channel(connection))
        self._scopes.append(scope)
        self._events.watch(connection.fileno(), lambda _events: self._on_messages(scope))

    def _on_messages(self, scope: _Scope) -> None:
        try:
            message, descriptors = scope.channel.receive()
            match message:
                case StartSupervisor():
                    self._start(scope, *descriptors)
                case GetEnd():
                    scope.channel.send(EndOfSupervisor(exit_code_of(scope.supervisor)))
        except (EOFError, ConnectionError):
            self._close(scope)

    def _start(self, scope: _Scope, control: int, door: int, printed: int) -> None:
        refused = ""
        try:
            scope.supervisor = fork()
        except UnusableEnvironmentError as error:
            refused = str(error)
        else:
            if not scope.supervisor:
                self._become_supervisor(control, door, printed)
        for descriptor in (control, door, printed):
            os.close(descriptor)
        scope.channel.send(SupervisorStarted(scope.supervisor, refused))

    def _become_supervisor(self, control: int, door: int, printed: int) -> NoReturn:
        """Keep nothing of the host, and of this scope what a supervisor needs."""
        for stream in (1, 2):
            os.dup2(printed, stream)
        os.close(printed)
        self._events.close()
        self._listening.close()
        os.close(self._starter_fd)
        for scope in self._scopes:
            scope.channel.close()
        run_supervisor(Channel.of(control), Channel.of(door))

    def _close(self, scope: _Scope) -> None:
        """Wait for the supervisor of *scope*, which may have workers that outlive the scope."""
        self._scopes.remove(scope)
        self._events.unwatch(scope.channel.fileno())
        scope.channel.close()
        if scope.supervisor:
            ending = os.pidfd_open(scope.supervisor)
            self._events.watch(ending, lambda _events: self._reap(ending, scope.supervisor))

    def _reap(self, ending: int, supervisor: int) -> None:
        self._events.unwatch(ending)
        os.close(ending)
        os.waitpid(supervisor, 0)


@functools.cache
def prepare_supervisors(message: object) -> None:
    """Do what each supervisor would do again: find out how the kinds of a *message* are read."""
    package_folders()
    kinds: list[Any] = list(get_args(message))
    for kind in kinds:
        wire.readers_of(kind, False)
        if hasattr(kind, "__dataclass_fields__"):
            wire.names_of(kind)
        inner = itertools.chain(*map(_records_in, get_type_hints(kind).values()))
        kinds += [each for each in dict.fromkeys(inner) if each not in kinds]


def _records_in(kind: Any) -> list[Any]:
    """The records in a value of this *kind*, which is the type of a field."""
    if hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__"):
        return [] if issubclass(kind, Fault) else [kind]
    return [record for each in get_args(kind) for record in _records_in(each)]


def main() -> None:
    """Serve the process and the listening socket that the starter passes."""
    listening, starter = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If it is ignored, no exit status is kept.
    set_own_name(NAME)
    os.chdir("/")  # It shall not keep a folder of the user's in use.
    package_folders()
    gc.freeze()
    with contextlib.suppress(ProcessLookupError):
        host = SupervisorHost(socket.socket(fileno=listening), starter)
        if os.getppid() == starter:  # Otherwise the number may be another process's by now.
            host.run()
