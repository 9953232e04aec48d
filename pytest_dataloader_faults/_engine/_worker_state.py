"""What the supervisor knows of one worker process [runs in the supervisor]."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any, NamedTuple

from pytest_dataloader_faults._engine._channel import Channel
from pytest_dataloader_faults._engine._listener import Listener
from pytest_dataloader_faults._engine._plan import Plan, Tallies, Tally
from pytest_dataloader_faults._engine._target import Call, descriptors
from pytest_dataloader_faults.faults import TruncatedFile

_COLLECT_ABOVE = 256


class Followed(NamedTuple):
    """A file that a worker has open and whose reads are seen.

    *source* is our own duplicate; *inherited*: the worker had it when it was armed, so that other
    workers may share its offset.
    """

    path: str
    source: int | None
    inherited: bool


class Cut(NamedTuple):
    """A file that TruncatedFile makes shorter: whose doing it is, and how many bytes are kept."""

    tally: Tally
    kept: int


class WorkerState:
    """Counters, followed descriptors and place in the epoch of one worker process."""

    def __init__(
        self, hello: dict[str, Any], channel: Channel, listener: Listener, plan: Plan
    ) -> None:
        self.id: int = hello["worker"]
        self.pid: int = hello["pid"]
        self.channel = channel
        self.listener = listener
        self.tallies = Tallies(plan, self.id)
        self.followed: dict[int, Followed] = {}
        self.opened: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.begun = self.done = 0
        self.alive = True
        self.ended = False
        self.limit: int | None = None
        self.unreached: dict[str, int] = {}
        self._numbers = range(hello["base"], hello["limit"])
        self._next = 0

    def has_done(self, count: int) -> bool:
        """Whether nothing more is to come of the first *count* batches asked of it."""
        return not self.alive or self.ended or self.done >= count

    def fire(self, tally: Tally, call: Call, path: str) -> None:
        """Write down that *tally*'s fault happened to *call*."""
        tally.fire(worker=self.id, pid=call.pid, call=call.name, path=path, fetch=self.begun)

    def fire_here(self, tally: Tally, call: str, path: str | None = None) -> None:
        """Write down that *tally*'s fault happened to the worker itself."""
        tally.fire(worker=self.id, pid=self.pid, call=call, path=path, fetch=self.begun)

    def cut(self, path: str) -> Cut | None:
        """The fault that makes *path* shorter, if one does; it has been reached by that."""
        for tally in self.tallies.about(TruncatedFile, path):
            assert isinstance(tally.fault, TruncatedFile)
            tally.reached += 1
            size = os.stat(path).st_size
            if (kept := tally.fault.kept(size)) < size:
                return Cut(tally, kept)
        return None

    def new_number(self, pid: int) -> int:
        """A high descriptor number that no process of this worker uses."""
        if len(self.followed) > _COLLECT_ABOVE:
            self._forget_closed(pid)
        for _ in self._numbers:
            number = self._numbers[self._next % len(self._numbers)]
            self._next += 1
            if number not in self.followed:
                return number
        message = f"worker {self.id} has {len(self.followed)} faulted files open, no number is left"
        raise RuntimeError(message)

    def follow(
        self, number: int, path: str, source: int | None, *, inherited: bool = False
    ) -> None:
        """Remember that *number* is *path*; *source* is ours from now on."""
        self.followed[number] = Followed(path, source, inherited)

    def followed_by(self, call: Call, number: int) -> Followed | None:
        """The followed file that *number* is in the caller, if it is one.

        A low number is the kernel's to give away again once it is closed, so look what it is now.
        """
        followed = self.followed.get(number)
        if followed is None or not followed.inherited:
            return followed
        try:
            still = os.readlink(f"/proc/{call.pid}/fd/{number}") == followed.path
        except FileNotFoundError:
            still = False
        return followed if still else None

    def _forget_closed(self, pid: int) -> None:
        """close(2) is not seen: look which numbers are still in use, when many have gathered."""
        live = descriptors(self.pid) | descriptors(pid)
        for number in [each for each in self.followed if each not in live]:
            source = self.followed.pop(number).source
            if source is not None:
                os.close(source)

    def to_dict(self) -> dict[str, Any]:
        """The facts, as plain data."""
        return {
            "worker": self.id,
            "pid": self.pid,
            "fetches": self.begun,
            "files": {path: list(counts) for path, counts in self.opened.items()},
            "unreached": self.unreached,
            "faults": [
                {"reached": each.reached, "fired": each.fired, "firings": each.firings}
                for each in self.tallies.all
            ],
        }
