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
    """Serve the scope whose control socket and door the starter hands over."""
    control, door = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    serve(control, door)


def serve(control: socket.socket, door: socket.socket, black_box: int | None = None) -> None:
    """Serve one scope, if there is to be one: a starter that hangs up sends no plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever drives the loader.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = Channel(control)
    try:
        message, _ = channel.receive()
    except (EOFError, ConnectionError):
        return
    supervisor = Supervisor(channel, door, Plan.from_dict(message["plan"]), message["driver"])
    supervisor.black_box = black_box
    signal.signal(signal.SIGTERM, lambda _number, _frame: supervisor.last_words())
    channel.send({"ready": True})
    supervisor.run()
