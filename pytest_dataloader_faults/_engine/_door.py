"""How a supervisor is reached: by the process that drives the loader, and by workers."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

_QUEUE = 128


@dataclass(frozen=True)
class Supervision:
    """A supervisor that waits for its plan: its process, the way to it, and its door's name."""

    pid: int
    control: socket.socket
    address: str


def new_door() -> tuple[socket.socket, str]:
    """A socket that workers will knock at, and its name among the abstract ones."""
    address = f"pytest-dataloader-faults-{os.getpid()}-{secrets.token_hex(8)}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(f"\0{address}")
    door.listen(_QUEUE)
    return door, address
