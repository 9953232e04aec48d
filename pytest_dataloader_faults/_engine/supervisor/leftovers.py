"""What a killed process of a loader leaves where there is no warden [runs in the supervisor].

That is under inject(), in the user's own process. In a trial the warden ends all processes and
removes what they have left.

Some facts about the segments of a dead worker. By torch's strategy "file_descriptor", a segment has
a name only from shm_open(3) to shm_unlink(3) in the next line, so that the name of a process that
is dead is nobody's. By "file_system" it has one until it is received, and may be on its way.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dataloader_faults._engine.protocol import Configure
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.proc import family, is_dead
from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner

if TYPE_CHECKING:
    from typing_extensions import Self


class Leftovers:
    """The folder for sockets, made here, and what a loader and its workers leave in /dev/shm."""

    def __init__(self, asked: Configure) -> None:
        assert asked.folder is not None
        self._shared_memory = SharedMemoryCleaner()
        self._folder = asked.folder
        self._driver = asked.driver
        self._unlinks = asked.unlinks
        self.refused = ""
        """Why there is no folder."""
        self.workers: Sequence[WorkerState] = ()

    def __enter__(self) -> Self:
        try:
            temporary.make_for_sockets(self._folder)
        except OSError as error:
            self.refused = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        temporary.remove(self._folder)
        if self._unlinks or is_dead(self._driver):
            pids = {self._driver, *(worker.pid for worker in self.workers)}
            self._shared_memory.remove(set(filter(is_dead, pids)))


def kill_with_children(pid: int) -> None:
    """Kill a process and all below it. One that is stopped starts no other meanwhile."""
    doomed = [pid]
    for each in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
        doomed += [child for child in family(each) if child not in doomed]
    for each in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
