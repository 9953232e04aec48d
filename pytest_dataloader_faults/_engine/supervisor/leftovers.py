"""Temporary files that a worker creates and does not remove [runs in the supervisor].

Some facts about whose a temporary file is. Others on the machine make and remove theirs at the same
time, so a listing of the folder before and after proves nothing, and a name such as /tmp/tmpk2x9w
does not contain the owner's pid. But each is made by an open(2) with O_CREAT of a path that is not
there, and that is seen. What was renamed or removed since is not left.
"""

from __future__ import annotations

import os
import tempfile

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
