"""What a trial does, as the warden sees it from outside, and when its time is up [in the warden].

Some facts about progress. A batch that arrives, or an epoch that ends, is in the journal. A sample
of a large file can take longer than the deadline, but then bytes are read: rchar in /proc/PID/io
counts what read(2) and similar calls gave a process; a read that fails counts nothing, and neither
does a socket. If the supervisor gives a worker fewer bytes than requested, it reads them itself and
counts them. A fault that happens again is not progress: a loop that retries forever gets it
forever. The same bytes, read again and again, are not progress either. So at most a few times the
bytes of the fault-free pass count, if that number is known.

The stacks of a process would show more, but the signal that requests them ends the system call that
it is in.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from pytest_dataloader_faults._engine.kernel.linux import NAMES, read_memory
from pytest_dataloader_faults._engine.protocol import SupervisorHandle
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.temporary import SharedCount
from pytest_dataloader_faults._settings.jobs import Limits
from pytest_dataloader_faults._trial.journal import (
    DeadlineReached,
    Journal,
    TrialStarted,
    WorkersStarting,
)
from pytest_dataloader_faults._trial.process.deadline import (
    HARNESS,
    LOADER,
    SLICE,
    Observation,
    Pauses,
    WatchedEvent,
    activity_of,
    deadline_after,
    extend_deadline,
    is_recent,
)
from pytest_dataloader_faults.outcomes import AtDeadline

_BUSY = 0.01
"""The part of the time for which a process must have had a processor: one that makes a system call
after the other waits for their answers most of the time, and one that hangs has almost none."""
_LONG_SLEEP = 1.0
"""Seconds that a sleep must still take to count as one between retries."""
_LONG_ENOUGH = 0.5
"""Seconds over which the part of the time is measured."""


class _Observer:
    """Looks at the processes of a trial again and again.

    *supervisor_bytes*: how many bytes the supervisor has read for workers. Bytes beyond *max_bytes*
    do not count; None to count all.
    """

    def __init__(self, supervisor_bytes: SharedCount | None, max_bytes: int | None) -> None:
        self._given = supervisor_bytes
        self._most = math.inf if max_bytes is None else max_bytes
        self._written = 0
        self._bytes: dict[int, int] = {}
        self._used: dict[int, float] = {}
        self._asleep: dict[int, float] = {}
        """When the latest sleep, or wait with a timeout, of each process ends, or was seen."""
        self._total = 0
        now = time.monotonic()
        self._at = now
        self.observation = Observation(delivered=now, read=now)

    def look(self, written: int, pids: Sequence[int]) -> None:
        """Look at the processes *pids*; *written*: the size of the journal."""
        ends = {pid: end for pid in pids if (end := _wake_time_with_program(pid)) is not None}
        now, observation = time.monotonic(), self.observation
        self._asleep |= {pid: now for pid in pids if _has_timeout(pid)} | ends
        self.observation = Observation(
            delivered=now if written > self._written else observation.delivered,
            read=now if self._note_reading(pids) else observation.read,
            asleep=tuple(pid for pid, end in self._asleep.items() if is_recent(end, now)),
            wakes=max(ends.values(), default=observation.wakes),
            rests=max(
                (end for end in ends.values() if end - now > _LONG_SLEEP), default=observation.rests
            ),
            busy=self._note_work(pids, now),
        )
        self._written = written

    def _note_reading(self, pids: Iterable[int]) -> bool:
        """Whether *pids* have read more since the last look."""
        self._bytes.update({pid: proc.bytes_read(pid) for pid in pids})
        supervisor_bytes = self._given.value if self._given else 0
        previous, self._total = self._total, supervisor_bytes + sum(self._bytes.values())
        return previous < self._total <= self._most

    def _note_work(self, pids: Iterable[int], now: float) -> bool:
        """Whether one of *pids* has had a processor for long enough since the last look."""
        if now - self._at < _LONG_ENOUGH:
            return self.observation.busy
        seconds, self._at = now - self._at, now
        previous, self._used = self._used, {pid: proc.seconds_used(pid) for pid in pids}
        cpu_seconds = (each - previous.get(pid, each) for pid, each in self._used.items())
        return max(cpu_seconds, default=0.0) > _BUSY * seconds


def pids_of(events: Iterable[WatchedEvent]) -> Sequence[int]:
    """The workers that were started last; the main process if there are none."""
    pids: Sequence[int] = ()
    for event in events:
        match event:
            case TrialStarted(pid):
                pids = [pid]
            case WorkersStarting():
                pids = event.pids or pids
    return pids


# Some facts about a process that sleeps. /proc/PID/syscall (proc(5)) has the number of the call
# that the main thread of a process is in, and its arguments; "running" if it is in none.
# time.sleep() is clock_nanosleep(2) with the time of its end, or select(2) with no descriptor
# before Python 3.11. A wait with a limit, as Event.wait(10), is futex(2) with the time of its end.
# The times are in the memory of the process. Without the right to trace it, all that can be seen is
# the name of the kernel function that it waits in, in /proc/PID/wchan.
#
# A worker without work is in poll(2) of its queue, so that call shows nothing unless it is about no
# descriptor, as curl sleeps between its retries. Some libraries wait forever by a wait that ends
# every second and restarts, as fsspec does in its ``sync``: only a longer one will end by itself.


_TIME = struct.Struct("=qq")
_POLLS = ("select", "pselect6", "poll", "ppoll")
_PAUSES = ("nanosleep", "clock_nanosleep")
_SLEEPS = (*_PAUSES, "futex", *_POLLS)
_NEGATIVE = 1 << 31
"""The sign of an int: poll(2) waits forever if its timeout is negative."""
_MONOTONIC, _ABSOLUTE = 1, 1
_FUTEX_BITSET, _FUTEX_COMMANDS, _FUTEX_REALTIME = 9, 0x7F, 0x100
_LONG_WAIT = 2.0
"""Seconds that a wait with a timeout must still have to count."""
_WAITS_FOR_PROGRAM = ("pipe_read", "anon_pipe_read", "do_wait")
_ASLEEP_IN = ("hrtimer_nanosleep", "do_nanosleep")


def find_wake_time(pid: int) -> float | None:
    """When the sleep of *pid* ends, by time.monotonic(); now if that is not known.

    None if it does not sleep.
    """
    now = time.monotonic()
    try:
        call = proc.running_call(pid)
        return end_of_sleep(call, lambda address: _time_at(pid, address), now)
    except OSError:
        return now if proc.waits_in(pid) in _ASLEEP_IN else None


def _wake_time_with_program(pid: int) -> float | None:
    """The same; if *pid* waits for a program that it has started, when that one's sleep ends."""
    end = find_wake_time(pid)
    if end is not None or proc.waits_in(pid) not in _WAITS_FOR_PROGRAM:
        return end
    programs = (each for each in proc.family(pid) if each != pid)
    return max(
        (end for each in programs if (end := find_wake_time(each)) is not None), default=None
    )


