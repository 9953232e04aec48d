"""Connections and pipes that a dataset opens before its workers start [in the trial].

Some facts about what fork(2) does to them. The child has the same descriptors, and both processes
send and receive on one connection: an answer reaches whichever asks first. A dataset may know that,
and open another connection in each worker. So what is found here explains a failure, and is none.

A pipe to another process has one end here. If both are here, they belong to a queue, which
multiprocessing shares among processes with a lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import defaultdict
from collections.abc import Iterator

from pytest_dataloader_faults._engine.system.proc import descriptor_links
from pytest_dataloader_faults._trial.journal import Journal, Noted
from pytest_dataloader_faults.outcomes.stages import OpenConnection


@contextlib.contextmanager
def note_connections(journal: Journal) -> Iterator[None]:
    """Write to *journal* which connections and pipes are opened within the block, and stay open."""
    earlier = _list_channels()
    yield
    for link, descriptors in _list_channels().items():
        if link not in earlier and (name := _describe(link, descriptors)):
            journal.write(Noted(OpenConnection(name)))


def _list_channels() -> dict[str, list[int]]:
    """The descriptors of each socket and each pipe of this process, by what /proc calls it."""
    channels = defaultdict(list)
    for descriptor, link in descriptor_links().items():
        if link.startswith(("socket:", "pipe:")):
            channels[link].append(int(descriptor))
    return channels


def _describe(link: str, descriptors: list[int]) -> str | None:
    """The other end of a socket or pipe, or None if no other process is known to have it."""
    if link.startswith("pipe:"):
        return "a pipe to another process" if len(descriptors) == 1 else None
    with socket.socket(fileno=os.dup(descriptors[0])) as connection:
        try:
            peer = connection.getpeername()
        except OSError:  # It listens, or is not connected yet.
            return None
    address = "{}:{}".format(*peer) if isinstance(peer, tuple) else os.fsdecode(peer)
    return f"a connection to {address}" if address else None
