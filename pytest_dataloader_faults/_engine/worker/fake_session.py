"""Arm this process for faults of fake files [runs in the DataLoader worker].

The kernel does not see these files. So this process decides about them itself, and reports to the
supervisor. The supervisor decides about deaths and hangs of the process, and says when the scope
ends, as for other workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.channel import Channel
from pytest_dataloader_faults._engine.fake import patcher
from pytest_dataloader_faults._engine.fake.engine import install, patch_for_good
from pytest_dataloader_faults._engine.plan import WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.protocol import WorkerConfig
from pytest_dataloader_faults._engine.system.processes import LONGEST_WAIT
from pytest_dataloader_faults._engine.worker.session import WorkerSession
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.wire import Firing


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: _SharedPolicy, *arguments: Any, **keywords: Any) -> Any:
        with self.lock:
            return method(self, *arguments, **keywords)

    return call


class _SharedPolicy(FaultPolicy):
    """A policy that several threads of the dataset may query."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lock = threading.RLock()

    open_actions = _locked(FaultPolicy.open_actions)
    read_actions = _locked(FaultPolicy.read_actions)
    stat_actions = _locked(FaultPolicy.stat_actions)
    stat_size_actions = _locked(FaultPolicy.stat_size_actions)
    note_allocation = _locked(FaultPolicy.note_allocation)
    count_unobserved = _locked(FaultPolicy.count_unobserved)


class FakeWorkerSession(WorkerSession):
    """This process, whose file access queries a schedule. A read that hangs reads *hang_socket*."""

    def __init__(
        self, channel: Channel, hang_socket: socket.socket, faults: WorkerFaults, worker: int | None
    ) -> None:
        super().__init__(channel, waits=True)
        self._hang_socket = hang_socket
        self.policy = _SharedPolicy(faults, worker, self._process, self._tell, self._refuse)

    def begin(self) -> None:
        """Count the fetches, since each firing has the number of its fetch."""
        self.policy.fetch += 1
        super().begin()

    def sleep(self, seconds: float) -> None:
        """Sleep for *seconds*, however many they are."""
        while seconds > 0:
            time.sleep(min(seconds, LONGEST_WAIT))
            seconds -= LONGEST_WAIT

    def hang(self) -> None:
        """Until the supervisor hangs up, at the end of the scope."""
        self._hang_socket.recv(1)

    def disarm(self) -> None:
        """Let everything pass from now on, and send the last counters."""
        self.policy.armed = False
        self._send_counts()

    def _refuse(self, reason: str) -> None:
        self._tell(protocol.FaultRefused(reason))

    def _tell(self, message: Firing | protocol.FaultRefused) -> None:
        with contextlib.suppress(ConnectionError):  # The main process gets it as well, and raises.
            self._send(message)

    def _send(self, message: protocol.FromWorker) -> None:
        self._send_counts(message)

    def _send_counts(self, *following: protocol.FromWorker) -> None:
        """Send the counters, then *following*. A process forked from this one sends nothing."""
        with self.policy.lock:
            for message in (self.policy.changes(), *following) if self._is_here else ():
                super()._send(message)

    def switch(self, orders: protocol.Proceed) -> None:
        """Let faults fire from now on, if the supervisor says so."""
        self.policy.armed = orders.armed
        self.policy.faults.over = orders.over

    def _proceed(self, orders: protocol.Proceed, descriptors: list[int]) -> None:
        self.switch(orders)
        super()._proceed(orders, descriptors)


def arm_fake_session(config: WorkerConfig, worker: int | None, loader: int) -> WorkerSession:
    """Replace access to fake files in this process, permanently."""
    config.door.require_open()
    channel, other_end = Channel.pair()
    hang_socket, other_hang_socket = socket.socketpair()
    with other_hang_socket:
        attached = [other_hang_socket.fileno(), other_end.fileno()]
        config.door.channel.send(protocol.Hello(worker, loader, os.getpid(), fakes=True), attached)
    other_end.close()
    session = FakeWorkerSession(channel, hang_socket, WorkerFaults(config.plan, worker), worker)
    orders = channel.receive()[0]
    assert isinstance(orders, protocol.Proceed)
    session.switch(orders)
    lock = session.policy.lock  # A child forked while a thread holds it would wait forever.
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    fake = patcher()
    patch_for_good(fake)
    is_scarce = Place.ALLOCATION in config.plan.needs.places
    install(session.policy, session, fake, scarce=is_scarce)
    return session
