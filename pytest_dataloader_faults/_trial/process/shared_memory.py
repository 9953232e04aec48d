"""What dead processes leave in /dev/shm [runs in the warden].

Some facts about the names there. torch calls a segment torch_<pid>_..., after the process that made
it, and unlinks it once it is received; never, if one of the two is gone before. sem_open(3) of
glibc writes a semaphore to sem.XXXXXX, links that to the name it is to have, and has it open all
the while: a process that is killed in the midst of it leaves the first name. Other files there
belong to other programs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection

from pytest_dataloader_faults._trial.resources import descriptors

_FOLDER = "/dev/shm"
_UNNAMED_SEMAPHORE = re.compile(r"/dev/shm/(sem\.\w{6})")
_OF_TORCH = re.compile(r"torch_(\d+)_")


class SharedMemoryCleaner:
    """Removes the files of dead processes that were not there when this object was made."""

    def __init__(self) -> None:
        self._before = set(os.listdir(_FOLDER))
        self._unnamed: set[str] = set()
        self._killed: set[int] = set()

    def look_at(self, pid: int) -> None:
        """Record what *pid*, which is about to be killed, may leave."""
        self._killed.add(pid)
        with contextlib.suppress(OSError):  # The process is gone.
            for target in descriptors(pid).values():
                found = _UNNAMED_SEMAPHORE.fullmatch(target)
                self._unnamed.update(found.groups() if found else ())

    def remove(self, pids: Collection[int]) -> None:
        """Remove what *pids* have left, and the processes that were looked at."""
        dead = self._killed.union(pids)
        for name in set(os.listdir(_FOLDER)) - self._before:
            owner = _OF_TORCH.match(name)
            if name in self._unnamed or (owner and int(owner[1]) in dead):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_FOLDER, name))
