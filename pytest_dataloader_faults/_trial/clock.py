"""Whose time passes in a trial, and when it is up. Pure.

Some facts about whose time it is. The deadline is the loader's: whoever takes longer to raise or to
end is called hung. But in between a trial does work of its own. It waits for workers to finish what
they were asked for, looks at what is open, asks for the counters, and reads the texts of errors,
which may be long. However long that takes, it says nothing about the dataset. So the trial writes
down when the one ends and the other begins, and each has time of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LOADERS, OURS = "loader", "harness"
OUR_SECONDS = 60.0
"""For all of the trial's own work together."""
OVERDUE = (
    "The loader had raised or ended, or not begun, and what the trial does besides took more than"
    f" {OUR_SECONDS:g} s: to arm the workers, to look at what is open, and to read the counters and"
    " the errors. That says nothing about the dataset. Run the test again when the machine has less"
    " to do"
)


def time_is_up(
    events: Iterable[dict[str, Any]], began: float, deadline: float
) -> tuple[str, float]:
    """Whose time it is that passes after *events*, and when that will be up.

    A phase begins and gives the loader its time back, ``rested`` takes it away. All is on the clock
    that every process shares.
    """
    left = {LOADERS: deadline, OURS: OUR_SECONDS}
    whose, since = LOADERS, began
    for event in events:
        at = event.get("began", event.get("rested"))
        if at is None:
            continue
        left[whose] -= at - since
        whose, since = (OURS if "rested" in event else LOADERS), at
        if event.get("phase") == "recovery":
            left[LOADERS] = deadline
    return whose, since + left[whose]
