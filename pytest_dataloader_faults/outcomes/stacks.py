"""Stacks for readers: the user's frames first, none of this package's. Pure.

faulthandler prints the innermost frame of a thread first, and a traceback prints it last. A library
may have dozens of frames between the user's call and the line that crashes or waits.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence

PYTHON = os.path.dirname(os.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FRAME = re.compile(r'  File "(.*)", line \d+(,?) in ')
"""Only a traceback has the comma."""
_SOURCE = "    "
"""The start of source lines below a frame of a traceback."""
_LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/|.*/torch/utils/data/|{re.escape(PYTHON)}|{re.escape(OURS)}"
)


def is_own_frame(line: str) -> bool:
    """Whether *line* is a frame of this package."""
    frame = _FRAME.match(line)
    return frame is not None and frame[1].startswith(OURS)


def is_user_frame(line: str) -> bool:
    """Whether *line* is a frame of the user's code, and not of Python, torch or another library."""
    frame = _FRAME.match(line)
    return frame is not None and not _LIBRARY.match(frame[1])


def sort_for_reader(lines: Sequence[str]) -> list[str]:
    """*lines* of one or more stacks and of other text, in the order for a reader.

    The user's frames come first in each stack of faulthandler, and this package's are omitted.
    """
    ordered: list[str] = []
    for kind, group in itertools.groupby(_frames(lines), key=_kind):
        frames = [frame for frame in group if not is_own_frame(frame[0])]
        if kind == "stack":
            frames.sort(key=lambda frame: not is_user_frame(frame[0]))
        ordered += [line for frame in frames for line in frame]
    return ordered


def _frames(lines: Sequence[str]) -> Iterator[list[str]]:
    """Each frame with the source below it, and every other line by itself."""
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
    match = _FRAME.match(frame[0])
    if match is None:
        return "text"
    return "traceback" if match[2] else "stack"


def limit_lines(lines: Sequence[str], limit: int) -> list[str]:
    """The first and the last of *lines*, *limit* in all, and each frame of the user between them.

    Of more than *limit* such frames, as in a recursion, only the first and the last.
    """
    if len(lines) <= limit:
        return list(lines)
    users = [place for place, line in enumerate(lines) if is_user_frame(line)]
    indices = {*_ends(users, limit)}
    library_places = [place for place in range(len(lines)) if place not in set(users)]
    indices |= {*_ends(library_places, max(2, limit - len(indices)))}
    output: list[str] = []
    for is_kept, places in itertools.groupby(range(len(lines)), key=indices.__contains__):
        group = list(places)
        left_out = [f"... {len(group)} lines omitted ..."]
        output += [lines[place] for place in group] if is_kept else left_out
    return output


def _ends(places: Sequence[int], limit: int) -> Sequence[int]:
    half = limit // 2
    return places if len(places) <= limit else [*places[: limit - half], *places[-half:]]
