"""How long a trial may take, whose time passes in it, and when that time is up [in the warden]."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, get_args

from pytest_dataloader_faults._engine.kernel.linux import NAMES, read_memory
from pytest_dataloader_faults._engine.protocol import SupervisorHandle, WorkerArmed
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import (
    HARNESS,
    LOADER,
    OTHERS,
    Journal,
    PhaseStarted,
    ProcessesStarted,
    Turn,
)
from pytest_dataloader_faults.outcomes import Activity, AtDeadline
from pytest_dataloader_faults.outcomes.stages import DONE

# Some facts about whose time it is. The deadline is the loader's: a loader that takes longer to
# raise or to end is called hung. But in between, a trial does its own work. It waits for workers to
# finish their requested batches, lists open files, requests the counters, and reads the messages of
# errors, which may be long. The time for that says nothing about the dataset. So the trial records
# when either starts, and each has its own time. A process that waits for other jobs waits as long
# as they do: each of them has its own deadline.
#
# Some facts about workers that start. A forked one runs at once. A spawned one is a new
# interpreter, which imports the user's libraries first, and some take longer for that than an epoch
# does. It is armed after that and before it makes a sample. So until all workers are armed, the
# time does not count for the loader or the trial.

WatchedEvent: TypeAlias = ProcessesStarted | PhaseStarted | Turn | WorkerArmed
"""What the warden reads while the trial runs."""

START = "start"
"""Whose time passes while workers start."""
HARNESS_SECONDS = 60.0
"""For all of the trial's own work together."""
OVERDUE = (
    f"The trial's own work took more than {HARNESS_SECONDS:g} s: it arms the workers, checks which"
    " files are open, and reads the counters and the errors. The loader was idle meanwhile, so this"
    " says nothing about the dataset. Run the test again when the machine is less busy"
)

Pause: TypeAlias = tuple[float, float]
"""The start and the end of a time that is not counted."""


def deadline_after(
    events: Iterable[WatchedEvent], began: float, deadline: float, pauses: Sequence[Pause] = ()
) -> tuple[str, float]:
    """Whose time passes after *events*, and when that time will be up.

    The loader's time restarts with each epoch, and with the recovery pass. *pauses* count for
    nobody. All times are of the clock that all processes share.
    """
    budgets = {LOADER: deadline, START: max(deadline, DEADLINE), HARNESS: HARNESS_SECONDS}
    budgets[OTHERS] = math.inf
    whose, since = LOADER, began
    for at, following, is_anew in _turns(events):
        budgets[whose] -= at - since - _sum_pauses(pauses, since, at)
        whose, since = following, at
        if is_anew:
            budgets[LOADER] = deadline
    return whose, since + budgets[whose] + _sum_pauses(pauses, since, math.inf)


def _sum_pauses(pauses: Sequence[Pause], since: float, until: float) -> float:
    """For how long between *since* and *until* there was a pause; two may overlap."""
    total = 0.0
    for start, end in sorted(pauses):
        since = max(since, start)
        total += max(0.0, min(end, until) - since)
        since = max(since, end)
    return total


def _turns(events: Iterable[WatchedEvent]) -> Iterator[tuple[float, str, bool]]:
    """When each turn starts, whose it is, and whether the loader's time restarts."""
    armed: set[int] = set()
    awaited: set[int] = set()
    for event in events:
        match event:
            case ProcessesStarted(pids, float() as at):
                awaited = set(pids) - armed
                if awaited:
                    yield at, START, False
            case WorkerArmed(pid, at):
                armed.add(pid)
                if awaited and awaited <= armed:
                    awaited = set()
                    yield at, LOADER, False
            case Turn(whose, at):
                awaited = set()
                yield at, whose, False
            case PhaseStarted(phase, at) if phase != DONE:
                awaited = set()
                yield at, LOADER, True


# Some facts about time in which no process runs. Ctrl-Z, a frozen control group and docker pause
# stop all processes of a trial, including the warden, but not the clock. So the warden waits in
# slices: if it wakes much later than planned, it did not run. That is a pause, which is not
# counted. The time for which only the supervisor was stopped is a pause as well, because workers
# wait for its answers, but only once the supervisor continues: one that stays stopped must not
# postpone the deadline forever.

SLICE = 1.0
"""Seconds between two looks of the warden."""
_LATE = 0.5
"""Seconds by which the warden may wake too late although it runs."""


