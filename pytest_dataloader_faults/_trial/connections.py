"""Connections and pipes that a dataset opens before its workers start [in the trial].

Some facts about what fork(2) does to them. The child has the same descriptors, and both processes
send and receive on one connection: an answer reaches whichever asks first. A dataset may know that,
and open another connection in each worker, or never use this one. So only those count on which data
arrives while the workers run: by TCP_INFO, and by what the process behind a pipe has written.

A pipe to another process has one end here. If both are here, they belong to a queue, which
multiprocessing shares among processes with a lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._trial.journal import Journal, Noted
from pytest_dataloader_faults.outcomes.stages import SharedConnection

_INFO_SIZE, _BYTES_RECEIVED = 136, 128
"""Of struct tcp_info, since Linux 4.1."""


class _Channel(NamedTuple):
    """A connection by its *name*, and how many bytes have arrived on it."""

    name: str
    count_bytes: Callable[[], int]


class SharedConnections:
    """The connections of this process that workers share."""

    def __init__(self) -> None:
        self._channels: list[_Channel] = []
        self._counts: list[int] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Remember which connections and pipes are opened within the block, and stay open."""
        earlier = _list_descriptors()
        yield
        for link, descriptors in _list_descriptors().items():
            if link not in earlier and (channel := _channel_of(link, descriptors)):
                self._channels.append(channel)

    def begin(self) -> None:
        """The workers start."""
        self._counts = [each.count_bytes() for each in self._channels]

    def end(self, journal: Journal) -> None:
        """The workers have ended: write to *journal* on which connections data arrived."""
        for channel, earlier in zip(self._channels, self._counts, strict=False):
            if channel.count_bytes() > earlier:
                journal.write(Noted(SharedConnection(channel.name)))


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
        return _Channel(f"a connection to {host}:{port}", partial(_count_received, number, link))
    if len(descriptors) > 1 or proc.is_write_only(number):
        return None
    family = set(proc.family(os.getpid())) - {os.getpid()}
    others = [pid for pid in family if link in _links_of(pid)]
    return _Channel("a pipe from another process", partial(_count_written, others))


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
