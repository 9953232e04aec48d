"""Descriptors of a worker whose reads the supervisor answers [runs in the supervisor].

Some facts about descriptor numbers. close(2) is not handed over, and the kernel gives the lowest
free number to whatever is opened next, be it a file, a socket or torch's shared memory: low
numbers soon, high ones once a process has half its limit open. So a number that we gave tells
nothing by itself. What /proc/PID/fd has under it does: device and inode are those of our own
duplicate as long as it is that file, under whatever name or none, and as long as we keep the
duplicate no other file can have them. A process that a worker has forked has numbers of its own.

A number that we choose may be taken by another thread before it is given. One that waits in
accept4(2), as torch's thread that shares descriptors does, has its number already, which /proc does
not show: ADDFD then fails with EBUSY. If it is quicker than that, ADDFD puts our file in the place
of its own, as dup2(2) would. So numbers are given from the highest down, and from there again when
some were found to be closed: as far from what the kernel gives as can be.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

from pytest_dataloader_faults._engine.kernel.remote_process import TrackedFile, descriptors, family

_COLLECT_ABOVE = 256


class TrackedFiles:
    """The tracked files of the process *pid* and its children, by descriptor number.

    Numbers within *high_fds* are given to those that are opened.
    """

    def __init__(self, pid: int, high_fds: tuple[int, int]) -> None:
        self._pid = pid
        self._files: dict[int, TrackedFile] = {}
        self.read_at_offset: dict[str, int] = {}
        """The latest inherited descriptor through whose own offset a file was read."""
        self._numbers = range(*high_fds)[::-1]
        self._next = 0
        self._collect_above = min(_COLLECT_ABOVE, len(self._numbers) // 2)

    def add(self, number: int, path: str, source: int | None, *, inherited: bool = False) -> None:
        """Track *number*, which is *path*; *source*, our duplicate, is closed with it."""
        self._forget(number)
        self._files[number] = TrackedFile(path, source, inherited)

    def get(self, number: int) -> TrackedFile | None:
        """The file that had *number* when it was last seen."""
        return self._files.get(number)

    def at(self, pid: int, number: int) -> TrackedFile | None:
        """The tracked file that *number* is in process *pid*, if it is one."""
        file = self._files.get(number)
        return file if file is not None and file.is_at(pid, number) else None

    def next_high_fd(self, pid: int, busy: AbstractSet[int] = frozenset()) -> int:
        """A high number that no process of this worker uses, and none of *busy*."""
        if len(self._files) > self._collect_above:
            self.collect(pid)
            self._collect_above = max(self._collect_above, 2 * len(self._files))
        for _ in range(2):
            if (number := self._free_number(pid, busy)) is not None:
                return number
            self.collect(pid)
        raise RuntimeError(
            f"the worker (pid {pid}) has {len(self._files)} faulted files open, no number is left"
        )

    def _free_number(self, pid: int, busy: AbstractSet[int]) -> int | None:
        for _ in self._numbers:
            number = self._numbers[self._next % len(self._numbers)]
            self._next += 1
            is_known = number in self._files or number in busy
            if not is_known and not os.path.lexists(f"/proc/{pid}/fd/{number}"):
                return number
        return None

    def set_stand_in(self, number: int, descriptor: int) -> None:
        """The file of *descriptor* was put under *number*, in place of the tracked one."""
        there = os.fstat(descriptor)
        file = self._files.get(number)
        if file is not None:
            self._files[number] = file._replace(stand_in=(there.st_dev, there.st_ino))

    def stop_sharing(self, pid: int, number: int) -> None:
        """Replace our duplicate of *number* by an opening that shares neither offset nor lock."""
        file = self.at(pid, number)
        if file is not None and file.source is not None and not file.reopened:
            source = os.open(f"/proc/self/fd/{file.source}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(file.source)
            self._files[number] = file._replace(source=source, reopened=True)

    def collect(self, *more: int) -> None:
        """Forget what no process of this worker, and none of *more*, has open any longer.

        What was read at an offset stays, since the report says who else has that offset.
        """
        kept = set(self.read_at_offset.values())
        used = {pid: descriptors(pid) for pid in {*more, *family(self._pid)}}
        for number, file in tuple(self._files.items()):
            holders = (pid for pid, numbers in used.items() if number in numbers)
            if number not in kept and not any(file.is_at(pid, number) for pid in holders):
                self._forget(number)
        self._next = 0

    def forget_all(self) -> None:
        """No process of it is left. What was read at an offset stays, as in ``collect``."""
        for number in self._files.keys() - set(self.read_at_offset.values()):
            self._forget(number)

    def _forget(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None and file.source is not None:
            os.close(file.source)
