"""What the supervisor knows of one worker process [runs in the supervisor]."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine._alterations import Altered, altered
from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._created import Created
from pytest_dataloader_faults._engine._listener import Listener
from pytest_dataloader_faults._engine._plan import Plan, Tallies, Tally
from pytest_dataloader_faults._engine._target import Call, descriptors, family

_COLLECT_ABOVE = 256
OPENS_OF, READS_OF, BYTES_OF = range(3)
"""Places in the counts that are kept per file."""


class Followed(NamedTuple):
    """A file that a worker has open and whose reads are seen.

    *source* is our own duplicate, or with *apart* an opening of our own; *inherited*: the worker
    had it when it was armed, so that other workers may share its offset. *link* is what /proc says
    of it where its number is a low one, which the kernel gives away again once it is closed.
    """

    path: str
    source: int | None
    inherited: bool
    link: str | None
    apart: bool = False


class WorkerState:
    """Counters, followed descriptors and place in the epoch of one worker process."""

    def __init__(
        self, hello: dict[str, Any], channel: Channel, listener: Listener | None, plan: Plan
    ) -> None:
        self.id: int = hello["worker"]
        self.loader: int = hello["loader"]
        self.pid: int = hello["pid"]
        self.channel = channel
        self._listener = listener
        self.brake: int | None = None
        """What reads that hang wait for where the python engine is, which has no listener."""
        self.refused: list[str] = []
        """Why faults that were due there could not happen."""
        self.tallies = Tallies(plan, self.id)
        self.low = plan.needs.low
        self.followed: dict[int, Followed] = {}
        self.opened: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.begun = 0
        """Fetches, over all epochs."""
        self.place = (0, 0)
        """The epoch, and which of its fetches has begun."""
        self.sample: int | None = None
        """What is being made, where that is known and is a single one."""
        self.done = 0
        self.alive = self.armed = True
        self.ended = self.stuck = False
        self.limit: int | None = None
        self.created = Created()
        self.remains: list[str] = []
        """Files of shared memory that nobody will remove once their making has failed."""
        self.unreached: Counter[str] = Counter()
        self.read_at_offset: dict[str, int] = {}
        """The latest descriptor, brought along, through whose own offset a file was read."""
        self._numbers = range(hello.get("base", 0), hello.get("limit", 0))
        self._next = 0

    @property
    def listener(self) -> Listener:
        """Where its system calls come from."""
        assert self._listener is not None
        return self._listener

    def begin(self, epoch: int, nth: int) -> None:
        """The *nth* fetch of *epoch* begins."""
        if epoch != self.place[0]:
            self.done, self.ended = 0, False
        self.begun += 1
        self.place = (epoch, nth)
        self.sample = None

    @property
    def moment(self) -> dict[str, Any]:
        """When it is, for what happens now."""
        epoch = self.loader - 1 + max(1, self.place[0])
        return {"epoch": epoch, "sample": self.sample}

    def has_done(self, epoch: int, count: int) -> bool:
        """Whether nothing more is to come of the first *count* batches asked of it in *epoch*."""
        if not self.alive or self.stuck or not count:
            return True
        return self.place[0] == epoch and (self.ended or self.done >= count)

    def fire(self, tally: Tally[Any], call: Call, path: str) -> None:
        """Write down that *tally*'s fault happened to *call*."""
        self._note(tally, call.pid, call.name, path)

    def fire_here(self, tally: Tally[Any], call: str, path: str | None = None) -> None:
        """Write down that *tally*'s fault happened to the worker itself."""
        self._note(tally, self.pid, call, path)

    def fire_altered(self, altered: Altered, call: str, path: str, pid: int | None = None) -> None:
        """Write down that *path* was exchanged for one that differs."""
        for tally in altered.tallies:
            self._note(tally, self.pid if pid is None else pid, call, path)

    def _note(self, tally: Tally[Any], pid: int, call: str, path: str | None) -> None:
        where = {"worker": self.id, "pid": pid, "call": call, "path": path}
        tally.fire(**where, fetch=self.begun, **self.moment)

    def altered(self, path: str) -> Altered | None:
        """The faults that change what is in *path*; they have been reached by that."""
        return altered(self.tallies, path, os.stat(path).st_size)

    def new_number(self, pid: int) -> int:
        """A high descriptor number that no process of this worker uses."""
        if len(self.followed) > min(_COLLECT_ABOVE, len(self._numbers) // 2):
            self._forget_closed(pid)
        for _ in self._numbers:
            number = self._numbers[self._next % len(self._numbers)]
            self._next += 1
            if number not in self.followed and not os.path.lexists(f"/proc/{pid}/fd/{number}"):
                return number
        message = f"worker {self.id} has {len(self.followed)} faulted files open, no number is left"
        raise RuntimeError(message)

    def follow(
        self, number: int, path: str, source: int | None, *, inherited: bool = False
    ) -> None:
        """Remember that *number* is *path*; *source* is ours from now on."""
        self._forget(number)
        link = None
        if inherited or self.low:
            link = path if source is None else os.readlink(f"/proc/self/fd/{source}")
        self.followed[number] = Followed(path, source, inherited, link)

    def followed_by(self, call: Call, number: int) -> Followed | None:
        """The followed file that *number* is in the caller, if it is one."""
        followed = self.followed.get(number)
        if followed is None or followed.link is None:
            return followed
        try:
            still = os.readlink(f"/proc/{call.pid}/fd/{number}") == followed.link
        except FileNotFoundError:
            still = False
        return followed if still else None

    def is_gone(self, call: Call | None, error: Exception) -> bool:
        """The process died while it was looked at: then there is nothing to inject into."""
        if call is None:
            return isinstance(error, (ProcessLookupError, ConnectionError))
        return not self.listener.is_waiting(call)

    def let_be(self, number: int) -> None:
        """Give up our duplicate of *number*, for an opening that shares neither offset nor lock."""
        followed = self.followed.get(number)
        if followed is not None and followed.source is not None and not followed.apart:
            source = os.open(f"/proc/self/fd/{followed.source}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(followed.source)
            self.followed[number] = followed._replace(source=source, apart=True)

    def _forget_closed(self, pid: int) -> None:
        """close(2) is not seen: look which numbers are still in use, when many have gathered."""
        live = set().union(*map(descriptors, {pid, *family(self.pid)}))
        for number in [each for each in self.followed if each not in live]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        followed = self.followed.pop(number, None)
        if followed is not None and followed.source is not None:
            os.close(followed.source)

    def to_dict(self) -> dict[str, Any]:
        """The facts, as plain data."""
        return {
            "worker": self.id,
            "pid": self.pid,
            "fetches": self.begun,
            "files": {path: list(counts) for path, counts in self.opened.items()},
            "unreached": self.unreached,
            "left": self.created.left(),
            "faults": [each.to_dict() for each in self.tallies.all],
        }


def have_done(workers: Iterable[WorkerState], asked: dict[str, Any]) -> bool:
    """Whether every one of *workers* that is *asked* for has done what it was sent."""
    latest = {str(each.id): each for each in workers if each.loader == asked["drain"]}
    return all(
        worker in latest and latest[worker].has_done(asked["epoch"], count)
        for worker, count in asked["sent"].items()
    )
