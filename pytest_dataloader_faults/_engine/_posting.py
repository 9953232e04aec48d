"""What a worker has to know to arm itself, before it is any engine's."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._plan import Plan


@dataclass(frozen=True)
class Posting:
    """Where the supervisor is, and what is asked for. Picklable, for spawn and forkserver."""

    address: str
    supervisor: int
    plan: Plan
    engine: str
    stacks: str | None = None

    def connect(self) -> Channel:
        """A connection to the supervisor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect(f"\0{self.address}")
        return Channel(connection)
