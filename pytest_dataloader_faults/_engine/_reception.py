"""Who knocks at the supervisor's door: workers, and strangers [runs in the supervisor].

Some facts about that door. Abstract names are for all to read in /proc/net/unix, so whoever is in
this network namespace can connect, and send what it likes. SO_PEERCRED is the kernel's word on who
called connect(2) (unix(7)). What seccomp's listener is, its link in /proc tells. Descriptors that
come with a message take numbers here at once; those that find none free are dropped, of which only
MSG_CTRUNC tells (recvmsg(2)).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._events import Events
from pytest_dataloader_faults._engine._room import Room, Trouble

_MAX_DESCRIPTORS = 61
"""A listener, and the held files that one filter program lists."""
_MAX_BYTES = 1 << 24
"""Far more than the paths of all that a worker holds."""
_PEER = struct.Struct("=iII")
_FIRST_WORDS = {"worker", "loader", "pid"}
_LISTENER = "anon_inode:seccomp notify"
_WHERE = "a worker that starts"


class StrangerError(Exception):
    """It has hung up, or is none of our workers."""


class Hello(NamedTuple):
    """A worker's first words, and what came with them: a listener or a brake, and held files."""

    said: dict[str, Any]
    first: int
    held: list[int]

    @property
    def is_python(self) -> bool:
        """Whether the python engine is at work there."""
        return bool(self.said.get("engine") == "python")


Welcome = Callable[[Hello, Channel], None]


class Reception:
    """Hears whoever comes to *door*, and hands over to *welcome* who is a worker."""

    def __init__(
        self, door: socket.socket, events: Events, room: Room, trouble: Trouble, welcome: Welcome
    ) -> None:
        self._door = door
        self._events = events
        self._room = room
        self._trouble = trouble
        self._welcome = welcome
        events.watch(door.fileno(), self._on_knock)

    def close(self) -> None:
        """Nobody who comes from now on is answered."""
        self._events.unwatch(self._door.fileno())
        self._door.close()

    def _on_knock(self, _flags: int) -> None:
        try:
            connection, _ = self._door.accept()
        except OSError as error:  # Whoever waits is not to wait for ever.
            self._trouble.note(_WHERE, error)
            self.close()
            return
        channel = Channel(connection)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, user, _ = _PEER.unpack(peer)
        if user == os.getuid():
            self._events.watch(channel.fileno(), lambda _flags: self._on_words(channel, pid))
        else:
            channel.close()

    def _on_words(self, channel: Channel, pid: int) -> None:
        try:
            self._room.ensure(_MAX_DESCRIPTORS)
            hello = _heard(channel, pid)
        except StrangerError:
            self._send_away(channel)
        except OSError as error:
            self._trouble.note(_WHERE, error)
            self._send_away(channel)
        else:
            if hello is not None:
                self._events.unwatch(channel.fileno())
                self._welcome(hello, channel)

    def _send_away(self, channel: Channel) -> None:
        self._events.unwatch(channel.fileno())
        channel.close()


def _heard(channel: Channel, pid: int) -> Hello | None:
    """What process *pid* says, once it has said all of it."""
    try:
        messages = channel.ready()
    except (EOFError, ConnectionError, ValueError, RecursionError) as error:
        raise StrangerError from error
    size, count = channel.incomplete
    is_ours = all(_is_of_worker(*message, pid) for message in messages)
    if size > _MAX_BYTES or count > _MAX_DESCRIPTORS or len(messages) > 1 or not is_ours:
        _close(descriptor for _, descriptors in messages for descriptor in descriptors)
        raise StrangerError
    for said, (first, *held) in messages:
        return Hello(said, first, held)
    return None


def _is_of_worker(said: Any, descriptors: list[int], pid: int) -> bool:
    is_told = isinstance(said, dict) and said.keys() >= _FIRST_WORDS
    if not is_told or said["pid"] != pid or not 0 < len(descriptors) <= _MAX_DESCRIPTORS:
        return False
    link = os.readlink(f"/proc/self/fd/{descriptors[0]}")
    return said.get("engine") == "python" or link == _LISTENER


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