class Pauses:
    """The time that is not counted, by what the warden observes when it wakes."""

    def __init__(self, now: float) -> None:
        self.found: list[Pause] = []
        self._seen, self._stopped_since = now, math.inf

    def look(self, now: float, *, stopped: bool) -> None:
        """The warden runs; *stopped*: the supervisor does not."""
        if now - self._seen > SLICE + _LATE:
            self.found.append((self._seen + SLICE, now))
        if stopped:
            self._stopped_since = min(self._stopped_since, now)
        elif self._stopped_since < now:
            self.found.append((self._stopped_since, now))
            self._stopped_since = math.inf
        self._seen = now


# Some facts about a machine that is busy. A process that hangs waits for a lock, a timer or another
# process, and does not use a processor. One that is slow because others run waits for a processor
# instead, and the kernel counts that time. So the time for which a process of the trial was ready
# to run but could not is added to the loader's, up to a minute. One that hangs in a busy loop also
# gets more time if it must share a processor.
#
# Some facts about what is slow. A loader that hangs delivers nothing and reads nothing for some
# time before the deadline. One that still delivers or reads is slow, and one that sleeps will wake.
# So both get more time, two minutes at most: that is enough to read a file in pieces of 7 bytes,
# and for retries after 10, 20 and 40 seconds. The trial does not wait for a longer sleep.
#
# Some facts about progress. A batch that arrives, or an epoch that ends, is in the journal. A
# sample of a large file can take longer than the deadline, but then bytes are read: rchar in
# /proc/PID/io counts what read(2) and similar calls gave a process; a read that fails counts
# nothing, and neither does a socket. If the supervisor gives a worker fewer bytes than requested,
# it reads them itself and counts them. A fault that happens again is not progress: a loop that
# retries forever gets it forever. The same bytes, read again and again, are not progress either. So
# at most a few times the bytes of the fault-free pass count, if that number is known.
#
# The stacks of a process would show more, but the signal that requests them ends the system call
# that it is in.

BUSY_SECONDS = 60.0
"""The most that is added to the loader's time if processes wait for a processor."""
MORE_SECONDS = 120.0
"""The most that is added to the loader's time if it makes progress or sleeps."""
_RECENT = 0.5
"""What moved for the last time longer ago than this part of the deadline does not move."""
_BETWEEN_SLEEPS = 2.5
"""Seconds for which a process that sleeps repeatedly may be awake."""
_BUSY = 0.01
"""The part of the time for which a process must have had a processor: one that makes a system call
after the other waits for their answers most of the time, and one that hangs has almost none."""
_LONG_ENOUGH = 0.5
"""Seconds over which the part of the time is measured."""


class Observation(NamedTuple):
    """What the warden has observed of the processes that make samples. Times are of the clock.

    Attributes:
        delivered: When the trial last recorded something, such as a batch.
        read: When new bytes were last read.
        asleep: The processes that sleep or wait with a timeout, or did just before.
        wakes: When the last of them wakes.
        rests: When the last long sleep ends, as between retries. Repeated short sleeps wait for
            something, and do not extend the deadline.
        busy: Whether one of them computes.
    """

    delivered: float = -math.inf
    read: float = -math.inf
    asleep: tuple[int, ...] = ()
    wakes: float = -math.inf
    rests: float = -math.inf
    busy: bool = False


def extend_deadline(until: float, deadline: float, observation: Observation) -> float:
    """The end of the loader's time, which is *until* unless the *observation* there extends it."""
    latest = until + MORE_SECONDS
    moved = max(observation.delivered, observation.read) + _RECENT * deadline
    woken = observation.rests + _BETWEEN_SLEEPS if observation.rests <= latest else until
    return max(until, min(latest, max(moved, woken)))


def activity_of(observation: Observation, now: float, deadline: float) -> Activity:
    """What the loader and its workers do at the time *now*, when their time is up."""
    if now < observation.delivered + _RECENT * deadline:
        return Activity.DELIVERS
    if now < observation.wakes + _BETWEEN_SLEEPS:
        return Activity.SLEEPS
    if now < observation.read + _RECENT * deadline:
        return Activity.READS
    return Activity.COMPUTES if observation.busy else Activity.WAITS


def pids_of(events: Iterable[WatchedEvent]) -> Sequence[int]:
    """The workers that were started last; the main process if there are none."""
    pids: Sequence[int] = ()
    for event in events:
        if isinstance(event, ProcessesStarted):
            pids = event.pids or pids
    return pids


