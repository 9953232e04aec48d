"""Files that no fault of a worker is about, known by their paths [runs in the supervisor].

Some facts about what an open(2) costs. The worker waits for the supervisor, and does not run before
the supervisor sleeps again where both share a processor. So each step counts. To read the path by
process_vm_readv(2) takes 3 µs, and 1 µs by pread(2) from /proc/PID/mem. To resolve it, to look at
the file and to ask the policy takes 10 µs. For a path that no glob means the answer is the same
each time, whatever lies there.

An open /proc/PID/mem is about the memory that the process had when it was opened. Once execve(2)
has replaced that memory, a read gives 0 bytes. A process that was forked has memory of its own, and
one made by vfork(2) changes its memory without notice. So only the worker itself is asked this way.
"""

from __future__ import annotations

import contextlib
import os

from pytest_dataloader_faults._engine.kernel.remote_process import Syscall
from pytest_dataloader_faults._engine.plan import FileCounter

_PAGE, _LENGTH = 4096, 512
_MOST = 4096


class KnownPaths:
    """Of the worker *pid*: absolute paths of regular files, each with the counter of its opens."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._counters: dict[bytes, FileCounter] = {}
        self._memory: int | None = None

    def add(self, path: str, counter: FileCounter) -> None:
        """From now on, an open of *path*, spelled like that, only counts."""
        if self._memory is None:
            with contextlib.suppress(OSError):  # Then each open is looked at.
                self._memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        if len(self._counters) >= _MOST:
            self._counters.clear()
        self._counters[os.fsencode(path)] = counter

    def count(self, call: Syscall) -> bool:
        """Whether *call* opens one of them, which is counted, and makes none."""
        if self._memory is None or call.name != "openat" or call.pid != self._pid:
            return False
        address, flags = call.arguments[1], call.arguments[2]
        try:
            text = os.pread(self._memory, min(_LENGTH, _PAGE - address % _PAGE), address)
        except (OSError, OverflowError):  # A pointer to nothing.
            return False
        path, zero, _ = text.partition(b"\0")
        counter = self._counters.get(path)
        if counter is None or not zero or flags & os.O_CREAT:
            return False
        counter.opens += 1
        return True

    def close(self) -> None:
        """No process of this worker is left."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None