def end_of_sleep(
    call: proc.RunningCall | None, time_at: Callable[[int], float], now: float
) -> float | None:
    """The end of the sleep that *call* is; None if it is none.

    *time_at*: the seconds at an address, in the memory of the process.
    """
    name = NAMES.get(call.number) if call else None
    if call is None or name not in _SLEEPS:
        return None
    first, second, third, fourth, *_ = call.arguments
    if name == "nanosleep":
        return now + time_at(first)
    if name == "clock_nanosleep":
        if not second & _ABSOLUTE:
            return now + time_at(third)
        return time_at(third) if first == _MONOTONIC else now
    if name in _POLLS:
        return _end_of_poll(name, call.arguments, time_at, now)
    is_timed = second & _FUTEX_COMMANDS == _FUTEX_BITSET and not second & _FUTEX_REALTIME
    end = time_at(fourth) if fourth and is_timed else now
    return end if end - now > _LONG_WAIT else None


def _has_timeout(pid: int) -> bool:
    """Whether the call that *pid* is in ends by itself, after however long."""
    try:
        return ends_by_itself(proc.running_call(pid))
    except OSError:
        return proc.waits_in(pid) in _ASLEEP_IN


def ends_by_itself(call: proc.RunningCall | None) -> bool:
    """Whether *call* is a sleep, or a wait for descriptors with a timeout."""
    name = NAMES.get(call.number) if call else None
    if call is None or name not in (*_PAUSES, *_POLLS):
        return False
    _, _, third, _, fifth, _ = call.arguments
    if name == "poll":
        return not third & _NEGATIVE
    return name in _PAUSES or bool(fifth if "select" in name else third)


