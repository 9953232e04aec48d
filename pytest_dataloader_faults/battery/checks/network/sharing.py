"""Connections and pipes that a dataset opens before its workers start [in the trial].

Some facts about what fork(2) does to them. The child has the same descriptors, and both processes
send and receive on one connection: an answer reaches whichever asks first. A dataset may know that,
and open another connection in each worker, or never use this one. So only those count on which data
arrives while the workers run: by TCP_INFO, and by what the process behind a pipe has written.

A pipe to another process has one end here. If both are here, they belong to a queue, which
multiprocessing shares among processes with a lock.

Some facts about when a shared connection shows. A server answers requests in order, so the answers
are mixed up only if a second worker sends its request before the first one has its answer. On a
quick server that is rare, and a client that finds an unread answer may open another connection. So
a worker waits before it first sends: until another one is about to send as well. A lock that keeps
answers apart would not let two of them come that far. If one of the two then asks for an answer,
the defect is proven, and the connection is shut down: what follows may be a hang. A worker that
nobody joins continues soon after another one has started its first batch, and after two such waits
no worker waits again. Some code does not wait for a lock even that long: if the trial fails, it is
repeated without that wait. Python's sockets, and torch's fetchers, are replaced for that in this
process, which is disposable. C code, such as that of libpq, does not wait.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.worker.fetch_hooks import precede_fetches
from pytest_dataloader_faults._settings.jobs import Watcher
from pytest_dataloader_faults._trial.journal import Journal, Noted
from pytest_dataloader_faults.battery.checks.network.rules import SharedConnection
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes.stages import VainWait

_INFO_SIZE, _BYTES_RECEIVED = 136, 128
"""Of struct tcp_info, since Linux 4.1."""


_SENDS_BY = "send sendall sendmsg sendto".split()
_RECEIVES_BY = "recv recv_into recvfrom recvfrom_into recvmsg recvmsg_into".split()
_START_TIMEOUT = 0.5
"""Seconds until another worker has started its first batch."""
_SEND_TIMEOUT = 0.5
"""Seconds from then until another worker is about to send something."""
_MOST_IN_VAIN = 2
_POLLING = 0.001
_WAITS, _SENDS = 1, 2
"""What a worker does at a connection: it waits before it first sends, or has continued."""
_MET, _PROVEN = 1, 2
"""What workers did at a connection: two were about to send at once, and one wants an answer."""


class _Channel(NamedTuple):
    """A connection by its *name*, and how many bytes have arrived on it.

    *descriptor*: of a TCP connection, and *link*: what /proc calls it.
    """

    name: str
    count_bytes: Callable[[], int]
    link: str
    descriptor: int | None = None


class _Use(NamedTuple):
    """A *worker* at the connection with the number *place*; *slot*: the number of both together."""

    place: int
    worker: int
    slot: int


class SharedConnections(Watcher):
    """The connections of this process that workers share."""

    def __init__(self) -> None:
        self._channels: list[_Channel] = []
        self._counts: list[int] = []
        self._first_sends: _FirstSends | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Remember which connections and pipes are opened within the block, and stay open."""
        earlier = _list_descriptors()
        yield
        for link, descriptors in _list_descriptors().items():
            if link not in earlier and (channel := _channel_of(link, descriptors)):
                self._channels.append(channel)

    def begin(self, workers: int, unprovoked: tuple[str, ...]) -> None:
        """That many *workers* start; their first uses of connections not *unprovoked* collide."""
        self._counts = [each.count_bytes() for each in self._channels]
        is_unprovoked = GlobMatcher(unprovoked).means
        provoked = [
            each
            for each in self._channels
            if each.descriptor is not None and not is_unprovoked(each.name)
        ]
        if provoked and workers > 1:
            self._first_sends = _FirstSends(provoked, workers)
            self._first_sends.watch()

    def end(self, journal: Journal) -> None:
        """The workers have ended: write to *journal* on which connections data arrived."""
        collided = self._first_sends.proven_channels if self._first_sends else []
        for channel, earlier in zip(self._channels, self._counts, strict=False):
            if channel in collided or channel.count_bytes() > earlier:
                journal.write(Noted(SharedConnection(channel.name, channel in collided)))
        for channel in self._first_sends.vain_channels if self._first_sends else ():
            journal.write(Noted(VainWait(channel.name)))


