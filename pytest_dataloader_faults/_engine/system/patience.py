"""How long a process waits for another one, on a machine that may be busy.

Some facts about a busy machine. If forty processes want two processors, each has one for a
twentieth of the time: what takes half a second takes ten. One that is stopped, or waits for a lock
that nobody releases, has none and needs none. /proc/PID/task/TID/schedstat (proc(5)) distinguishes
them: it has the time for which a thread ran, and that for which it was ready to run and had no
processor. The latter is added up when it gets one. If the kernel does not count it (without
CONFIG_SCHED_INFO), all time counts.

While this process itself is stopped, as by Ctrl-Z or docker pause, the other one usually is too,
but the clock is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import wait_until_readable

BETWEEN_LOOKS = 1.0
"""Seconds between two checks of a process, at most."""
_LATE = 0.5
"""Seconds by which a check may be late although this process runs."""
SIGN_OF_LIFE = 0.1
"""What a second of work counts if work shows progress, which an endless loop does not."""


class Patience:
    """Seconds for other processes, not counting those in which one of them waits for a processor.

    *work*: what a second counts in which one has a processor.

    Attributes:
        left: How many of the seconds are left.
    """

    def __init__(self, seconds: float, pids: Iterable[int] = (), work: float = 1.0) -> None:
        self.left = seconds
        self._work = work
        self._looked, self._times = time.monotonic(), _times_of(pids)

    def is_over(self, pids: Iterable[int] | None = None) -> bool:
        """Whether none of the seconds are left. Call it every second.

        *pids*: the processes from now on, if they are not those of before.
        """
        now, times = time.monotonic(), _times_of(self._times if pids is None else pids)
        passed = min(now - self._looked, BETWEEN_LOOKS + _LATE)
        counted = (self._count_time(pid, times[pid], passed) for pid in times)
        self.left -= min(passed, max(0.0, min(counted, default=passed)))
        self._looked, self._times = now, times
        return self.left <= 0

    def _count_time(self, pid: int, times: _Times, passed: float) -> float:
        """How much of the time that has *passed* counts, if *pid* is the only process."""
        waited, on_cpu = (
            new - old for new, old in zip(times, self._times.get(pid, times), strict=True)
        )
        if proc.state_of(pid) == "R":  # The wait is not added up yet.
            return self._work * on_cpu
        return passed - waited - (1 - self._work) * on_cpu


class _Times(NamedTuple):
    """For how long a process waited for a processor, and had one."""

    waited: float
    on_cpu: float


def _times_of(pids: Iterable[int]) -> dict[int, _Times]:
    return {pid: _Times(proc.seconds_without_cpu(pid), proc.seconds_used(pid)) for pid in pids}


def ready_in_time(
    descriptors: Iterable[int], seconds: float, pids: Iterable[int], work: float = 1.0
) -> list[int]:
    """The *descriptors* that can be read, or have ended, before ``Patience`` is over."""
    watched, patience = tuple(descriptors), Patience(seconds, pids, work)
    ready_fds = wait_until_readable(watched, min(BETWEEN_LOOKS, seconds))
    while not ready_fds and not patience.is_over():
        ready_fds = wait_until_readable(watched, min(BETWEEN_LOOKS, patience.left))
    return ready_fds


def has_ended(pid: int, seconds: float) -> bool:
    """Whether the process *pid* ends within *seconds*, as ``Patience`` counts them.

    One that does not exist has ended. Raises OSError if all descriptors are in use.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(ready_in_time([watched], seconds, [pid]))
    finally:
        os.close(watched)
