"""Connections that a dataset opens before its workers start, and several use [in the trial]."""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing.synchronize
import multiprocessing.util
import os
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults.outcomes.stages import SharedConnection

CALLS_USER_CODE = True

# Some facts about what fork(2) does to them. The child has the same descriptors, and both processes
# receive from one connection: an answer reaches whichever asks first. A dataset may know that, and
# open another connection in each worker, use this one in a single worker, or under a lock that the
# workers share. Otherwise it is a defect, even if each answer reaches the right worker this time.
# So the connection is shut down as soon as a worker wants an answer on it after two workers have
# sent something without a lock: what follows otherwise may be a hang.
#
# A client that finds an unread answer opens another connection, which would hide the defect from a
# worker that comes a moment later. So a worker waits for others before it first sends. The methods
# of Python's sockets, and of multiprocessing's connections, are replaced for that in this process,
# which is disposable. C code, such as that of libpq, passes them by, and so does a pipe to another
# process. If samples are wrong then, what has arrived since the workers started shows that the
# connection may be why: by TCP_INFO, and by what the process behind the pipe has written. A pipe of
# which both ends are here belongs to a queue, which multiprocessing shares with a lock.

_Endpoint: TypeAlias = "socket.socket | Connection[Any, Any]"
_INFO_SIZE, _BYTES_RECEIVED = 136, 128
"""Of struct tcp_info, since Linux 4.1."""
_SENDS_BY = "send sendall sendmsg sendto send_bytes".split()
_RECEIVES_BY = "recv recv_into recvfrom recvfrom_into recvmsg recvmsg_into recv_bytes".split()
_TIMEOUT = 0.5
"""Seconds for which a worker waits for another one, before it first sends."""
_POLLING = 0.001


