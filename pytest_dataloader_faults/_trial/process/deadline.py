"""How long a trial may take, whose time passes in it, and when that time is up. Pure.

Some facts about whose time it is. The deadline is the loader's: a loader that takes longer to raise
or to end is called hung. But in between, a trial does its own work. It waits for workers to finish
their requested batches, lists open files, requests the counters, and reads the messages of errors,
which may be long. The time for that says nothing about the dataset. So the trial records when
either starts, and each has its own time.

Some facts about workers that start. A forked one runs at once. A spawned one is a new interpreter,
which imports the user's libraries first, and some take longer for that than an epoch does. It is
armed after that and before it makes a sample. So until all workers are armed, the time does not
count for the loader or the trial.

A process that waits for other jobs waits as long as they do: each of them has its own deadline.

Some facts about a machine that is busy. A process that hangs waits for a lock, a timer or another
process, and does not use a processor. One that is slow because others run waits for a processor
instead, and the kernel counts that time. So the time for which a process of the trial was ready to
run but could not is added to the loader's, up to a minute. One that hangs in a busy loop also gets
more time if it must share a processor.

Some facts about time in which no process runs. Ctrl-Z, a frozen control group and docker pause stop
all processes of a trial, including the warden, but not the clock. So the warden waits in slices: if
it wakes much later than planned, it did not run. That is a pause, which is not counted. The time
for which only the supervisor was stopped is a pause as well, because workers wait for its answers,
but only once the supervisor continues: one that stays stopped must not postpone the deadline
forever.

Some facts about what is slow. A loader that hangs delivers nothing and reads nothing for some time
before the deadline. One that still delivers or reads is slow, and one that sleeps will wake. So
both get more time, two minutes at most: that is enough to read a file in pieces of 7 bytes, and for
retries after 10, 20 and 40 seconds. The trial does not wait for a longer sleep.
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

LOADER, START, HARNESS, OTHERS = "loader", "start", "harness", "others"
HARNESS_SECONDS = 60.0
"""For all of the trial's own work together."""
BUSY_SECONDS = 60.0
"""The most that is added to the loader's time if processes wait for a processor."""
MORE_SECONDS = 120.0
"""The most that is added to the loader's time if it makes progress or sleeps."""
_RECENT = 0.5
"""What moved for the last time longer ago than this part of the deadline does not move."""
_BETWEEN_SLEEPS = 2.5
"""Seconds for which a process that sleeps repeatedly may be awake."""
SLICE = 1.0
"""Seconds between two looks of the warden."""
_LATE = 0.5
"""Seconds by which the warden may wake too late although it runs."""
OVERDUE = (
    f"The trial's own work took more than {HARNESS_SECONDS:g} s: it arms the workers, checks which"
    " files are open, and reads the counters and the errors. The loader was idle meanwhile, so this"
    " says nothing about the dataset. Run the test again when the machine is less busy"
)


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

    def is_asleep(self, now: float) -> bool:
        """Whether one sleeps, or may only be about to sleep again."""
        return is_recent(self.wakes, now)


def is_recent(wakes: float, now: float) -> bool:
    """Whether a process that *wakes* at that time sleeps, or may only be about to sleep again."""
    return now < wakes + _BETWEEN_SLEEPS


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
    if observation.is_asleep(now):
        return Activity.SLEEPS
    if now < observation.read + _RECENT * deadline:
        return Activity.READS
    return Activity.COMPUTES if observation.busy else Activity.WAITS


Pause: TypeAlias = tuple[float, float]
"""The start and the end of a time that is not counted."""


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
    """When each turn starts, whose it is, and whether the loader's time restarts.

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
                yield at, OTHERS, False
            case WorkersStarting(pids, float() as at):
                awaited = set(pids) - armed
                if awaited:
                    yield at, START, False
            case WorkerArmed(pid, at):
                armed.add(pid)
                if awaited and awaited <= armed:
                    awaited = set()
                    yield at, LOADER, False
