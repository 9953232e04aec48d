"""Stacks made fit to show: the user's frames first, none of this package's. Pure.

faulthandler prints the innermost frame of a thread first, and a traceback prints it last. A library
may have dozens of frames between what the user called and the line that crashes or waits.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence

import pytest_dataloader_faults as package

PYTHON, OURS = (os.path.dirname(each) + os.sep for each in (os.__file__, package.__file__))
_FRAME = re.compile(r'  File "(.*)", line \d+(,?) in ')
"""The comma is a traceback's."""
_SOURCE = "    "
"""What begins the lines of source below a frame of a traceback."""
_LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/|.*/torch/utils/data/|{re.escape(PYTHON)}|{re.escape(OURS)}"
)


def is_ours(line: str) -> bool:
    """Whether *line* is a frame of this package."""
    frame = _FRAME.match(line)
    return frame is not None and frame[1].startswith(OURS)


def is_users(line: str) -> bool:
    """Whether *line* is a frame of the user's code, and not of Python, torch or another library."""
    frame = _FRAME.match(line)
    return frame is not None and not _LIBRARY.match(frame[1])


def for_reader(lines: Sequence[str]) -> list[str]:
    """*lines* of one or more stacks and of other text, in the order for a reader.

    The user's frames come first in each stack of faulthandler, and this package's are left out.
    """
    found: list[str] = []
    for kind, group in itertools.groupby(_frames(lines), key=_kind):
        frames = [frame for frame in group if not is_ours(frame[0])]
        if kind == "stack":
            frames.sort(key=lambda frame: not is_users(frame[0]))
        found += [line for frame in frames for line in frame]
    return found


def _frames(lines: Sequence[str]) -> Iterator[list[str]]:
    """Each frame with the source below it; each other line alone."""
    frame: list[str] = []
    for line in lines:
        if frame and line.startswith(_SOURCE) and _kind(frame) == "traceback":
            frame.append(line)
            continue
        if frame:
            yield frame
        frame = [line]
    if frame:
        yield frame


def _kind(frame: Sequence[str]) -> str:
    found = _FRAME.match(frame[0])
    if found is None:
        return "text"
    return "traceback" if found[2] else "stack"


def bounded(lines: Sequence[str], most: int) -> list[str]:
    """The first and the last of *lines*, *most* in all, and each frame of the user between them.

    Of more than *most* such frames, as of a recursion, the first and the last.
    """
    if len(lines) <= most:
        return list(lines)
    users = [place for place, line in enumerate(lines) if is_users(line)]
    kept = {*_ends(users, most)}
    others = [place for place in range(len(lines)) if place not in set(users)]
    kept |= {*_ends(others, max(2, most - len(kept)))}
    shown: list[str] = []
    for is_kept, places in itertools.groupby(range(len(lines)), key=kept.__contains__):
        group = list(places)
        left_out = [f"... {len(group)} lines are left out here ..."]
        shown += [lines[place] for place in group] if is_kept else left_out
    return shown


def _ends(places: Sequence[int], most: int) -> Sequence[int]:
    half = most // 2
    return places if len(places) <= most else [*places[: most - half], *places[-half:]]
