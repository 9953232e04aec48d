"""What dead processes leave in /dev/shm [runs in the warden].

Some facts about the names there. torch calls a segment torch_<pid>_..., after the process that made
it, and unlinks it once it is received; never, if one of the two is gone before. sem_open(3) of
glibc writes a semaphore to sem.XXXXXX, links that to the name it is to have, and has it open all
the while: who is killed in the midst of it leaves the first name. Others' files there are theirs.
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
    """Those that were not there when this began, and are nobody's any more."""

    def __init__(self) -> None:
        self._before = set(os.listdir(_FOLDER))
        self._unnamed: set[str] = set()
        self._killed: set[int] = set()

    def look_at(self, pid: int) -> None:
        """Note what *pid*, which is about to be killed, may leave."""
        self._killed.add(pid)
        with contextlib.suppress(OSError):  # It is gone.
            for target in descriptors(pid).values():
                found = _UNNAMED_SEMAPHORE.fullmatch(target)
                self._unnamed.update(found.groups() if found else ())

    def remove(self, pids: Collection[int]) -> None:
        """Remove what those have left that were looked at, and those with *pids*."""
        dead = self._killed.union(pids)
        for name in set(os.listdir(_FOLDER)) - self._before:
            owner = _OF_TORCH.match(name)
            if name in self._unnamed or (owner and int(owner[1]) in dead):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_FOLDER, name))
