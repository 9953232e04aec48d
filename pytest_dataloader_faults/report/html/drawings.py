"""Where the marks of a timeline are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_dataloader_faults.outcomes import Event

_LONG = 2 / 3
"""The part of a trial that a pause takes if it is drawn shorter."""
_PAUSE = 25.0
"""The part of the width, in percent, that a long pause takes: a hang is most of its trial."""


@dataclass(frozen=True)
class Timeline:
    """What happened when in a trial. Places are in percent of the width.

    Attributes:
        lanes: The places and kinds of the events of each process, each once.
        pause: The place and the seconds of the pause that is drawn shorter, if there is one.
        rows: The events to list.
    """

    lanes: dict[str, dict[tuple[float, str], None]]
    pause: tuple[float, float] | None
    rows: list[Event]

    @property
    def end(self) -> float:
        """The time of the last event."""
        return self.rows[-1].time

    @property
    def kinds(self) -> list[str]:
        """The kinds of event that are drawn."""
        return sorted({kind for marks in self.lanes.values() for _, kind in marks})


def timeline(events: Sequence[Event]) -> Timeline:
    """The drawing of *events*, of which there is at least one."""
    rows = sorted(events, key=lambda event: event.time)
    place, pause = _scale([each.time for each in rows])
    lanes: dict[str, dict[tuple[float, str], None]] = {
        process: {} for process in sorted({each.process for each in rows}, key=_order)
    }
    for each in rows:
        lanes[each.process][place(each.time), each.kind] = None
    return Timeline(lanes, pause, rows)


def _order(process: str) -> tuple[bool, int, str]:
    """The loader first, and worker 10 after worker 9."""
    return process != "loader", len(process), process


def _scale(
    times: Sequence[float],
) -> tuple[Callable[[float], float], tuple[float, float] | None]:
    """Where a time is drawn, and the pause that is drawn shorter than it was."""
    begin, end = max(pairwise([0.0, *times]), key=lambda pair: pair[1] - pair[0])
    length = end - begin
    remainder = times[-1] - length
    if length <= _LONG * times[-1] or remainder <= 0:
        return lambda time: round(100 * time / (times[-1] or 1), 1), None
    unit = (100 - _PAUSE) / remainder

    def place(time: float) -> float:
        is_after = time >= end
        return round(unit * (time - length * is_after) + _PAUSE * is_after, 1)

    return place, (place(begin), length)
