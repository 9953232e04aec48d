"""How long a trial may take, whose time passes in it, and when that time is up. Pure.

Some facts about whose time it is. The deadline is the loader's: a loader that takes longer to raise
or to end is called hung. But in between a trial does work of its own. It waits for workers to
finish what they were asked for, looks at what is open, asks for the counters, and reads the texts
of errors, which may be long. However long that takes, it says nothing about the dataset. So the
trial writes down when the one ends and the other begins, and each has time of its own.

Some facts about workers that start. A forked one runs at once. A spawned one is a new interpreter,
which imports the user's libraries first, and some take longer for that than an epoch does. It is
armed after that and before it makes a sample. So until all workers are armed, the time is neither
the loader's nor the trial's.

A rank that waits for other ranks waits as long as they do: each of them has a deadline of its own.

Some facts about a machine that is busy. A process that hangs waits for a lock, a timer or another
process, and costs no time of a processor. One that is slow because others run waits for a processor
instead, and the kernel counts that. So the time in which a process of the trial was ready to run
and could not is added to the loader's, up to a minute. One that hangs in a busy loop is given more
time, too, where it has to share a processor.

Some facts about time in which no process runs. Ctrl-Z, a frozen control group and docker pause stop
all processes of a trial, the warden too, and the clock goes on. So the warden waits in slices:
where it wakes much later than it asked to, it did not run itself. That is a pause, which belongs to
nobody. So is the time for which only the supervisor was stopped, since workers wait for its
answers. It counts once the supervisor goes on: one that stays stopped must not put off the deadline
forever.

Some facts about what is slow. What hangs does not move: no batch comes and nothing is read, from
some time before the deadline on. What moves is slow, and what sleeps will wake. So both get more
time, two minutes at most: that is enough for a file read by 7 bytes at a time, and for retries
after 10, 20 and 40 seconds, and a machine can spare it. A sleep that is longer is not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pytest_dataloader_faults._engine.protocol import WorkerArmed
from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults._trial.journal import (
    HarnessTime,
    LoaderTime,
    MeetingTime,
    PhaseStarted,
    TrialStarted,
    WorkersStarting,
)
from pytest_dataloader_faults.outcomes import Activity
from pytest_dataloader_faults.outcomes.stages import DONE

WatchedEvent: TypeAlias = (
    TrialStarted
    | PhaseStarted
    | LoaderTime
    | HarnessTime
    | MeetingTime
    | WorkersStarting
    | WorkerArmed
)
"""What the warden reads while the trial runs."""

LOADER, START, HARNESS, RANKS = "loader", "start", "harness", "ranks"
HARNESS_SECONDS = 60.0
"""For all of the trial's own work together."""
BUSY_SECONDS = 60.0
"""The most that is added to the loader's time where processes wait for a processor."""
MORE_SECONDS = 120.0
"""The most that is added to the loader's time where it moves or sleeps."""
_RECENT = 0.5
"""What moved for the last time longer ago than this part of the deadline does not move."""
_BETWEEN_SLEEPS = 2.5
"""Seconds for which a process that slept may be seen awake, and sleeps again."""
SLICE = 1.0
"""Seconds between two looks of the warden."""
_LATE = 0.5
"""Seconds by which the warden may wake too late although it runs."""
OVERDUE = (
    f"The loader was not at work, and the trial's own work took more than {HARNESS_SECONDS:g} s: it"
    " arms the workers, looks at what is open, and reads the counters and the errors. That says"
    " nothing about the dataset. Run the test again when the machine is less busy"
)


class Seen(NamedTuple):
    """What the warden has seen of the processes that make samples. Times are of the clock.

    Attributes:
        delivered: When the trial last wrote something down, as a batch that came.
        read: When new bytes were last read.
        asleep: The processes that sleep, or have just slept.
        wakes: When the last of them wakes.
        rests: Likewise of long sleeps, as between attempts. Who sleeps again and again for a moment
            waits for something, and gets no more time.
        busy: Whether one of them computes.
    """

    delivered: float = -math.inf
    read: float = -math.inf
    asleep: tuple[int, ...] = ()
    wakes: float = -math.inf
    rests: float = -math.inf
    busy: bool = False

    def is_asleep(self, now: float) -> bool:
        """Whether one sleeps, or may only be about to sleep again."""
        return now < self.wakes + _BETWEEN_SLEEPS


def extended(until: float, deadline: float, seen: Seen) -> float:
    """When the loader's time is up that would be so at *until*, given what was *seen* then."""
    most = until + MORE_SECONDS
    moved = max(seen.delivered, seen.read) + _RECENT * deadline
    woken = seen.rests + _BETWEEN_SLEEPS if seen.rests <= most else until
    return max(until, min(most, max(moved, woken)))


def activity_of(seen: Seen, now: float, deadline: float) -> Activity:
    """What the loader and its workers do at the time *now*, when their time is up."""
    if now < seen.delivered + _RECENT * deadline:
        return Activity.DELIVERS
    if seen.is_asleep(now):
        return Activity.SLEEPS
    if now < seen.read + _RECENT * deadline:
        return Activity.READS
    return Activity.COMPUTES if seen.busy else Activity.WAITS


Pause: TypeAlias = tuple[float, float]
"""When time began and ceased to be nobody's."""


class Pauses:
    """The time that is nobody's, by what the warden sees when it wakes."""

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


def deadline_after(
    events: Iterable[WatchedEvent], began: float, deadline: float, pauses: Sequence[Pause] = ()
) -> tuple[str, float]:
    """Whose time passes after *events*, and when that time will be up.

    Each epoch gives the loader all its time again, and so does the recovery. *pauses* count for
    nobody. All times are of the clock that all processes share.
    """
    left = {LOADER: deadline, START: max(deadline, DEADLINE), HARNESS: HARNESS_SECONDS}
    left[RANKS] = math.inf
    whose, since = LOADER, began
    for at, following, is_anew in _turns(events):
        left[whose] -= at - since - _paused(pauses, since, at)
        whose, since = following, at
        if is_anew:
            left[LOADER] = deadline
    return whose, since + left[whose] + _paused(pauses, since, math.inf)


def _paused(pauses: Sequence[Pause], since: float, until: float) -> float:
    """For how long between *since* and *until* there was a pause; two may overlap."""
    total = 0.0
    for start, end in sorted(pauses):
        since = max(since, start)
        total += max(0.0, min(end, until) - since)
        since = max(since, end)
    return total


def _turns(events: Iterable[WatchedEvent]) -> Iterator[tuple[float, str, bool]]:
    """When each turn begins, whose it is, and whether the loader's time begins again.

    A worker is armed once its own code and what it imports have been loaded.
    """
    armed: set[int] = set()
    awaited: set[int] = set()
    for event in events:
        match event:
            case PhaseStarted(phase, at) if phase != DONE:
                awaited = set()
                yield at, LOADER, True
            case LoaderTime(at):
                awaited = set()
                yield at, LOADER, False
            case HarnessTime(at):
                awaited = set()
                yield at, HARNESS, False
            case MeetingTime(at):
                awaited = set()
                yield at, RANKS, False
            case WorkersStarting(pids, float() as at):
                awaited = set(pids) - armed
                if awaited:
                    yield at, START, False
            case WorkerArmed(pid, at):
                armed.add(pid)
                if awaited and awaited <= armed:
                    awaited = set()
                    yield at, LOADER, False
