"""Whose time passes in a trial, and when that time is up. Pure.

Some facts about whose time it is. The deadline is the loader's: a loader that takes longer to raise
or to end is called hung. But in between a trial does work of its own. It waits for workers to
finish what they were asked for, looks at what is open, asks for the counters, and reads the texts
of errors, which may be long. However long that takes, it says nothing about the dataset. So the
trial writes down when the one ends and the other begins, and each has time of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LOADER, HARNESS = "loader", "harness"
HARNESS_SECONDS = 60.0
"""For all of the trial's own work together."""
OVERDUE = (
    f"The loader was not at work, and the trial's own work took more than {HARNESS_SECONDS:g} s: it"
    " arms the workers, looks at what is open, and reads the counters and the errors. That says"
    " nothing about the dataset. Run the test again when the machine is less busy"
)


def deadline_after(
    events: Iterable[dict[str, Any]], began: float, deadline: float
) -> tuple[str, float]:
    """Whose time passes after *events*, and when that time will be up.

    ``began`` starts the loader's time and ``rested`` the trial's. A recovery gives the loader all
    of its time again. All times are of the clock that all processes share.
    """
    left = {LOADER: deadline, HARNESS: HARNESS_SECONDS}
    whose, since = LOADER, began
    for event in events:
        at = event.get("began", event.get("rested"))
        if at is None:
            continue
        left[whose] -= at - since
        whose, since = (HARNESS if "rested" in event else LOADER), at
        if event.get("phase") == "recovery":
            left[LOADER] = deadline
    return whose, since + left[whose]
