"""Connections between the main process, its workers and the supervisor.

Some facts about a connection. Each message is one packet, which arrives whole. So the supervisor
never waits for the rest of one: the thread that sends it may wait for the GIL, and the thread
that holds the GIL for the answer to an open(2). Only recvmsg(2) and sendmsg(2) are called, of
which the filter does not notify.

Messages are pickled, since all these processes run the same version of this package. The
supervisor must not import anything of the user's, so only values of our own classes, and plain
ones, are sent.
"""

from __future__ import annotations

import array
import contextlib
import errno
import io
import os
import pickle
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import reduction
from typing import Any

from pytest_dataloader_faults._engine.system.ownership import OwnedDescriptor

_LARGEST = 1 << 16
"""Bytes of a packet. A larger message is in a file in memory, the last descriptor of its packet."""
_IN_PACKET, _IN_FILE = b"p", b"f"
_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD, see unix(7)."""
_SPACE = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_OWN_MODULES = "pytest_dataloader_faults."

_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Make plain values of those whose classes are not ours, such as ``numpy.str_``."""
        if not type(value).__module__.startswith(_OWN_MODULES):
            for kind, convert in _PLAIN.items():
                if isinstance(value, kind):
                    return kind, (convert(value),)
        return NotImplemented


@contextlib.contextmanager
def packed(message: object, descriptors: Sequence[int] = ()) -> Iterator[tuple[bytes, list[int]]]:
    """The packet of *message*, and the descriptors to attach to it in this scope."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    data = buffer.getvalue()
    if len(data) < _LARGEST:
        yield _IN_PACKET + data, [*descriptors]
        return
    file = os.memfd_create("dlf-message", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        yield _IN_FILE, [*descriptors, file]
    finally:
        os.close(file)


class Channel:
    """One end of a connection. Reading from one whose other end is closed raises EOFError."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._owned = OwnedDescriptor(connection.fileno())
        self._packet = bytearray(_LARGEST)
        """Made once: a fault may make large allocations fail."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new connection."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def of(cls, descriptor: int) -> Channel:
        """The end that is *descriptor*, which another process has passed on."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """For polling."""
        return self.connection.fileno()

    def require(self) -> None:
        """Raise ClosedByUserError if the user's code has closed this end of the connection."""
        self._owned.require()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send *message*; the other side gets duplicates of *descriptors*."""
        self.require()
        with packed(message, descriptors) as (packet, attached):
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", attached))
            self.connection.sendmsg([packet], [rights] if attached else [])

    def arrived(self) -> Iterator[Any]:
        """The messages that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                yield self.receive(socket.MSG_DONTWAIT)[0]

    def receive(self, flags: int = 0) -> tuple[Any, list[int]]:
        """Wait for the next message and its descriptors."""
        self.require()
        count, control, flags, _ = self.connection.recvmsg_into(
            [self._packet], _SPACE, socket.MSG_CMSG_CLOEXEC | flags
        )
        if not count:
            raise EOFError
        descriptors = [each for _, _, numbers in control for each in array.array("i", numbers)]
        if flags & socket.MSG_CTRUNC:  # All numbers are in use.
            for each in descriptors:
                os.close(each)
            raise OSError(errno.EMFILE, "descriptors of a message were lost")
        with memoryview(self._packet)[:count] as packet:
            if packet[:1] == _IN_PACKET:
                return pickle.loads(packet[1:]), descriptors  # noqa: S301  # sent by ourselves
        file = descriptors.pop()
        try:
            data = os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
        return pickle.loads(data), descriptors  # noqa: S301  # sent by ourselves

    def close(self) -> None:
        """Close this end, unless its number is another file's by now."""
        if not self._owned.is_open:
            self.connection.detach()
        self.connection.close()


class Door:
    """Where a process introduces itself: it sends ``Hello``, and an end of a connection of its own.

    All processes of a scope that arm themselves have it. Picklable while a process is started by
    spawn or forkserver, which then gets a duplicate.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def __reduce__(self) -> Any:
        return _open_door, (reduction.DupFd(self.channel.fileno()),)

    def require_open(self) -> None:
        """Raise BrokenPipeError if the supervisor does not listen any more: the scope is over."""
        self.channel.require()
        poll = select.poll()
        poll.register(self.channel.fileno(), 0)
        if poll.poll(0):
            raise BrokenPipeError


def _open_door(descriptor: Any) -> Door:
    return Door(Channel.of(descriptor.detach()))
