"""Where the marks of a timeline and the lines of a chart are. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pytest_dataloader_faults.outcomes import Event, Footprint
from pytest_dataloader_faults.outcomes.results import limit_events

MOST_ROWS = 100
"""Events of a trial that the page lists. A thousand trials of 400 each would be slow to open."""
_DECISIVE = ("fault", "error", "exit", "epoch")
_LONG = 2 / 3
"""The part of a trial that a pause takes if it is drawn shorter."""
_PAUSE = 25.0
"""The part of the width, in percent, that a long pause takes: a hang is most of its trial."""
_LONG_FOLDER = 20
"""Characters of a path that would hide what differs: the name of the file."""
WIDTH, HEIGHT = 280, 80
"""Of a chart, in its own units."""
_LEAST = 4.0
"""The least height of a chart's scale, in descriptors or MiB, so that noise looks small."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Timeline:
    """What happened when in a trial. Places are in percent of the width.

    Attributes:
        lanes: The places and kinds of the events of each process, each once; the decisive kinds
            last, so that they are drawn above the others.
        gaps: Where events of each process are left out: the place, the width, and what of.
        pause: The place and the seconds of the pause that is drawn shorter, if there is one.
        unseen: What is left out in the whole of that pause.
        end: The time of the last event.
        folder: What "…/" in a row stands for, if it is used there.
        rows: The events to list.
        omitted: How many of the others are not listed.
    """

    lanes: dict[str, dict[tuple[float, str], None]]
    gaps: dict[str, list[tuple[float, float, str]]]
    pause: tuple[float, float] | None
    unseen: list[str]
    end: float
    folder: str
    rows: list[Event]
    omitted: int

    @property
    def kinds(self) -> list[str]:
        """The kinds of event that are drawn."""
        return sorted({kind for marks in self.lanes.values() for _, kind in marks})


def timeline(events: Sequence[Event]) -> Timeline:
    """The drawing of *events*, of which there is at least one."""
    ordered = sorted(events, key=lambda event: event.time)
    place, pause, paused = _scale([each.time for each in ordered])
    lanes: dict[str, dict[tuple[float, str], None]] = {
        process: {} for process in sorted({each.process for each in ordered}, key=_order)
    }
    drawn = [each for each in ordered if not each.omitted]
    for each in sorted(drawn, key=lambda each: each.kind in _DECISIVE):
        lanes[each.process][place(each.time), each.kind] = None
    spans = list(_spans(ordered))
    gaps: dict[str, list[tuple[float, float, str]]] = {process: [] for process in lanes}
    for begin, end, each in spans:
        gaps[each.process].append((place(begin), place(end) - place(begin), each.text))
    begin, end = paused
    unseen = [
        f"{event.text} ({event.process})" for at, to, event in spans if at <= begin and to >= end
    ]
    rows = limit_events(ordered, MOST_ROWS)
    omitted = len(drawn) - sum(not each.omitted for each in rows)
    if folder := _folder(ordered):
        rows = [replace(each, text=each.text.replace(folder, "…/")) for each in rows]
    return Timeline(lanes, gaps, pause, unseen, ordered[-1].time, folder, rows, omitted)


def _spans(events: Sequence[Event]) -> Iterator[tuple[float, float, Event]]:
    """Each gap, from when to when: up to the next event of its process and kind, or to the end."""
    for number, event in enumerate(events):
        if event.omitted:
            group = (event.process, event.kind)
            later = (
                successor
                for successor in events[number + 1 :]
                if (successor.process, successor.kind) == group
            )
            following = next(later, events[-1])
            yield event.time, following.time, event


def _order(process: str) -> tuple[bool, int, str]:
    """The loader first, and worker 10 after worker 9."""
    return process != "loader", len(process), process


def _folder(events: Sequence[Event]) -> str:
    """The folder of all files that workers open in *events*, with a slash; "" if it is short."""
    files = [each.text for each in events if each.kind == "open" and os.path.isabs(each.text)]
    folder = os.path.commonpath(map(os.path.dirname, files)) if files else ""
    return f"{folder}/" if len(folder) > _LONG_FOLDER else ""


_Scale = tuple[Callable[[float], float], tuple[float, float] | None, tuple[float, float]]


def _scale(times: Sequence[float]) -> _Scale:
    """Where a time is drawn, the pause that is drawn shorter than it was, and the longest pause."""
    begin, end = max(pairwise([0.0, *times]), key=lambda pair: pair[1] - pair[0])
    length = end - begin
    remainder = times[-1] - length
    if length <= _LONG * times[-1] or remainder <= 0:
        return lambda time: round(100 * time / (times[-1] or 1), 1), None, (begin, end)
    unit = (100 - _PAUSE) / remainder

    def place(time: float) -> float:
        is_after = time >= end
        return round(unit * (time - length * is_after) + _PAUSE * is_after, 1)

    return place, (place(begin), length), (begin, end)


@dataclass(frozen=True)
class Chart:
    """How something changed from epoch to epoch, with a line for each process.

    Attributes:
        title: What changed.
        low, high: The ends of the scale.
        zero: The height at which nothing changed.
        lines: The points of each process's line, as SVG has them.
    """

    title: str
    low: float
    high: float
    zero: float
    lines: dict[str, str]


def charts(usage: Sequence[Footprint]) -> list[Chart]:
    """Of descriptors and of memory, if there are epochs to compare."""
    if len({each.epoch for each in usage}) < 2:  # noqa: PLR2004  # two points make a line
        return []
    return [
        _chart("Descriptors", [(each, each.descriptors) for each in usage]),
        _chart("Memory in MiB", [(each, each.memory / _MEBIBYTE) for each in usage]),
    ]


def _chart(title: str, values: Sequence[tuple[Footprint, float]]) -> Chart:
    """The change of *values* since the first epoch, which shows a leak however much there was."""
    lines: dict[str, list[tuple[int, float]]] = {}
    baselines: dict[str, float] = {}
    for usage, value in values:
        change = value - baselines.setdefault(usage.process, value)
        lines.setdefault(usage.process, []).append((usage.epoch, change))
    changes = [change for line in lines.values() for _, change in line]
    low = min(changes)
    high = max(*changes, low + _LEAST)
    epochs = [each.epoch for each, _ in values]
    x = WIDTH / (max(epochs) - min(epochs))
    y = HEIGHT / (high - low)
    points = {
        process: " ".join(
            f"{x * (epoch - min(epochs)):.1f},{y * (high - change):.1f}" for epoch, change in line
        )
        for process, line in lines.items()
    }
    return Chart(title, low, high, y * high, points)
