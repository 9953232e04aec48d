"""Start a supervisor: a new interpreter, or a fork of a trial's warden [runs as that process].

Some facts about the start of a supervisor. A new interpreter reads its modules for 80 ms, a third
of a short trial. A warden has them loaded, has one thread and nothing of the user's yet: so it
forks one. A process in the midst of a test, as that of inject(), must not: its copy would keep the
user's locks, pipes and files open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import replace
from typing import NoReturn

from pytest_dataloader_faults._engine.channel import Channel, SupervisorHandle, listening_socket
from pytest_dataloader_faults._engine.plan import Plan
from pytest_dataloader_faults._engine.protocol import Configure, Ready
from pytest_dataloader_faults._engine.supervisor.leftovers import Leftovers
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults._engine.system.proc import set_own_name
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._engine.system.shared import AnonymousFile, SharedCount


def main() -> None:
    """Serve the scope whose control socket and listening socket the starter hands over."""
    control, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    serve(control, listening)


def serve(
    control: socket.socket,
    listening: socket.socket,
    report_fd: int | None = None,
    more_starters: tuple[int, ...] = (),
    given: SharedCount | None = None,
) -> None:
    """Serve one scope, if there is to be one: a starter that hangs up sends no plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loader's process.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = Channel(control)
    try:
        message, _ = channel.receive()
    except (EOFError, ConnectionError):
        return
    assert isinstance(message, Configure)
    plan = Plan.from_dict(message.plan)
    with contextlib.ExitStack() as scope:
        leftovers = None
        if message.folder is not None:  # In a trial the warden removes what is left.
            # Or it would make a file to see whether it can, and leave that when it is killed.
            tempfile.tempdir = os.path.dirname(message.folder)
            leftovers = scope.enter_context(Leftovers(message))
        supervisor = Supervisor(channel, listening, plan, message.driver, report_fd, more_starters)
        if leftovers:
            leftovers.workers = supervisor.workers
        if given:
            supervisor.services = replace(supervisor.services, given=given)
        signal.signal(signal.SIGTERM, lambda _number, _frame: supervisor.end())
        channel.send(Ready(leftovers.refused if leftovers else ""))
        supervisor.run()


NAME = "dlf-supervisor"
"""What ps(1) shows; its command line is its parent's."""


def fork_supervisor(report_fd: int, more_starters: tuple[int, ...]) -> SupervisorHandle:
    """Fork a supervisor, which writes its report to *report_fd* when it is ended.

    *more_starters*: processes whose descendants are workers, beside those of the loader's process.
    """
    ours, theirs = socket.socketpair()
    listening, address = listening_socket()
    printed, given = AnonymousFile("supervisor"), SharedCount()
    with listening, theirs:
        pid = fork()
        if not pid:
            ours.close()
            for stream in (1, 2):
                os.dup2(printed.fd, stream)
            _run_supervisor(theirs, listening, report_fd, more_starters, given)
    return SupervisorHandle(pid, ours, address, printed, given)


def _run_supervisor(
    control: socket.socket,
    listening: socket.socket,
    report_fd: int,
    more_starters: tuple[int, ...],
    given: SharedCount,
) -> NoReturn:
    """Serve, and never return into what the parent does next."""
    status = 70
    try:
        set_own_name(NAME)
        serve(control, listening, report_fd, more_starters, given)
        status = 0
    except SystemExit:
        status = 0
    except BaseException:  # noqa: BLE001  # there is no caller to go back to
        traceback.print_exc()
    finally:
        os._exit(status)
