"""Accept workers that connect to the supervisor, and no other process [runs in the supervisor].

Some facts about a socket with an abstract name. Such names can be read in /proc/net/unix, so any
process in this network namespace can connect, and send anything. By SO_PEERCRED the kernel shows
which process called connect(2) (unix(7)), and /proc/PID/stat from which ones that descends. The
kernel drops what was sent on a connection that is closed unread, including descriptors. A seccomp
listener is known by its link in /proc. Descriptors of a message take numbers here at once; those
that find none free are dropped, which only MSG_CTRUNC shows (recvmsg(2)).
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeGuard

from pytest_dataloader_faults._engine.protocol import Channel, Hello, Message
from pytest_dataloader_faults._engine.supervisor import descriptor_budget
from pytest_dataloader_faults._engine.supervisor.events import Events
from pytest_dataloader_faults._engine.system.proc import is_below, link_of
from pytest_dataloader_faults.wire import UnknownMessageError

_MAX_DESCRIPTORS = 61
"""A listener, and the inherited files that one filter program lists."""
_MAX_BYTES = 1 << 24
"""Far more than the paths of all files that a worker has open."""
_SHARE = 4
"""The part of this process's descriptors that may be connections without a message yet."""
_PEER = struct.Struct("=iII")
_LISTENER = "anon_inode:seccomp notify"
_WHERE = "a worker that starts"


class UnknownPeerError(Exception):
    """The peer has hung up, or is not one of our workers."""


class Handshake(NamedTuple):
    """A worker's first message, and its descriptors.

    *main_fd*: the filter's listener, or the end of ``FakeWorkerSession``'s socket; None if it is
    under the filter of the main process. *inherited*: the first ones of ``Hello.inherited``.
    """

    hello: Hello
    main_fd: int | None
    inherited: list[int]


class WorkerAcceptor:
    """Accepts connections at the socket *listening*, and passes those of workers to *register*.

    Workers descend from one of *starters*. Of a process that sends nothing, only the latest
    connection is kept.
    """

    def __init__(
        self,
        listening: socket.socket,
        events: Events,
        budget: descriptor_budget.DescriptorBudget,
        errors: descriptor_budget.RunErrors,
        starters: Collection[int],
        register: Callable[[Handshake, Channel], None],
    ) -> None:
        self._listening = listening
        self._events = events
        self._budget = budget
        self._errors = errors
        self._starters = starters
        self._register = register
        self._waiting: dict[int, Channel] = {}
        events.watch(listening.fileno(), self._on_connect)

    def close(self) -> None:
        """Accept no more connections."""
        self._events.unwatch(self._listening.fileno())
        self._listening.close()

    def _on_connect(self, _flags: int) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # A worker that waits to be accepted must not wait forever.
            self._errors.add(_WHERE, error)
            self.close()
            return
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, user, _ = _PEER.unpack(peer)
        if user != os.getuid() or not is_below(pid, self._starters):
            connection.close()
            return
        self._make_room(pid)
        channel = self._waiting[pid] = Channel(connection)
        self._events.watch(channel.fileno(), lambda _flags: self._on_handshake(channel, pid))

    def _make_room(self, pid: int) -> None:
        """Hang up on an earlier connection of *pid*, and on the oldest if there are too many."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if pid in self._waiting:
            self._drop(pid)
        elif len(self._waiting) >= soft // _SHARE:
            self._drop(next(iter(self._waiting)))

    def _drop(self, pid: int) -> None:
        channel = self._forget(pid)
        channel.close()

    def _forget(self, pid: int) -> Channel:
        channel = self._waiting.pop(pid)
        self._events.unwatch(channel.fileno())
        return channel

    def _on_handshake(self, channel: Channel, pid: int) -> None:
        try:
            self._budget.ensure(_MAX_DESCRIPTORS)
            handshake = _read_handshake(channel, pid)
        except (UnknownPeerError, OSError) as error:
            if isinstance(error, OSError):
                self._errors.add(_WHERE, error)
            self._drop(pid)
            return
        if handshake is not None:
            self._register(handshake, self._forget(pid))


def _read_handshake(channel: Channel, pid: int) -> Handshake | None:
    try:
        messages = channel.ready()
    except (EOFError, ConnectionError, ValueError, UnknownMessageError) as error:
        raise UnknownPeerError from error
    size, count = channel.incomplete
    is_too_much = size > _MAX_BYTES or count > _MAX_DESCRIPTORS or len(messages) > 1
    for message, descriptors in () if is_too_much else messages:
        if _is_from_worker(message, descriptors, pid):
            if message.joins:
                return Handshake(message, None, descriptors)
            return Handshake(message, descriptors[0], descriptors[1:])
    if messages or is_too_much:
        for descriptor in (each for _, descriptors in messages for each in descriptors):
            os.close(descriptor)
        raise UnknownPeerError
    return None


def _is_from_worker(message: Message, descriptors: list[int], pid: int) -> TypeGuard[Hello]:
    if not isinstance(message, Hello) or message.pid != pid:
        return False
    if message.joins:
        return len(descriptors) < _MAX_DESCRIPTORS
    if not 0 < len(descriptors) <= _MAX_DESCRIPTORS:
        return False
    return message.fakes or link_of("self", descriptors[0]) == _LISTENER
