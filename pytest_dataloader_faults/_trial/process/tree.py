"""The processes of a trial: list them, and end them [in the trial, the warden, and pytest].

Some facts about ending a tree of processes. Killing a session or a group misses those that left it.
A process whose parent dies goes to the nearest ancestor that is a "child subreaper" (prctl(2)), so
with this process as one, everything below stays below, whatever it does. Killing one while another
forks can miss the new one: so stop all first, kill, reap, and look again until none is left.
multiprocessing's resource tracker removes named semaphores when its clients have exited, and
torch's manager of shared memory its segments: both get the time to do so.

Some facts about what only looks like a leak. multiprocessing keeps a resource tracker, and a
forkserver, for the life of the process; torch may keep its shared memory manager. A dead child that
was not waited for is a zombie, not a running process. A listing of /proc can miss a process whose
parent dies at that moment, hence a second listing if the first one finds none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator

import psutil

from pytest_dataloader_faults._engine.supervisor.start import NAME as SUPERVISOR
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.patience import Patience, has_ended

_INFRASTRUCTURE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch_shm")
_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""They end with their clients, and remove what their clients have left."""
_CLEANERS_PATIENCE = 10.0
_UNKILLABLE = 20.0
"""Seconds until the warden gives up on a process that survives SIGKILL, as one in disk sleep."""


def trial_processes(server: tuple[int, int] | None) -> list[psutil.Process]:
    """The descendants of this process, and of a fork server with its keeper, *server*."""
    return [
        *psutil.Process().children(recursive=True),
        *(_list_descendants(*server) if server else ()),
    ]


def _list_descendants(keeper: int, server: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(keeper).children(recursive=True)
        return [each for each in children if each.pid != server]
    return []


def running_commands(server: tuple[int, int] | None, seconds: float = 1.0) -> dict[str, str]:
    """The commands, by pid, of ``trial_processes`` that still run after *seconds* of ``Patience``.

    Helpers of torch and Python are left out.
    """
    if not _has_children() and not (server and _list_descendants(*server)):
        return {}
    patience = Patience(seconds)
    while (commands := _commands(server) or _commands(server)) and not patience.is_over(
        map(int, commands)
    ):
        time.sleep(0.01)
    return commands


def _has_children() -> bool:
    """Whether there are descendants; orphans are children of a subreaper, which this process is.

    The kernel reports it at once and reliably; a listing of /proc takes 2 ms.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _commands(server: tuple[int, int] | None) -> dict[str, str]:
    commands = {}
    for process in trial_processes(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline()) or process.name()
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            is_own = process.name() == SUPERVISOR
            if not (is_zombie or is_own or is_infrastructure(command)):
                commands[str(process.pid)] = command[:200]
    return commands


def is_infrastructure(command: str) -> bool:
    """Whether a command line is one of multiprocessing's or torch's helpers."""
    return any(name in command for name in _INFRASTRUCTURE)


def _is_cleaner(process: psutil.Process) -> bool:
    """Whether *process* removes what others have left, and ends with them."""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return any(name in command for name in _CLEANERS)
    return False


def end_session(leader: int, seconds: float, grace: float = 0.0) -> None:
    """End what the process *leader* has started; cleaners end by themselves with the others.

    Wait for each for *seconds* at most. Those that end within *grace* seconds are not killed.
    """
    members = list(_session_of(leader))
    for process in members:
        with contextlib.suppress(psutil.Error):
            if not has_ended(process.pid, grace) and not _is_cleaner(process):
                process.kill()
    for process in members:
        has_ended(process.pid, seconds)


def _session_of(leader: int) -> Iterator[psutil.Process]:
    """The processes of a session.

    ``psutil.process_iter`` may return its object for a dead process if the pid was reused, and that
    object refuses to kill the new process.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                yield psutil.Process(pid)


def end_all(spared: Collection[int] = ()) -> set[int]:
    """End all processes below this one but *spared*, which have no children; their pids.

    Helpers may remove what those have left.
    """
    killed: set[int] = set()
    for_cleaners, for_all = Patience(_CLEANERS_PATIENCE), Patience(_UNKILLABLE)
    doomed: list[psutil.Process] = []
    while _has_others(spared) and not for_all.is_over(each.pid for each in doomed):
        below = psutil.Process().children(recursive=True)
        children = [each for each in below if each.pid not in spared]
        cleaners = list(filter(_is_cleaner, children))
        may_clean = not for_cleaners.is_over(each.pid for each in cleaners)
        doomed = [each for each in children if not (may_clean and each in cleaners)]
        send(signal.SIGSTOP, doomed)
        killed.update(each.pid for each in doomed)
        send(signal.SIGKILL, doomed)
        for _ in range(20):  # Dying ones need a moment.
            if not _has_others(spared):
                break
            time.sleep(0.002)
    return killed


def _has_others(spared: Collection[int]) -> bool:
    """Reap dead children, and return whether others than *spared* are below this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    # psutil would take 4 ms for that.
    return any(pid not in spared for pid in itertools.islice(proc.family(os.getpid()), 1, None))


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
