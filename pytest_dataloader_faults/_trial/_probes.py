"""What a process has open, and which processes are below it.

Some facts about what only looks like a leak. multiprocessing keeps a resource tracker, and a
forkserver, for the life of the process, and a descriptor to each; torch may keep its shared memory
manager. A dead child that nobody waited for is a zombie, not a process that goes on. A look through
/proc can miss a process whose parent dies at that moment, hence a second look where the first one
finds nobody. A descriptor that was closed while we look at it gives ENOENT.
"""

from __future__ import annotations

import os
import time

import psutil

_INFRASTRUCTURE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch_shm")


def descriptors(pid: int | str = "self") -> dict[str, str]:
    """What /proc/<pid>/fd says: a path, or a kind of kernel object with its number."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:  # Closed since, or the one that listed the folder.
            continue
    return found


def processes(patience: float = 1.0) -> dict[str, str]:
    """Descendants that are nobody's infrastructure, once they had *patience* seconds to end."""
    if not has_children():
        return {}
    deadline = time.monotonic() + patience
    while (found := _running() or _running()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def has_children() -> bool:
    """Ask the kernel: a look through /proc can miss one whose parent dies at that moment.

    And takes 2 ms. Here orphans are children: this process is a subreaper, see ``_warden``.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _running() -> dict[str, str]:
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline()) or process.name()
            zombie = process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
        if not zombie and not is_infrastructure(command):
            found[str(process.pid)] = command[:200]
    return found


def is_infrastructure(command: str) -> bool:
    """Whether a command line is one of multiprocessing's or torch's helpers."""
    return any(name in command for name in _INFRASTRUCTURE)
