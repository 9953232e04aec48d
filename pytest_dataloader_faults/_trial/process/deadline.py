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

Some facts about a machine that is busy. A process that hangs waits for a lock, a timer or another
process, and costs no time of a processor. One that is slow because others run waits for a processor
instead, and the kernel counts that. So the time in which a process of the trial was ready to run
and could not is added to the loader's, up to a minute. One that hangs in a busy loop is given more
time, too, where it has to share a processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

DEADLINE = 30.0
"""Seconds for an epoch, where nothing is known of the dataset and nothing was asked for."""
_LEAST, _TIMES = 10.0, 20
_LEAST_TO_LOOK, _TIMES_TO_LOOK = 2.0, 3
"""Seconds at least, and how many times as long as an epoch without a fault."""
_ANEW = ("epoch", "recovery")
LOADER, START, HARNESS = "loader", "start", "harness"
HARNESS_SECONDS = 60.0
"""For all of the trial's own work together."""
BUSY_SECONDS = 60.0
"""The most that is added to the loader's time where processes wait for a processor."""
OVERDUE = (
    f"The loader was not at work, and the trial's own work took more than {HARNESS_SECONDS:g} s: it"
    " arms the workers, looks at what is open, and reads the counters and the errors. That says"
    " nothing about the dataset. Run the test again when the machine is less busy"
)


class Deadlines:
    """How long the trials of one dataset may take, if *asked* does not say it."""

    def __init__(self, asked: float | None) -> None:
        self.asked = asked
        self._longest: float | None = None

    def learn(self, seconds: float) -> None:
        """An epoch without a fault took *seconds*."""
        self._longest = max(seconds, self._longest or 0.0)

    @property
    def most(self) -> float:
        """What none of them exceeds."""
        return DEADLINE if self.asked is None else self.asked

    @property
    def for_trial(self) -> float:
        """That of a trial."""
        if self.asked is not None or self._longest is None:
            return self.most
        return min(self.most, max(_LEAST, math.ceil(_TIMES * self._longest)))

    @property
    def for_look(self) -> float:
        """That of a look whether a dataset which has hung before hangs at the same place."""
        enough = math.ceil(_TIMES_TO_LOOK * (self._longest or 0.0))
        return min(self.for_trial, max(_LEAST_TO_LOOK, enough))


def deadline_after(
    events: Iterable[dict[str, Any]], began: float, deadline: float
) -> tuple[str, float]:
    """Whose time passes after *events*, and when that time will be up.

    Each epoch gives the loader all its time again, and so does the recovery. All times are of the
    clock that all processes share.
    """
    left = {LOADER: deadline, START: max(deadline, DEADLINE), HARNESS: HARNESS_SECONDS}
    whose, since = LOADER, began
    for at, following, is_anew in _turns(events):
        left[whose] -= at - since
        whose, since = following, at
        if is_anew:
            left[LOADER] = deadline
    return whose, since + left[whose]


def _turns(events: Iterable[dict[str, Any]]) -> Iterator[tuple[float, str, bool]]:
    """When each turn begins, whose it is, and whether the loader's time begins anew.

    ``began`` starts the loader's time and ``rested`` the trial's. ``starting`` is when *pids* were
    started, each of which is *armed* once its own code and what it imports have been loaded.
    """
    armed: set[int] = set()
    awaited: set[int] = set()
    for event in events:
        if "began" in event:
            awaited = set()
            yield event["began"], LOADER, event.get("phase", "").startswith(_ANEW)
        elif "rested" in event:
            awaited = set()
            yield event["rested"], HARNESS, False
        elif "starting" in event:
            awaited = set(event["pids"]) - armed
            if awaited:
                yield event["starting"], START, False
        elif "armed" in event:
            armed.add(event["armed"])
            if awaited and awaited <= armed:
                awaited = set()
                yield event["at"], LOADER, False