class SharedConnections:
    """The connections of this process that workers share."""

    def __init__(self) -> None:
        self._connections: list[_Connection] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Remember which connections are opened within the block, and stay open."""
        earlier = _list_descriptors()
        yield
        for link, descriptors in _list_descriptors().items():
            if link not in earlier and (connection := _connection_of(link, descriptors)):
                self._connections.append(connection)

    def begin(self, workers: int) -> None:
        """Call this before that many *workers* start."""
        for each in self._connections:
            each.begin(workers)
        if not self._connections or workers == 1:
            return
        tls = sys.modules.get("ssl")  # It is imported if there is a connection that uses it.
        for kind in (socket.socket, Connection, *((tls.SSLSocket,) if tls else ())):
            for name in _SENDS_BY:
                _precede(kind, name, self._before_sending)
            for name in _RECEIVES_BY:
                _precede(kind, name, self._before_receiving)

    def end(self, journal: Journal) -> None:
        """Write to *journal* which connections the workers used, which have ended."""
        for each in self._connections:
            if each.is_shared or each.has_received:
                journal.write(SharedConnection(each.name, each.is_shared))

    def _before_sending(self, connection: _Endpoint) -> None:
        shared, info = self._find(connection), get_worker_info()
        if shared and info and not shared.senders[info.id]:
            shared.senders[info.id] = 1
            end = time.monotonic() + _TIMEOUT
            while not shared.has_several_senders and time.monotonic() < end:
                time.sleep(_POLLING)

    def _before_receiving(self, connection: _Endpoint) -> None:
        shared = self._find(connection)
        if shared and shared.has_several_senders and not shared.is_shared:
            shared.answer[0] = 1
            # The server may have closed it.
            with contextlib.suppress(OSError), _duplicate(shared.descriptor) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    def _find(self, connection: _Endpoint) -> _Connection | None:
        """The *connection* from before the fork, if this is a worker that holds no lock."""
        if get_worker_info() is None:
            return None
        number = connection.fileno()
        shared = next((each for each in self._connections if each.descriptor == number), None)
        return shared if shared and shared.is_open and not _holds_lock() else None


class _Connection:
    """A connection that this process has opened, or the end of a pipe from another process.

    *link*: what /proc calls it. *writers*: the processes behind a pipe.

    Attributes:
        name: What it leads to.
        descriptor: Its number.
        senders: A byte for each worker: 1 if it has sent something without a lock.
        answer: One byte: 1 if one of several senders wanted an answer.
    """

    senders: mmap.mmap

    def __init__(self, name: str, link: str, descriptor: int, writers: Sequence[int] = ()) -> None:
        self.name, self.descriptor, self._link, self._writers = name, descriptor, link, writers
        self.answer = mmap.mmap(-1, 1)
        self._received = 0

    def begin(self, workers: int) -> None:
        self.senders = mmap.mmap(-1, workers)
        self._received = self._count_received()

    @property
    def is_open(self) -> bool:
        """Whether its descriptor is still that connection: it may be another one by now."""
        with contextlib.suppress(OSError):
            return proc.link_of("self", self.descriptor) == self._link
        return False

    @property
    def has_several_senders(self) -> bool:
        """Whether several workers have sent something without a lock."""
        return sum(self.senders[:]) > 1

    @property
    def is_shared(self) -> bool:
        """Whether one of several workers wanted an answer."""
        return bool(self.answer[0])

    @property
    def has_received(self) -> bool:
        """Whether anything has arrived since the workers started."""
        return self._count_received() > self._received

    def _count_received(self) -> int:
        """How many bytes have arrived; 0 if that is unknown, or if it is closed by now."""
        if self._writers:
            return sum(map(proc.bytes_written, self._writers))
        with contextlib.suppress(OSError, struct.error):
            if self.is_open:
                with _duplicate(self.descriptor) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
                return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0])
        return 0


def _duplicate(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))


def _list_descriptors() -> dict[str, list[int]]:
    """The descriptors of each socket and each pipe of this process, by what /proc calls it."""
    descriptors = defaultdict(list)
    for number, link in proc.descriptor_links().items():
        if link.startswith(("socket:", "pipe:")):
            descriptors[link].append(int(number))
    return descriptors


def _connection_of(link: str, descriptors: list[int]) -> _Connection | None:
    """The connection, or None if nothing can arrive on it."""
    number = descriptors[0]
    if link.startswith("socket:"):
        name = _peer_of(number)
        return _Connection(f"a connection to {name}", link, number) if name else None
    if len(descriptors) > 1 or proc.is_write_only(number):
        return None
    writers = []
    for pid in set(proc.family(os.getpid())) - {os.getpid()}:
        with contextlib.suppress(OSError):  # It has ended.
            if link in proc.descriptor_links(pid).values():
                writers.append(pid)
    return _Connection("a pipe from another process", link, number, writers) if writers else None


def _peer_of(number: int) -> str:
    """The address of the server; "" if it is not connected to one by a stream."""
    with _duplicate(number) as connection, contextlib.suppress(OSError):
        if connection.type == socket.SOCK_STREAM:
            address = connection.getpeername()
            is_of_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
            return ":".join(map(str, address[:2])) if is_of_ip else os.fsdecode(address)
    return ""


def _holds_lock() -> bool:
    """Whether this thread holds a lock of multiprocessing, or its process one of a file."""
    # multiprocessing resets its locks in a child, so it has all of them here. Its other semaphores
    # need not be released by the process that acquired them.
    kinds = multiprocessing.synchronize.Lock, multiprocessing.synchronize.RLock
    candidates: list[Any] = list(vars(multiprocessing.util)["_afterfork_registry"].values())
    locks = (vars(each)["_semlock"] for each in candidates if isinstance(each, kinds))
    return any(each._is_mine() for each in locks) or proc.holds_file_lock()


def _precede(kind: type[_Endpoint], name: str, call: Callable[[_Endpoint], None]) -> None:
    """Have the method *name* of *kind*, if it has one, call *call* first."""
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def call_first(connection: _Endpoint, *args: Any, **kwargs: Any) -> Any:
        call(connection)
        return original(connection, *args, **kwargs)

    setattr(kind, name, call_first)
