"""What the loader and its workers do, as the warden sees it from outside [in the warden].

Some facts about progress. A batch that comes, or an epoch that ends, is in the journal. A sample of
a large file can take longer than the deadline, but then bytes are read: rchar in /proc/PID/io
counts what read(2) and the like gave a process; a read that fails counts nothing, and neither does
a socket. Where the supervisor gives a worker fewer bytes than it asked for, it reads them itself
and counts them. That a fault happens again is no progress: who tries forever meets it forever.
Nor is it if the same bytes are read again and again. So no more bytes count than a few times those
of the whole pass without a fault, where that is known.

The stacks of a process would tell more, but the signal that asks for them ends the system call that
it is in.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dataloader_faults._engine.system.shared_count import SharedCount
from pytest_dataloader_faults._trial.process.deadline import Seen
from pytest_dataloader_faults._trial.process.naps import asleep_until

_BUSY = 0.01
"""The part of the time for which a process must have had a processor: one that makes a system call
after the other waits for their answers most of the time, and one that hangs has almost none."""
_LONG_SLEEP = 1.0
"""Seconds that a sleep still takes, if it is to be one between attempts."""
_LONG_ENOUGH = 0.5
"""Seconds over which that is told."""


class Observer:
    """Looks at the processes of a trial again and again.

    *given*: how many bytes the supervisor has read for workers. Once more than *most* bytes were
    read, they count no longer; None for no limit.
    """

    def __init__(self, given: SharedCount | None, most: int | None) -> None:
        self._given = given
        self._most = math.inf if most is None else most
        self._written = 0
        self._bytes: dict[int, int] = {}
        self._used: dict[int, float] = {}
        self._total = 0
        now = time.monotonic()
        self._at = now
        self.seen = Seen(delivered=now, read=now)

    def look(self, written: int, events: Iterable[Mapping[str, Any]]) -> None:
        """Look at the processes that *events* name; *written*: the size of the journal."""
        now, seen = time.monotonic(), self.seen
        pids = pids_of(events)
        ends = {pid: end for pid in pids if (end := asleep_until(pid)) is not None}
        self.seen = Seen(
            delivered=now if written > self._written else seen.delivered,
            read=now if self._has_read(pids) else seen.read,
            asleep=tuple(ends) or (seen.asleep if seen.is_asleep(now) else ()),
            wakes=max(ends.values(), default=seen.wakes),
            rests=max(
                (end for end in ends.values() if end - now > _LONG_SLEEP), default=seen.rests
            ),
            busy=self._is_busy(pids, now),
        )
        self._written = written

    def _has_read(self, pids: Iterable[int]) -> bool:
        self._bytes.update({pid: _bytes_read(pid) for pid in pids})
        given = self._given.value if self._given else 0
        before, self._total = self._total, given + sum(self._bytes.values())
        return before < self._total <= self._most

    def _is_busy(self, pids: Iterable[int], now: float) -> bool:
        if now - self._at < _LONG_ENOUGH:
            return self.seen.busy
        seconds, self._at = now - self._at, now
        before, self._used = self._used, {pid: _seconds_used(pid) for pid in pids}
        used = (each - before.get(pid, each) for pid, each in self._used.items())
        return max(used, default=0.0) > _BUSY * seconds


def pids_of(events: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """The workers that were started last; the loader's process, if there are none."""
    found = [event["pids"] for event in events if event.get("pids")]
    return tuple(found[-1]) if found else ()


def _bytes_read(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
    return 0


def _seconds_used(pid: int) -> float:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9
    return 0.0
