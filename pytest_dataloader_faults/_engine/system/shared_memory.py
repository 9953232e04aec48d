"""Remove what killed processes have left in /dev/shm.

Some facts about the names there. torch calls a segment torch_<pid>_..., after the process that made
it, and unlinks it once it is received; never, if one of the two is gone before. sem_open(3) of
glibc writes a semaphore to sem.XXXXXX, and links that to the name that it is to have. That one is
sem.mp-XXXXXXXX where multiprocessing has asked, which unlinks it at once, or has its resource
tracker do so. A process that is killed in between leaves the one or the other, which does not say
whose it was.

A write lease (F_SETLEASE, fcntl(2)) is given only on a file that no other process has open or
mapped, whatever namespace those are in. A semaphore that is not half made is mapped by the one who
made it. So one that appeared meanwhile, that is this user's, and on which there can be a lease, is
nobody's. Who opens the file in that moment waits; the holder of the lease gets a signal, SIGIO by
default, which ends a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Collection

_FOLDER = "/dev/shm"
_SEMAPHORE = re.compile(r"sem\.(\w{6}|mp-\w{8})")
_OF_TORCH = re.compile(r"torch_(\d+)_")


class SharedMemoryCleaner:
    """Removes the files of dead processes that were not there when this object was made."""

    def __init__(self) -> None:
        self._before = set(os.listdir(_FOLDER))

    def remove(self, dead: Collection[int]) -> None:
        """Remove what the processes *dead* have left."""
        for name in set(os.listdir(_FOLDER)) - self._before:
            owner = _OF_TORCH.match(name)
            is_left = int(owner[1]) in dead if owner else _is_lost_semaphore(name)
            if is_left:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_FOLDER, name))


def _is_lost_semaphore(name: str) -> bool:
    if not _SEMAPHORE.fullmatch(name):
        return False
    with contextlib.suppress(OSError):  # It is gone, is another user's, or is in use.
        fd = os.open(os.path.join(_FOLDER, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # That one does nothing.
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                return True
        finally:
            os.close(fd)
    return False