class _FirstSends:
    """Where each worker first sends something on one of *channels*."""

    def __init__(self, channels: Sequence[_Channel], workers: int) -> None:
        self._channels = channels
        self._workers = workers
        self._places = {each.descriptor: place for place, each in enumerate(channels)}
        self._started = mmap.mmap(-1, workers)
        """A byte for each worker: 1 if it has started a batch."""
        self._senders = mmap.mmap(-1, len(channels) * workers)
        """For each connection a byte of each worker: what it does there."""
        self._meetings = mmap.mmap(-1, len(channels))
        """For each connection: whether workers have met there."""
        self._in_vain = mmap.mmap(-1, len(channels))
        """For each connection: how many workers have waited there in vain."""

    @property
    def proven_channels(self) -> list[_Channel]:
        """The connections on which workers sent at once, and one wanted an answer."""
        return [
            each
            for each, met in zip(self._channels, self._meetings[:], strict=True)
            if met == _PROVEN
        ]

    @property
    def vain_channels(self) -> list[_Channel]:
        """The connections at which a worker has waited in vain, as long as no two have met."""
        if any(self._meetings[:]):
            return []
        return [each for each, vain in zip(self._channels, self._in_vain[:], strict=True) if vain]

    def watch(self) -> None:
        """Have the methods of Python's sockets wait in workers that are forked from now on."""
        precede_fetches(self._note_start)
        tls = sys.modules.get("ssl")  # It is imported if there is a connection that uses it.
        for kind in (socket.socket, tls.SSLSocket) if tls else (socket.socket,):
            for name in _SENDS_BY:
                _replace(kind, name, self._sending)
            for name in _RECEIVES_BY:
                _replace(kind, name, self._receiving)

    def _note_start(self) -> None:
        if info := get_worker_info():
            self._started[info.id] = 1

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
            use = self._use_of(connection)
            if use is not None and not self._meetings[use.place]:
                self._arrive(use)
            return original(connection, *args, **kwargs)

        return send

    def _receiving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
            use = self._use_of(connection)
            if use is not None and self._meetings[use.place] == _MET and self._senders[use.slot]:
                self._meetings[use.place] = _PROVEN
                with contextlib.suppress(OSError):  # The server may have closed it.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            return original(connection, *args, **kwargs)

        return receive

    def _use_of(self, connection: socket.socket) -> _Use | None:
        """This worker's use of *connection*; None if it is not shared."""
        descriptor, info = connection.fileno(), get_worker_info()
        place = self._places.get(descriptor)
        if place is None or info is None:
            return None
        # The worker may have closed it, and opened another one.
        is_same = proc.link_of("self", descriptor) == self._channels[place].link
        return _Use(place, info.id, place * self._workers + info.id) if is_same else None

    def _arrive(self, use: _Use) -> None:
        """This worker is about to send: wait for another one, if it is for the first time."""
        may_wait = not self._senders[use.slot] and sum(self._in_vain[:]) < _MOST_IN_VAIN
        self._senders[use.slot] = _WAITS
        try:
            if not self._meets(use) and may_wait:
                self._await_other(use)
        finally:
            self._senders[use.slot] = _SENDS

    def _await_other(self, use: _Use) -> None:
        _wait_for(lambda: self._meets(use) or self._has_started_others(use.worker), _START_TIMEOUT)
        if not _wait_for(lambda: self._meets(use), _SEND_TIMEOUT):
            self._in_vain[use.place] += 1

    def _meets(self, use: _Use) -> bool:
        """Whether another worker is about to send as well, or was at the same time as this one."""
        first = use.place * self._workers
        if self._senders[first : first + self._workers].count(_WAITS) > 1:
            self._meetings[use.place] = _MET
        return bool(self._meetings[use.place])

    def _has_started_others(self, worker: int) -> bool:
        return any(has_started for id_, has_started in enumerate(self._started[:]) if id_ != worker)


def _replace(
    kind: type[socket.socket], name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(kind, name)
    setattr(kind, name, functools.wraps(original)(wrap(original)))


def _wait_for(is_true: Callable[[], bool], seconds: float) -> bool:
    """Whether *is_true* before that many *seconds* are over."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(_POLLING)
    return True


def _list_descriptors() -> dict[str, list[int]]:
    """The descriptors of each socket and each pipe of this process, by what /proc calls it."""
    descriptors = defaultdict(list)
    for number, link in proc.descriptor_links().items():
        if link.startswith(("socket:", "pipe:")):
            descriptors[link].append(int(number))
    return descriptors


def _channel_of(link: str, descriptors: list[int]) -> _Channel | None:
    """The connection, or None if what arrives on it cannot be counted."""
    number = descriptors[0]
    if link.startswith("socket:"):
        with socket.socket(fileno=os.dup(number)) as connection:
            name = _peer_of(connection)
        count = partial(_count_received, number, link)
        return _Channel(f"a connection to {name}", count, link, number) if name else None
    if len(descriptors) > 1 or proc.is_write_only(number):
        return None
    family = set(proc.family(os.getpid())) - {os.getpid()}
    others = [pid for pid in family if link in _links_of(pid)]
    return _Channel("a pipe from another process", partial(_count_written, others), link)


def _peer_of(connection: socket.socket) -> str:
    """The address of the server; "" without one, and if it is not at the end of a stream."""
    if connection.type != socket.SOCK_STREAM:
        return ""
    try:
        address = connection.getpeername()
    except OSError:  # It is not connected.
        return ""
    is_of_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
    return ":".join(map(str, address[:2])) if is_of_ip else os.fsdecode(address)


def _links_of(pid: int) -> list[str]:
    try:
        return list(proc.descriptor_links(pid).values())
    except OSError:  # It has ended.
        return []


def _count_received(number: int, link: str) -> int:
    """How many bytes TCP has received on descriptor *number*; 0 if that is closed by now."""
    try:
        if proc.link_of("self", number) != link:
            return 0
        with socket.socket(fileno=os.dup(number)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0])
    except (OSError, struct.error):
        return 0


def _count_written(pids: list[int]) -> int:
    """How many bytes the processes *pids* have written."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += proc.bytes_written(pid)
    return count
