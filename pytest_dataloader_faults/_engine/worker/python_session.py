"""Arm this process without the kernel's help [runs in the DataLoader worker].

The faults are decided here, and told to the supervisor. What befalls the process itself, and when
the scope ends, comes from there, as with the kernel engine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

from pytest_dataloader_faults._engine.plan import WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.protocol import Channel, Message, WorkerConfig
from pytest_dataloader_faults._engine.python.install import install
from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.python.pyfakefs.faults import install as install_fake
from pytest_dataloader_faults._engine.python.pyfakefs.in_worker import settle
from pytest_dataloader_faults._engine.worker.session import WorkerSession


class PythonWorkerSession(WorkerSession):
    """This process, whose file access asks a schedule. What hangs waits for *brake* to end."""

    def __init__(
        self, channel: Channel, brake: socket.socket, tallies: WorkerFaults, worker: int
    ) -> None:
        super().__init__(channel)
        self._brake = brake
        self._process = os.getpid()
        self.schedule = FaultPolicy(
            tallies, worker, self._process, on_fired=self._fired, refuse=self._refused
        )

    def begin(self) -> None:
        """Firings tell in which fetch they were."""
        self.schedule.fetch += 1
        super().begin()

    def sleep(self, seconds: float) -> None:
        """As time.sleep()."""
        time.sleep(seconds)

    def hang(self) -> None:
        """Until the supervisor hangs up, at the end of the scope."""
        self._brake.recv(1)

    def disarm(self) -> None:
        """From now on everything passes. What was counted is told."""
        self.schedule.armed = False
        self._tell({})

    def _fired(self, firing: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):  # Whoever asks for the report finds out.
            self._tell({"fired": firing})

    def _refused(self, why: str) -> None:
        with contextlib.suppress(ConnectionError):
            self._tell({"refused": why})

    def _tell(self, message: Message) -> None:
        """A process forked from this one shares the connection, and has no say."""
        with self.schedule.lock:
            if os.getpid() == self._process:
                self._channel.send({**message, "counts": self.schedule.changes()})

    def switch(self, orders: dict[str, Any]) -> None:
        """Have those faults happen, from now on, that the supervisor says."""
        self.schedule.armed = orders["armed"]
        self.schedule.faults.active = orders["active"]

    def _obey(self, orders: dict[str, Any], descriptors: list[int]) -> None:
        self.switch(orders)
        super()._obey(orders, descriptors)


def arm(posting: WorkerConfig, worker: int, loader: int) -> WorkerSession:
    """Replace Python's file access in this process, for good."""
    channel = posting.connect()
    brake, other_end = socket.socketpair()
    with other_end:
        hello = {"worker": worker, "loader": loader, "pid": os.getpid(), "engine": "python"}
        channel.send(hello, [other_end.fileno()])
    armed = PythonWorkerSession(channel, brake, WorkerFaults(posting.plan, worker), worker)
    armed.switch(channel.receive()[0])
    lock = armed.schedule.lock  # A child forked while another thread holds it would wait for ever.
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    if (fake := patcher()) is None:
        install(armed.schedule, armed)
    else:
        settle(fake)
        install_fake(armed.schedule, armed, fake, scarce=posting.plan.needs.descriptors)
    return armed