class Observer:
    """Looks at the processes of a trial again and again.

    *count_bytes* returns how many bytes the supervisor has read for workers. Bytes beyond
    *max_bytes* do not count.
    """

    def __init__(self, count_bytes: Callable[[], int], max_bytes: float) -> None:
        self._count_bytes, self._max_bytes = count_bytes, max_bytes
        self._written = 0
        self._bytes: dict[int, int] = {}
        self._used: dict[int, float] = {}
        self._asleep: dict[int, float] = {}
        """When the latest sleep, or wait with a timeout, of each process ends, or was seen."""
        self._total = 0
        self._at = time.monotonic()
        self.observation = Observation(delivered=self._at, read=self._at)

    def look(self, written: int, pids: Sequence[int]) -> None:
        """Look at the processes *pids*; *written*: the size of the journal."""
        waits = [(pid, wait) for pid in pids if (wait := _find_wait(pid)) is not None]
        ends = [wait.end for _, wait in waits if wait.is_sleep]
        now, observation = time.monotonic(), self.observation
        self._asleep |= {pid: wait.end if wait.is_sleep else now for pid, wait in waits}
        asleep = (pid for pid, end in self._asleep.items() if now < end + _BETWEEN_SLEEPS)
        long = (end for end in ends if end - now > _LONG_SLEEP)
        self.observation = Observation(
            delivered=now if written > self._written else observation.delivered,
            read=now if self._note_reading(pids) else observation.read,
            asleep=tuple(asleep),
            wakes=max(ends, default=observation.wakes),
            rests=max(long, default=observation.rests),
            busy=self._note_work(pids, now),
        )
        self._written = written

    def _note_reading(self, pids: Iterable[int]) -> bool:
        """Whether *pids* have read more since the last look."""
        self._bytes.update({pid: proc.bytes_read(pid) for pid in pids})
        previous, self._total = self._total, self._count_bytes() + sum(self._bytes.values())
        return previous < self._total <= self._max_bytes

    def _note_work(self, pids: Iterable[int], now: float) -> bool:
        """Whether one of *pids* has had a processor for long enough since the last look."""
        if now - self._at < _LONG_ENOUGH:
            return self.observation.busy
        seconds, self._at = now - self._at, now
        previous, self._used = self._used, {pid: proc.seconds_used(pid) for pid in pids}
        cpu_seconds = (each - previous.get(pid, each) for pid, each in self._used.items())
        return max(cpu_seconds, default=0.0) > _BUSY * seconds


# Some facts about a process that sleeps. /proc/PID/syscall (proc(5)) has the number of the call
# that the main thread of a process is in, and its arguments; "running" if it is in none.
# time.sleep() is clock_nanosleep(2) with the time of its end, or select(2) with no descriptor
# before Python 3.11. A wait with a limit, as Event.wait(10), is futex(2) with the time of its end.
# The times are in the memory of the process. Without the right to trace it, all that can be seen is
# the name of the kernel function that it waits in, in /proc/PID/wchan.
#
# A worker without work is in poll(2) of its queue, so that call is no sleep unless it is about no
# descriptor, as curl sleeps between its retries. Some libraries wait forever by a wait that ends
# every second and restarts, as fsspec does in its ``sync``: only a longer one will end by itself.

_TIME = struct.Struct("=qq")
_WAITS = "nanosleep clock_nanosleep futex select pselect6 poll ppoll".split()
_NEGATIVE = 1 << 31
"""The sign of an int: poll(2) waits forever if its timeout is negative."""
_MONOTONIC, _ABSOLUTE = 1, 1
_FUTEX_BITSET, _FUTEX_COMMANDS, _FUTEX_REALTIME = 9, 0x7F, 0x100
_LONG_SLEEP = 1.0
"""Seconds that a sleep must still take to count as one between retries."""
_LONG_WAIT = 2.0
"""Seconds that a wait for a lock with a timeout must still have to count."""
_WAITS_FOR_PROGRAM = ("pipe_read", "anon_pipe_read", "do_wait")
_ASLEEP_IN = ("hrtimer_nanosleep", "do_nanosleep")


class Wait(NamedTuple):
    """A wait that ends by itself. *end*: when. *is_sleep*: whether it is for nothing else."""

    end: float
    is_sleep: bool = True