def _end_of_poll(
    name: str, arguments: Sequence[int], time_at: Callable[[int], float], now: float
) -> float | None:
    """The end of a wait for descriptors that is for none, and so a sleep."""
    first, second, third, _, fifth, _ = arguments
    count, limit = (first, fifth) if "select" in name else (second, third)
    if count or not limit:
        return None
    seconds = limit / 1000 if name == "poll" else time_at(limit)
    # poll(2) is also the pause of a loop that looks again and again. That of curl is long.
    is_sleep = "select" in name or seconds > _LONG_SLEEP
    return now + seconds if is_sleep else None


def _time_at(pid: int, address: int) -> float:
    seconds, small = _TIME.unpack(read_memory(pid, address, _TIME.size))
    return float(seconds + small / 1e9)


class TrialClock:
    """Says when to look next, until the time is up.

    *waited* returns the seconds for which the trial's processes waited for a processor.

    Attributes:
        whose: Whose time passes.
        until: When that time will be up, as far as is known.

    """

    def __init__(
        self,
        facts: Journal,
        limits: Limits,
        supervisor: SupervisorHandle | None,
        waited: Callable[[], float],
    ) -> None:
        self._facts, self._limits, self._waited = facts, limits, waited
        self._supervisor = supervisor
        self._began = time.monotonic()
        self._pauses = Pauses(self._began)
        self._observer = _Observer(supervisor.bytes_read if supervisor else None, limits.most_bytes)
        self._size, self._events = 0, list[WatchedEvent]()
        self._more = 0.0
        self.whose, self.until = LOADER, self._began + limits.deadline

    @property
    def next_look(self) -> float:
        return min(self.until, time.monotonic() + SLICE)

    def look(self) -> bool:
        """Look at the trial; whether the time is up."""
        now = time.monotonic()
        self._pauses.look(
            now, stopped=bool(self._supervisor and proc.is_stopped(self._supervisor.pid))
        )
        self._read_journal()
        self._observer.look(self._size, pids_of(self._events))
        pauses, observation = self._pauses.found, self._observer.observation
        whose, until = deadline_after(self._events, self._began, self._limits.deadline, pauses)
        if until <= now and whose != HARNESS:
            until += self._waited()
        if whose == LOADER and until <= now and self._limits.may_take_longer:
            self._more = now - until
            until = extend_deadline(until, self._limits.deadline, observation)
        self.whose, self.until = whose, until
        return until <= now

    def write_activity(self) -> None:
        """Write down what the processes do, now that the time is up."""
        observation, now = self._observer.observation, time.monotonic()
        activity = activity_of(observation, now, self._limits.deadline)
        extra_seconds = round(self._more) if self._more > SLICE else 0.0
        self._facts.write(DeadlineReached(AtDeadline(activity, extra_seconds, observation.asleep)))

    def _read_journal(self) -> None:
        size = os.fstat(self._facts.fd).st_size
        if size != self._size:
            self._size = size
            self._events = list(self._facts.of(*get_args(WatchedEvent)))
