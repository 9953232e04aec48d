"""What the supervisor knows of one worker process [runs in the supervisor].

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

Files that a worker makes where temporary ones belong, and leaves [runs in the supervisor].

Some facts about whose a temporary file is. Others on the machine make and remove theirs at the
same time, so a look into the folder before and after tells nothing; nor is there an owner's pid in
a name such as /tmp/tmpk2x9w. But each is made by an open(2) with O_CREAT of a path that is not
there, and that is seen. What was renamed or removed since is not left.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import astuple
from typing import Any

from pytest_dataloader_faults._engine.channel import Channel
from pytest_dataloader_faults._engine.kernel.listener import Listener
from pytest_dataloader_faults._engine.kernel.remote_process import (
    Syscall,
    TrackedFile,
    descriptors,
    family,
)
from pytest_dataloader_faults._engine.plan import Plan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.protocol import Hello, Idle, Proceed, WaitUntilIdle

_COLLECT_ABOVE = 256


class WorkerState:
    """Counters, followed descriptors and place in the epoch of one worker process."""

    def __init__(
        self, hello: Hello, channel: Channel, listener: Listener | None, plan: Plan
    ) -> None:
        self.id = hello.worker
        self.loader = hello.loader
        self.pid = hello.pid
        self.channel = channel
        self._listener = listener
        self.hang_socket: int | None = None
        """The end of the socket that hanging reads of the python engine wait for."""
        self.refused: list[str] = []
        """Why faults that were due there could not happen."""
        self.tallies = WorkerFaults(plan, self.id)
        self.policy = FaultPolicy(
            self.tallies,
            self.id,
            self.pid,
            timestamp=lambda: self.moment,
            fails_mappings=True,
        )
        self.low = plan.needs.low
        self.followed: dict[int, TrackedFile] = {}
        self.place = (0, 0)
        """The epoch, and which of its fetches has begun."""
        self.sample: int | None = None
        """What is being made, where that is known and is a single one."""
        self.done = 0
        self.alive = self.armed = True
        self.ended = self.hung = False
        self.limit: int | None = None
        self.created = CreatedFiles()
        self.leftover_shm: list[str] = []
        """Files of shared memory that no process removes once their making has failed."""
        self.unobserved: Counter[str] = Counter()
        self.read_at_offset: dict[str, int] = {}
        """The latest descriptor, brought along, through whose own offset a file was read."""
        self._numbers = range(*hello.high_fds)[::-1]
        self._next = 0
        self._collect_above = min(_COLLECT_ABOVE, len(self._numbers) // 2)

    @property
    def listener(self) -> Listener:
        """Where its system calls come from."""
        assert self._listener is not None
        return self._listener

    @property
    def begun(self) -> int:
        """Fetches, over all epochs."""
        return self.policy.fetch

    def begin(self, epoch: int, nth: int) -> None:
        """The *nth* fetch of *epoch* begins."""
        if epoch != self.place[0]:
            self.done, self.ended = 0, False
        self.policy.fetch += 1
        self.place = (epoch, nth)
        self.sample = None

    @property
    def moment(self) -> dict[str, Any]:
        """When it is, for what happens now."""
        epoch = self.loader - 1 + max(1, self.place[0])
        return {"epoch": epoch, "sample": self.sample}

    def proceed(self, *, more: bool = False) -> Proceed:
        """What it is told once it may go on."""
        return Proceed(self.armed, self.tallies.active, more=more)

    def has_done(self, epoch: int, count: int) -> bool:
        """Whether nothing more is to come of the first *count* batches asked of it in *epoch*."""
        if not self.alive or self.hung or not count:
            return True
        return self.place[0] == epoch and (self.ended or self.done >= count)

    def new_number(self, pid: int, busy: AbstractSet[int] = frozenset()) -> int:
        """A high descriptor number that no process of this worker uses, and none of *busy*."""
        if len(self.followed) > self._collect_above:
            self.collect(pid)
            self._collect_above = max(self._collect_above, 2 * len(self.followed))
        number = self._free_number(pid, busy)
        if number is None:
            self.collect(pid)
            number = self._free_number(pid, busy)
        if number is None:
            files = len(self.followed)
            message = f"worker {self.id} has {files} faulted files open, no number is left"
            raise RuntimeError(message)
        return number

    def _free_number(self, pid: int, busy: AbstractSet[int]) -> int | None:
        for _ in self._numbers:
            number = self._numbers[self._next % len(self._numbers)]
            self._next += 1
            is_known = number in self.followed or number in busy
            if not is_known and not os.path.lexists(f"/proc/{pid}/fd/{number}"):
                return number
        return None

    def follow(
        self, number: int, path: str, source: int | None, *, inherited: bool = False
    ) -> None:
        """Remember that *number* is *path*; *source* is ours from now on."""
        self._forget(number)
        self.followed[number] = TrackedFile(path, source, inherited)

    def followed_by(self, pid: int, number: int) -> TrackedFile | None:
        """The followed file that *number* is in process *pid*, if it is one."""
        followed = self.followed.get(number)
        return followed if followed is not None and followed.is_at(pid, number) else None

    def stands_in(self, number: int, descriptor: int) -> None:
        """The file of *descriptor* was put under *number*, in place of the followed one."""
        there = os.fstat(descriptor)
        followed = self.followed.get(number)
        if followed is not None:
            stand_in = (there.st_dev, there.st_ino)
            self.followed[number] = followed._replace(stand_in=stand_in)

    def is_gone(self, call: Syscall | None, error: Exception) -> bool:
        """The process died while it was looked at: then there is nothing to inject into."""
        if call is None:
            return isinstance(error, (ProcessLookupError, ConnectionError))
        return not self.listener.is_waiting(call)

    def let_be(self, pid: int, number: int) -> None:
        """Give up our duplicate of *number*, for an opening that shares neither offset nor lock."""
        followed = self.followed_by(pid, number)
        if followed is not None and followed.source is not None and not followed.apart:
            source = os.open(f"/proc/self/fd/{followed.source}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(followed.source)
            self.followed[number] = followed._replace(source=source, apart=True)

    def collect(self, *more: int) -> None:
        """Forget what none of this worker's processes, and of *more*, has open any longer.

        What was read at an offset stays, since the report asks who else has that offset.
        """
        kept = set(self.read_at_offset.values())
        used = {pid: descriptors(pid) for pid in {*more, *family(self.pid)}}
        for number, followed in tuple(self.followed.items()):
            holders = (pid for pid, numbers in used.items() if number in numbers)
            if number not in kept and not any(followed.is_at(pid, number) for pid in holders):
                self._forget(number)
        self._next = 0

    def forget_all(self) -> None:
        """No process of it is left. What was read at an offset stays, as in ``collect``."""
        for number in self.followed.keys() - set(self.read_at_offset.values()):
            self._forget(number)

    def _forget(self, number: int) -> None:
        followed = self.followed.pop(number, None)
        if followed is not None and followed.source is not None:
            os.close(followed.source)

    def remove_leftover_shm(self) -> None:
        """Remove what torch leaves behind of shared memory that it did not get."""
        for path in self.leftover_shm:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def to_dict(self) -> dict[str, Any]:
        """The facts, as plain data."""
        return {
            "worker": self.id,
            "pid": self.pid,
            "fetches": self.begun,
            "files": {path: astuple(counts) for path, counts in self.policy.files.items()},
            "unobserved": self.unobserved,
            "leftover_files": self.created.left(),
            "faults": [each.to_dict() for each in self.tallies.all],
        }


def all_idle(workers: Iterable[WorkerState], asked: WaitUntilIdle) -> Idle | None:
    """The answer to *asked*, once each of *workers* has made the batches that it was sent."""
    of_loader = [each for each in workers if each.loader == asked.loader]
    latest = {each.id: each for each in of_loader}
    for worker, count in asked.sent:
        if worker not in latest or not latest[worker].has_done(asked.epoch, count):
            return None
    dead = [each for each in of_loader if not each.alive]
    early, in_time = ([each.id for each in dead if each.ended is end] for end in (False, True))
    return Idle(early, in_time)


_MOST = 1000


class CreatedFiles:
    """What one worker, and whatever it started, has made."""

    def __init__(self) -> None:
        self._folders = (os.path.join(tempfile.gettempdir(), ""), "/dev/shm/")
        self._paths: set[str] = set()

    def note(self, path: str, flags: int, *, is_there: bool) -> None:
        """*path* is about to be opened with *flags*."""
        makes = flags & os.O_CREAT and not is_there and path.startswith(self._folders)
        if makes and len(self._paths) < _MOST:
            self._paths.add(path)

    def left(self) -> list[str]:
        """Those that are still there."""
        return sorted(filter(os.path.lexists, self._paths))
