"""The beginning of a supervisor [runs as that process]."""

from __future__ import annotations

import resource
import signal
import socket
import sys

from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._plan import Plan
from pytest_dataloader_faults._engine._supervisor import Supervisor


def main() -> None:
    """Serve the scope whose control socket, door and black box the starter hands over."""
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    door = socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever drives the loader.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    message, _ = control.receive()
    supervisor = Supervisor(control, door, Plan.from_dict(message))
    supervisor.black_box = int(sys.argv[3]) if sys.argv[3:] else None
    signal.signal(signal.SIGTERM, lambda _number, _frame: supervisor.last_words())
    control.send({"ready": True})
    supervisor.run()
