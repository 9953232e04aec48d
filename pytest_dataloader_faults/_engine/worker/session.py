"""A worker with faults: its reports, and the orders that it obeys [runs in the DataLoader worker].

Some facts about torch's queue of results. All workers of a loader write to one pipe, each from a
thread that takes a lock that lies in shared memory for as long as it writes
(multiprocessing/queues.py, ``_feed``). A worker that dies with it leaves half a message in the
pipe, and a lock that stays locked: other workers cannot pass anything from then on. So the loader
must give up at once, which it does, by the signal of its child's death. A worker from a fork server
is not a child of the loader: there torch waits forever.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.channel import Channel
from pytest_dataloader_faults._engine.worker.allocations import LargeAllocations
from pytest_dataloader_faults._engine.worker.fetch_hooks import FetchListener
from pytest_dataloader_faults.outcomes.libraries import SETTINGS


class WorkerSession(FetchListener):
    """This process, with faults."""

    def __init__(
        self, channel: Channel, *, waits: bool, allocations: LargeAllocations | None = None
    ) -> None:
        """*allocations*: what makes allocations reach the kernel, if one may fail."""
        self._channel = channel
        self._waits = waits
        self._allocations = allocations
        self._process = os.getpid()
        self._epoch = self._fetch = 0

    def restart(self) -> None:
        """Count the fetches of an epoch from 1."""
        self._epoch += 1
        self._fetch = 0

    def begin(self) -> None:
        """A fetch starts."""
        self._fetch += 1
        if self._allocations and self._is_here:
            self._allocations.prepare(self._send)
        feeders = [each.native_id for each in queue_threads() if each.native_id is not None]
        self._send(protocol.FetchStarted(self._epoch, self._fetch, feeders))
        self._wait_to_proceed()

    def begin_sample(self, sample: int | None, *, alone: bool) -> None:
        """A sample starts. Nothing is due at one whose index is not a number."""
        self._send(protocol.SampleStarted(sample, alone))
        if sample is not None:
            self._wait_to_proceed()

    def end(self, *, ended: bool) -> None:
        """The fetch is over; *ended*: it was the last one."""
        self._send(protocol.FetchFinished(self._fetch, ended, _settings()))

    def idle(self) -> None:
        """The worker will not start a fetch."""
        self._send(protocol.WorkerIdle())

    def disarm(self) -> None:
        """The scope ends. Called if this process outlives it."""

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that was armed, instead of one forked from it."""
        return os.getpid() == self._process

    def _send(self, message: protocol.FromWorker) -> None:
        if self._is_here:
            self._channel.send(message)

    def _wait_to_proceed(self) -> None:
        """Wait until the supervisor lets it proceed, if something may happen here."""
        is_waiting = self._waits and self._is_here
        while is_waiting:
            message, descriptors = self._channel.receive()
            if isinstance(message, protocol.Proceed):
                self._proceed(message, descriptors)
                is_waiting = False
            else:
                _run_task(message)

    def _proceed(self, orders: protocol.Proceed, descriptors: list[int]) -> None:
        apply_orders(orders, descriptors)
        if self._allocations and (orders.over or not orders.armed):
            self._allocations.end()
            self._allocations = None


def queue_threads() -> list[threading.Thread]:
    """The threads of this process that feed queues (multiprocessing/queues.py)."""
    return [each for each in threading.enumerate() if each.name == "QueueFeederThread"]


def _settings() -> list[str]:
    """The settings of libraries to accept files that are bad, as far as they are on here."""
    return [setting for setting in SETTINGS if _is_on(*setting.rpartition(".")[::2])]


def _is_on(module: str, name: str) -> bool:
    return bool(getattr(sys.modules.get(module), name, False))


def apply_orders(orders: protocol.Proceed, descriptors: list[int]) -> None:
    """Close and replace descriptors of this process by *orders*, which contain *descriptors*."""
    for fd in orders.close:
        os.close(fd)
    for fd, index in orders.replace:  # A separately opened file, at the same offset.
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        fresh = os.open(f"/proc/self/fd/{descriptors[index]}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(fresh, offset, os.SEEK_SET)
        os.dup2(fresh, fd, inheritable=os.get_inheritable(fd))
        os.close(fresh)
    for fd in descriptors:
        os.close(fd)


def _run_task(task: object) -> None:
    match task:
        case protocol.ExitNow():
            os._exit(task.code)
        case protocol.DieWhileSending():
            die_sending(task.signal)
        case protocol.Block():
            pass


def die_sending(number: int) -> None:
    """End this process by signal *number* within the next message that it sends.

    To be called when all that was made before has arrived.
    """

    def send(connection: Any, message: Any) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), number)

    Connection._send = send  # type: ignore[attr-defined]
