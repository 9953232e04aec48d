"""What workers and their loader leave behind [runs in the supervisor].

Some facts about whose a temporary file is. Others on the machine make and remove theirs at the same
time, so a listing of the folder before and after proves nothing, and a name such as /tmp/tmpk2x9w
does not contain the owner's pid. But each is made by an open(2) with O_CREAT of a path that is not
there, and that is seen. What was renamed or removed since is not left.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pytest_dataloader_faults._engine.protocol import Configure
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.proc import is_dead
from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST = 1000


class Leftovers:
    """What one worker, and each process that it started, has made and not removed."""

    def __init__(self) -> None:
        self._folders = (os.path.join(tempfile.gettempdir(), ""), "/dev/shm/")
        self._paths: set[str] = set()

    def add(self, path: str) -> None:
        """*path*, which does not exist, is about to be opened with O_CREAT."""
        if path.startswith(self._folders) and len(self._paths) < _MOST:
            self._paths.add(path)

    def facts(self) -> dict[str, tuple[str, ...]]:
        """The files that still exist, as a field of ``WorkerFacts``."""
        return {"leftover_files": (*sorted(filter(os.path.lexists, self._paths)),)}


# Some facts about the segments of a dead worker. By torch's strategy "file_descriptor", a segment
# has a name only from shm_open(3) to shm_unlink(3) in the next line, so that the name of a process
# that is dead is nobody's. By "file_system" it has one until it is received, and may be on its
# way.


class ScopeLeftovers:
    """The folder for sockets, made here, and what a loader and its workers leave in /dev/shm.

    That is for inject(), in the user's own process. In a trial the warden ends all processes and
    removes what they have left.
    """

    def __init__(self, configuration: Configure) -> None:
        assert configuration.folder is not None
        self._shared_memory = SharedMemoryCleaner()
        self._folder = configuration.folder
        self._driver = configuration.driver
        self._unlinks = configuration.unlinks
        self.refused = ""
        """Why the folder could not be made."""
        self.list_workers: Callable[[], Iterable[int]] = tuple
        """What returns the process ids of all workers."""

    def __enter__(self) -> Self:
        try:
            temporary.make_for_sockets(self._folder)
        except OSError as error:
            self.refused = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        temporary.remove(self._folder)
        if self._unlinks or is_dead(self._driver):
            pids = {self._driver, *self.list_workers()}
            self._shared_memory.remove(set(filter(is_dead, pids)))
