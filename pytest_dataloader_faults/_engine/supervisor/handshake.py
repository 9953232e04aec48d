"""Workers that connect to the supervisor, told from any other process [runs in the supervisor].

Some facts about a socket with an abstract name. Such names can be read in /proc/net/unix, so any
process in this network namespace can connect, and send what it likes. SO_PEERCRED is the kernel's
word on who called connect(2) (unix(7)). A seccomp listener is known by its link in /proc.
Descriptors that come with a message take numbers here at once; those that find none free are
dropped, of which only MSG_CTRUNC tells (recvmsg(2)).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine.protocol import Channel
from pytest_dataloader_faults._engine.supervisor.descriptor_budget import (
    DescriptorBudget,
    RunErrors,
)
from pytest_dataloader_faults._engine.supervisor.events import Events

_MAX_DESCRIPTORS = 61
"""A listener, and the held files that one filter program lists."""
_MAX_BYTES = 1 << 24
"""Far more than the paths of all that a worker holds."""
_PEER = struct.Struct("=iII")
_REQUIRED = {"worker", "loader", "pid"}
_LISTENER = "anon_inode:seccomp notify"
_WHERE = "a worker that starts"


class UnknownPeerError(Exception):
    """The peer has hung up, or is not one of our workers."""


class Handshake(NamedTuple):
    """A worker's first message, and its descriptors: a listener or a brake, and held files."""

    said: dict[str, Any]
    first: int
    held: list[int]

    @property
    def is_python(self) -> bool:
        """Whether the python engine is at work there."""
        return bool(self.said.get("engine") == "python")


Register = Callable[[Handshake, Channel], None]


class WorkerAcceptor:
    """Accepts connections at the socket *listening*, and gives those of workers to *register*."""

    def __init__(
        self,
        listening: socket.socket,
        events: Events,
        budget: DescriptorBudget,
        errors: RunErrors,
        register: Register,
    ) -> None:
        self._listening = listening
        self._events = events
        self._budget = budget
        self._errors = errors
        self._register = register
        events.watch(listening.fileno(), self._on_connect)

    def close(self) -> None:
        """Accept no more connections."""
        self._events.unwatch(self._listening.fileno())
        self._listening.close()

    def _on_connect(self, _flags: int) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # A worker that waits to be accepted must not wait for ever.
            self._errors.add(_WHERE, error)
            self.close()
            return
        channel = Channel(connection)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, user, _ = _PEER.unpack(peer)
        if user == os.getuid():
            self._events.watch(channel.fileno(), lambda _flags: self._on_handshake(channel, pid))
        else:
            channel.close()

    def _on_handshake(self, channel: Channel, pid: int) -> None:
        try:
            self._budget.ensure(_MAX_DESCRIPTORS)
            handshake = _read_handshake(channel, pid)
        except UnknownPeerError:
            self._reject(channel)
        except OSError as error:
            self._errors.add(_WHERE, error)
            self._reject(channel)
        else:
            if handshake is not None:
                self._events.unwatch(channel.fileno())
                self._register(handshake, channel)

    def _reject(self, channel: Channel) -> None:
        self._events.unwatch(channel.fileno())
        channel.close()


def _read_handshake(channel: Channel, pid: int) -> Handshake | None:
    """The handshake of process *pid*, once all of it has come."""
    try:
        messages = channel.ready()
    except (EOFError, ConnectionError, ValueError, RecursionError) as error:
        raise UnknownPeerError from error
    size, count = channel.incomplete
    is_ours = all(_is_from_worker(*message, pid) for message in messages)
    if size > _MAX_BYTES or count > _MAX_DESCRIPTORS or len(messages) > 1 or not is_ours:
        _close(descriptor for _, descriptors in messages for descriptor in descriptors)
        raise UnknownPeerError
    for said, (first, *held) in messages:
        return Handshake(said, first, held)
    return None


def _is_from_worker(said: Any, descriptors: list[int], pid: int) -> bool:
    is_told = isinstance(said, dict) and said.keys() >= _REQUIRED
    if not is_told or said["pid"] != pid or not 0 < len(descriptors) <= _MAX_DESCRIPTORS:
        return False
    link = os.readlink(f"/proc/self/fd/{descriptors[0]}")
    return said.get("engine") == "python" or link == _LISTENER


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
