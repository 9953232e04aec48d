"""Connections and pipes that a dataset opens before its workers start [in the trial].

Some facts about what fork(2) does to them. The child has the same descriptors, and both processes
send and receive on one connection: an answer reaches whichever asks first. A dataset may know that,
and open another connection in each worker, or never use this one. So only those count on which data
arrives while the workers run: by TCP_INFO, and by what the process behind a pipe has written.

A pipe to another process has one end here. If both are here, they belong to a queue, which
multiprocessing shares among processes with a lock.

Some facts about when a shared connection shows. A server answers requests in order, so the answers
are mixed up only if a second worker sends its request before the first one has its answer. On a
quick server that is rare. So the first worker that has sent something waits before it receives:
until another worker has sent something as well, and has received an answer, which is that of the
first one. If it holds a lock meanwhile, no other one sends. So the first continues soon after
another worker has started its first batch, and no worker waits again. Some code does not wait for a
lock even that long: if the trial fails, it is repeated without that wait. Python's sockets, and
torch's fetchers, are replaced for that in this process, which is disposable. C code, and TLS, which
C code reads and writes, do not wait.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import socket
import struct
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


_SENDS = "send sendall sendmsg sendto".split()
_RECEIVES = "recv recv_into recvfrom recvfrom_into recvmsg recvmsg_into".split()
_START_TIMEOUT = 0.5
"""Seconds until another worker has started its first batch."""
_SEND_TIMEOUT = 0.2
"""Seconds from then until another worker has sent something."""
_ANSWER_TIMEOUT = 0.5
_POLLING = 0.001
_TIMES = struct.Struct("=dd")
"""When a worker has first sent something, and received something: 0 if it has not."""


class _Channel(NamedTuple):
    """A connection by its *name*, and how many bytes have arrived on it.

    *descriptor*: of a TCP connection, and *link*: what /proc calls it.
    """

    name: str
    count_bytes: Callable[[], int]
    link: str
    descriptor: int | None = None


class SharedConnections(Watcher):
    """The connections of this process that workers share."""

    def __init__(self) -> None:
        self._channels: list[_Channel] = []
        self._counts: list[int] = []
        self._first_uses: _FirstUses | None = None

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
            each for each in self._channels if each.descriptor and not is_unprovoked(each.name)
        ]
        if provoked and workers > 1:
            self._first_uses = _FirstUses(provoked, workers)
            self._first_uses.watch()

    def end(self, journal: Journal) -> None:
        """The workers have ended: write to *journal* on which connections data arrived."""
        for channel, earlier in zip(self._channels, self._counts, strict=False):
            if channel.count_bytes() > earlier:
                journal.write(Noted(SharedConnection(channel.name)))
        if self._first_uses is not None and (vain := self._first_uses.vain_channel):
            journal.write(Noted(VainWait(vain.name)))


class _FirstUses:
    """When each worker first uses a connection, which is one of *channels*."""

    def __init__(self, channels: Sequence[_Channel], workers: int) -> None:
        self._channels = channels
        self._workers = workers
        self._places = {each.descriptor: place for place, each in enumerate(channels)}
        self._times = mmap.mmap(-1, (len(channels) * workers + 1) * _TIMES.size)
        """For each connection those of each worker; then where one waited in vain, from 1."""
        self._in_vain = len(channels) * workers
        self._started = mmap.mmap(-1, workers)
        """A byte for each worker: 1 if it has started a batch."""

    @property
    def vain_channel(self) -> _Channel | None:
        """The connection at which a worker has waited for another one in vain, if any."""
        number = int(self._read(self._in_vain)[0])
        return self._channels[number - 1] if number else None

    def watch(self) -> None:
        """Have the methods of Python's sockets wait in workers that are forked from now on."""
        precede_fetches(self._note_start)
        for name in _SENDS:
            _replace(name, self._sending)
        for name in _RECEIVES:
            _replace(name, self._receiving)

    def _note_start(self) -> None:
        if info := get_worker_info():
            self._started[info.id] = 1

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
            slot = self._slot_of(connection)
            if slot is not None and not self._read(slot)[0]:
                self._write(slot, time.monotonic(), 0)
            return original(connection, *args, **kwargs)

        return send

    def _receiving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
            slot = self._slot_of(connection)
            sent, received = (0.0, 0.0) if slot is None else self._read(slot)
            if slot is None or not sent or received:
                return original(connection, *args, **kwargs)
            self._await_other(slot, sent)
            result = original(connection, *args, **kwargs)
            self._write(slot, sent, time.monotonic())
            return result

        return receive

    def _slot_of(self, connection: socket.socket) -> int | None:
        """Where the times of this worker and *connection* are; None if it is not shared."""
        descriptor, info = connection.fileno(), get_worker_info()
        place = self._places.get(descriptor)
        if place is None or info is None:
            return None
        # The worker may have closed it, and opened another one.
        is_same = proc.link_of("self", descriptor) == self._channels[place].link
        return place * self._workers + info.id if is_same else None

    def _await_other(self, slot: int, sent: float) -> None:
        """Wait until a worker that sent something later has received something."""
        own_id = slot % self._workers
        first = slot - own_id
        others = [each for each in range(first, first + self._workers) if each != slot]

        def follows(number: int) -> bool:
            """Whether another worker has sent something, or received it if *number* is 1."""
            return any(self._read(each)[number] for each in others)

        if self.vain_channel or any(0 < self._read(each)[0] < sent for each in others):
            return
        _wait_for(lambda: follows(0) or self._has_started_others(own_id), _START_TIMEOUT)
        if _wait_for(lambda: follows(0), _SEND_TIMEOUT):
            _wait_for(lambda: follows(1), _ANSWER_TIMEOUT)
        else:
            self._write(self._in_vain, first // self._workers + 1, 0)

    def _has_started_others(self, worker: int) -> bool:
        return any(has_started for id_, has_started in enumerate(self._started[:]) if id_ != worker)

    def _read(self, slot: int) -> tuple[float, float]:
        sent, received = _TIMES.unpack_from(self._times, slot * _TIMES.size)
        return sent, received

    def _write(self, slot: int, sent: float, received: float) -> None:
        _TIMES.pack_into(self._times, slot * _TIMES.size, sent, received)


def _replace(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(socket.socket, name)
    setattr(socket.socket, name, functools.wraps(original)(wrap(original)))


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
            try:
                host, port = connection.getpeername()[:2]
            except (OSError, ValueError):  # It is not connected, or has no address of that kind.
                return None
        count = partial(_count_received, number, link)
        return _Channel(f"a connection to {host}:{port}", count, link, number)
    if len(descriptors) > 1 or proc.is_write_only(number):
        return None
    family = set(proc.family(os.getpid())) - {os.getpid()}
    others = [pid for pid in family if link in _links_of(pid)]
    return _Channel("a pipe from another process", partial(_count_written, others), link)


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
