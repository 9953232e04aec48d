"""How long a process waits for another one, on a machine that may be busy.

Some facts about a busy machine. Where forty processes want two processors, each has one for a
twentieth of the time: what takes half a second takes ten. One that is stopped, or waits for a lock
that nobody releases, has none and asks for none. /proc/PID/task/TID/schedstat (proc(5)) tells them
apart: it has the time for which a thread ran, and that for which it was ready to run and had no
processor. The latter is added up when it gets one. Where the kernel does not say (without
CONFIG_SCHED_INFO), all time counts.

While this process itself is stopped, as by Ctrl-Z or docker pause, so is the other one, as a rule,
and the clock goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.processes import ready

BETWEEN_LOOKS = 1.0
"""Seconds between two looks at a process, at most."""
_LATE = 0.5
"""Seconds by which a look may come too late although this process runs."""
SIGN_OF_LIFE = 0.1
"""What a second of work counts where work is a sign of life. An endless loop is none for ever."""


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
        """Whether none of the seconds are left. To be asked every second.

        *pids*: the processes from now on, if they are not those of before.
        """
        now, times = time.monotonic(), _times_of(self._times if pids is None else pids)
        passed = min(now - self._looked, BETWEEN_LOOKS + _LATE)
        counted = (self._counted(pid, times[pid], passed) for pid in times)
        self.left -= min(passed, max(0.0, min(counted, default=passed)))
        self._looked, self._times = now, times
        return self.left <= 0

    def _counted(self, pid: int, times: _Times, passed: float) -> float:
        """How much of the time that has *passed* counts, if *pid* is the only process."""
        waited, used = (
            new - old for new, old in zip(times, self._times.get(pid, times), strict=True)
        )
        if proc.state_of(pid) == "R":  # The wait is not added up yet.
            return self._work * used
        return passed - waited - (1 - self._work) * used


class _Times(NamedTuple):
    """For how long a process waited for a processor, and had one."""

    waited: float
    used: float


def _times_of(pids: Iterable[int]) -> dict[int, _Times]:
    return {pid: _Times(proc.seconds_without_cpu(pid), proc.seconds_used(pid)) for pid in pids}


def ready_in_time(
    descriptors: Iterable[int], seconds: float, pids: Iterable[int], work: float = 1.0
) -> list[int]:
    """Those of *descriptors* that are ready, as by ``ready``, before ``Patience`` is over."""
    watched, patience = tuple(descriptors), Patience(seconds, pids, work)
    found = ready(watched, min(BETWEEN_LOOKS, seconds))
    while not found and not patience.is_over():
        found = ready(watched, min(BETWEEN_LOOKS, patience.left))
    return found


def has_ended(pid: int, seconds: float) -> bool:
    """Whether the process *pid* ends within *seconds*, as ``Patience`` counts them.

    One that is gone has ended. Raises OSError where no descriptor is free.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(ready_in_time([watched], seconds, [pid]))
    finally:
        os.close(watched)
