"""The beginning of a supervisor [runs as that process].

A supervisor that is there before it is needed [runs in a trial's warden, and as that process].

Some facts about the start of a supervisor. A new interpreter reads its modules for 80 ms, a third
of a short trial. A warden has them loaded, has one thread and nothing of the user's yet: so it
forks one. A process in the midst of a test, as that of inject(), must not: its copy would keep the
user's locks, pipes and files open.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import traceback
from typing import NoReturn

from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.processes import fork
from pytest_dataloader_faults._engine.protocol import Channel, SupervisorHandle, new_door
from pytest_dataloader_faults._engine.supervisor.server import Supervisor


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


NAME = "dlf-supervisor"
"""What ps(1) shows; its command line is its parent's."""


def stand_by(black_box: int) -> SupervisorHandle:
    """Fork a supervisor, which writes its report to *black_box* when it is ended."""
    ours, theirs = socket.socketpair()
    door, address = new_door()
    with door, theirs:
        pid = fork()
        if not pid:
            ours.close()
            _be_supervisor(theirs, door, black_box)
    return SupervisorHandle(pid, ours, address)


def _be_supervisor(control: socket.socket, door: socket.socket, black_box: int) -> NoReturn:
    """Serve, and never return into what the parent does next."""
    status = 70
    try:
        with open("/proc/self/comm", "w", encoding="utf-8") as shown:
            shown.write(NAME)
        serve(control, door, black_box)
        status = 0
    except SystemExit:
        status = 0
    except BaseException:  # noqa: BLE001  # there is no caller to go back to
        traceback.print_exc()
    finally:
        os._exit(status)
