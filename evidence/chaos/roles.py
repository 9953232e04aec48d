"""Find the processes of the harness by what /proc tells of them."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from pytest_dataloader_faults._engine.supervisor.start import NAME

_SERVER = b"process.fork_server"
_PYTHONS_SERVER = b"multiprocessing.forkserver"
_HELPERS = (b"resource_tracker", b"torch_shm_manager")


_FORKED = 0x40
"""PF_FORKNOEXEC of linux/sched.h, in the flags of /proc/PID/stat; see proc(5)."""


class Process(NamedTuple):
    """One process that is no zombie. *is_fork*: it runs the program of its parent."""

    pid: int
    parent: int
    session: int
    name: str
    command: bytes
    is_fork: bool


def processes() -> dict[int, Process]:
    """Those of this PID namespace, without the one that looks, by pid."""
    processes_by_pid = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                begin, _, fields = file.read().rpartition(b")")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
            state, parent, _, session, _, _, flags = fields.split()[:7]
            if state not in (b"Z", b"X") and pid != os.getpid():
                name = begin.partition(b"(")[2].decode(errors="replace")
                processes_by_pid[pid] = Process(
                    pid, int(parent), int(session), name, command, bool(int(flags) & _FORKED)
                )
    return processes_by_pid


def with_role(role: str, main: int, method: str) -> list[int]:
    """The pids of that *role* in the subject whose process is *main*."""
    all_of_them = processes()
    if role == "main":
        return [main] if main in all_of_them else []
    pids = [pid for pid, each in all_of_them.items() if _role(each, all_of_them, main) == role]
    # A process without a command of its own may be about to get one.
    forked = method == "fork" or role != "worker"
    return [pid for pid in pids if forked or _is_started(all_of_them[pid])]


def is_server(process: Process) -> bool:
    """Whether it is a fork server, and was not forked by one, as its workers are."""
    return not process.is_fork and any(each in process.command for each in _SERVERS)


def _is_started(process: Process) -> bool:
    return any(each in process.command for each in (*_SERVERS, b"spawn_main"))


def _role(process: Process, processes_by_pid: dict[int, Process], main: int) -> str | None:
    above = processes_by_pid.get(process.parent)
    role = None
    if process.pid == main or above is None or any(each in process.command for each in _HELPERS):
        pass
    elif process.name == NAME:
        role = "supervisor"
    elif server := next((each for each in _SERVERS if each in process.command), None):
        role = "worker" if _depth(server, process, processes_by_pid) > _SERVERS[server] else None
    elif _is_runner(process, main):
        role = "runner"
    elif _is_warden(above, processes_by_pid, main):
        role = "root"
    elif _is_warden(process, processes_by_pid, main):
        role = "warden"
    elif above.pid == main or _role(above, processes_by_pid, main) == "root":
        role = "worker"
    return role


_SERVERS = {_SERVER: 3, _PYTHONS_SERVER: 1}
"""How many processes with that command are no workers: for a trial the one that has torch, the
keeper of the trial's server, and that server."""


def _depth(command: bytes, process: Process, processes_by_pid: dict[int, Process]) -> int:
    depth, at = 0, process
    while command in at.command:
        depth, at = depth + 1, processes_by_pid.get(at.parent, at._replace(command=b""))
    return depth


def _is_warden(process: Process, processes_by_pid: dict[int, Process], main: int) -> bool:
    """Whether it leads a session and was started by the process that runs the test."""
    if process.session != process.pid or process.name == NAME or process.pid == main:
        return False
    above = processes_by_pid.get(process.parent)
    return process.parent == main or (above is not None and _is_runner(above, main))


def _is_runner(process: Process, main: int) -> bool:
    """Whether it is a worker of pytest-xdist."""
    return process.parent == main and b"sys.stdin.readline" in process.command
