"""The connections to a supervisor: how messages travel, and where a worker has to connect.

Some facts about a connection. A message is JSON behind its length, with descriptors attached.
Only recvmsg(2) and sendmsg(2) are called, neither of which the filter hands over. The supervisor
must never wait for the rest of a message: the thread that sends it may be waiting for the
interpreter lock, and the thread that holds that lock for an open(2) which the supervisor has yet to
answer. So it takes what has come, with ``ready``, and looks again when there is more.
"""

from __future__ import annotations

import array
import errno
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import Message, decode, encode
from pytest_dataloader_faults._engine.system.shared import AnonymousFile, SharedCount

_HEADER = struct.Struct("=II")
"""How long the text is, and how many descriptors go with it."""
_CHUNK = 1 << 16
_MAX_DESCRIPTORS = 64
_SPACE = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_BACKLOG = 128
_PRINTED_SHOWN = 4000
"""Bytes: a traceback, and the lines before it."""


class Channel:
    """One end of a connection. Reading from a closed one raises EOFError."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """For polling."""
        return self.connection.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send *message*; the other side gets duplicates of *descriptors*."""
        body = encode(message)
        data = memoryview(_HEADER.pack(len(body), len(descriptors)) + body)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        attached = [rights] if descriptors else []
        while data:
            data = data[self.connection.sendmsg([data], attached) :]
            attached = []

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for the next message, and the descriptors that came with it."""
        while (message := self._next()) is None:
            self._take()
        return message

    def ready(self) -> list[tuple[Message, list[int]]]:
        """The messages that are there, after one look at the connection."""
        self._take()
        return list(iter(self._next, None))

    def _take(self) -> None:
        data, control, flags, _ = self.connection.recvmsg(_CHUNK, _SPACE, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError
        self._bytes += data
        came = [each for _, _, numbers in control for each in array.array("i", numbers)]
        self._descriptors += came
        if flags & socket.MSG_CTRUNC:  # There were too many, or there is no number for them.
            if len(came) >= _MAX_DESCRIPTORS:
                raise ValueError(f"more than {_MAX_DESCRIPTORS} descriptors came at once")
            raise OSError(errno.EMFILE, "descriptors that came with a message were lost")

    def _next(self) -> tuple[Message, list[int]] | None:
        if len(self._bytes) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._bytes)
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        body, self._bytes = self._bytes[_HEADER.size : end], self._bytes[end:]
        message = decode(bytes(body))
        descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return message, descriptors

    @property
    def incomplete(self) -> tuple[int, int]:
        """How many bytes, and how many descriptors, have come of a message that is not whole."""
        return len(self._bytes), len(self._descriptors)

    def close(self) -> None:
        """Hang up."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self.connection.close()


@dataclass(frozen=True)
class WorkerConfig:
    """Where the supervisor is, and what is asked for. Picklable, for spawn and forkserver.

    *folder*: for the sockets by which workers pass tensors on; None in a trial, which has one.
    """

    address: str
    supervisor: int
    plan: Plan
    engine: str
    stacks: str | None = None
    folder: str | None = None

    def connect(self) -> Channel:
        """A connection to the supervisor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect(f"\0{self.address}")
        return Channel(connection)


@dataclass(frozen=True)
class SupervisorHandle:
    """A supervisor that waits for ``Configure``, and the name of its listening socket.

    *printed*: its standard output and error. *given*: how many bytes it has read for workers, if it
    is a trial's.
    """

    pid: int
    control: socket.socket
    address: str
    printed: AnonymousFile
    given: SharedCount | None = None

    def what_it_printed(self) -> str:
        """A sentence with the end of it, to go after another one; empty if there is nothing."""
        text = self.printed.text(_PRINTED_SHOWN).strip()
        return text and f" The supervisor printed:\n{text}\n"


def listening_socket() -> tuple[socket.socket, str]:
    """A socket that workers will connect to, and its name in the abstract namespace."""
    address = f"pytest-dataloader-faults-{os.getpid()}-{secrets.token_hex(8)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{address}")
    listening.listen(_BACKLOG)
    return listening, address