def _find_wait(pid: int) -> Wait | None:
    """The wait that *pid* is in, or the last sleep of the programs that it waits for."""
    wait = _own_wait(pid)
    if wait is not None or proc.waits_in(pid) not in _WAITS_FOR_PROGRAM:
        return wait
    waits = (_own_wait(each) for each in proc.family(pid) if each != pid)
    return max((each for each in waits if each and each.is_sleep), default=None)


def _own_wait(pid: int) -> Wait | None:
    def time_at(address: int) -> float:
        seconds, small = _TIME.unpack(read_memory(pid, address, _TIME.size))
        return float(seconds + small / 1e9)

    now = time.monotonic()
    try:
        return wait_of(proc.running_call(pid), time_at, now)
    except OSError:
        return Wait(now) if proc.waits_in(pid) in _ASLEEP_IN else None


def wait_of(
    call: proc.RunningCall | None, time_at: Callable[[int], float], now: float
) -> Wait | None:
    """The wait that *call* is, if it ends by itself.

    *time_at*: the seconds at an address, in the memory of the process.
    """
    name = NAMES.get(call.number) if call else None
    if call is None or name not in _WAITS:
        return None
    first, second, third, fourth, fifth, _ = call.arguments
    if name == "nanosleep":
        return Wait(now + time_at(first))
    if name == "clock_nanosleep" and not second & _ABSOLUTE:
        return Wait(now + time_at(third))
    if name == "clock_nanosleep":
        return Wait(time_at(third) if first == _MONOTONIC else now)
    if name == "futex":
        is_timed = second & _FUTEX_COMMANDS == _FUTEX_BITSET and not second & _FUTEX_REALTIME
        end = time_at(fourth) if fourth and is_timed else now
        return Wait(end) if end - now > _LONG_WAIT else None
    count, limit = (first, fifth) if "select" in name else (second, third)
    has_end = not limit & _NEGATIVE if name == "poll" else bool(limit)
    seconds = limit / 1000 if name == "poll" or not has_end else time_at(limit)
    # poll(2) is also the pause of a loop that looks again and again. That of curl is long.
    is_sleep = not count and ("select" in name or seconds > _LONG_SLEEP)
    return Wait(now + seconds, is_sleep) if has_end else None


class TrialClock:
    """Says when to look next, until the time is up.

    *pids* returns those of all processes of the trial.

    Attributes:
        whose: Whose time passes.
        until: When that time will be up, as far as is known.

    """

    def __init__(
        self,
        facts: Journal,
        job: Job,
        supervisor: SupervisorHandle | None,
        pids: Callable[[], Iterable[int]],
    ) -> None:
        self._facts, self._job, self._pids = facts, job, pids
        self._supervisor = supervisor
        self._began = time.monotonic()
        self._pauses = Pauses(self._began)
        self._observer = Observer(
            lambda: supervisor.bytes_read.value if supervisor else 0,
            math.inf if job.max_bytes is None else job.max_bytes,
        )
        self._size, self._events = 0, list[WatchedEvent]()
        self._extension = 0.0
        self.whose, self.until = LOADER, self._began + job.deadline

    def look(self) -> bool:
        """Look at the trial; whether the time is up."""
        now, deadline = time.monotonic(), self._job.deadline
        is_stopped = bool(self._supervisor and proc.is_stopped(self._supervisor.pid))
        self._pauses.look(now, stopped=is_stopped)
        if (size := os.fstat(self._facts.fd).st_size) != self._size:
            self._size = size
            self._events = list(self._facts.of(*get_args(WatchedEvent)))
        self._observer.look(size, pids_of(self._events))
        whose, until = deadline_after(self._events, self._began, deadline, self._pauses.found)
        if until <= now and whose != HARNESS:
            waited = max(map(proc.seconds_without_cpu, self._pids()), default=0.0)
            until += min(BUSY_SECONDS, waited)
        if whose == LOADER and until <= now and self._job.may_take_longer:
            self._extension = now - until
            until = extend_deadline(until, deadline, self._observer.observation)
        self.whose, self.until = whose, until
        return until <= now

    def activity(self) -> AtDeadline:
        """What the processes do, now that the time is up."""
        observation = self._observer.observation
        activity = activity_of(observation, time.monotonic(), self._job.deadline)
        extension = round(self._extension) if self._extension > SLICE else 0.0
        return AtDeadline(activity, extension, observation.asleep)
