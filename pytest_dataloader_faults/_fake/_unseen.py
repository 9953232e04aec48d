"""Errors of readers that cannot see a fake file, explained [runs in the DataLoader worker].

Readers written in C look for a path among the real files. What they say then ("No such file", or
nothing but None) puzzles whoever has just made that file, so a note goes with the error.
"""

from __future__ import annotations

import functools
import os
import re
import site
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

_NOT_FOUND = re.compile(
    r"no such file|not found|(does|do) not exist|bad file descriptor|fdopen|"
    r"(unable|cannot|can't|could not|failed|error)( to)? open",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"NoneType|\.empty\(\)")
_GIVE_NONE = {"imread", "imreadmulti", "VideoCapture"}
"""Readers, of cv2, that do not complain about a file that is not there."""
_QUOTED = re.compile(r"""['"]([^'"]+)['"]""")
_RAISES = ("/pyfakefs/", "/pytest_dataloader_faults/_fake/", "/pytest_dataloader_faults/_engine/")
_LIBRARIES = tuple(
    {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
)


def explain_unseen(files: Any) -> None:
    """Have errors of this process's fetches explained, if they are about one of *files*."""
    from torch.utils.data._utils import fetch

    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        fetcher.fetch = _explaining(fetcher.fetch, files)  # type: ignore[method-assign]


def _explaining(fetch: Callable[..., Any], files: Any) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def explaining(self: Any, index: Any) -> Any:
        try:
            return fetch(self, index)
        except StopIteration:
            raise
        except Exception as error:
            if note := note_on(error, files):
                _add(error, note)
            raise

    return explaining


def _add(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # From Python 3.11 on.
        error.add_note(note)
        return
    while cause := error.__cause__ or error.__context__:
        error = cause
    error.__cause__ = FileNotFoundError(note)


def note_on(error: BaseException, files: Any) -> str | None:
    """What *error* does not tell: that it is about one of *files*, seen by Python code alone."""
    for each in _chain(error):
        frames = list(traceback.walk_tb(each.__traceback__))
        if not frames or any(part in _file_of(frames[-1][0]) for part in _RAISES):
            continue  # It was raised by who does see fake files.
        silent = _silent_readers(each, frames)
        is_missed = isinstance(each, FileNotFoundError) or _NOT_FOUND.search(str(each))
        if (is_missed or silent) and (path := _fake_path(each, frames, files)):
            return _note(path, silent or _line(frames))
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _file_of(frame: types.FrameType) -> str:
    return frame.f_code.co_filename


def _silent_readers(error: BaseException, frames: list[tuple[types.FrameType, int]]) -> str | None:
    """Readers in the user's code that give None, where *error* says that something is None."""
    if not _NOTHING.search(str(error)):
        return None
    names = {name for frame, _ in frames for name in frame.f_code.co_names if _is_user(frame)}
    return " or ".join(f"{name}()" for name in sorted(names & _GIVE_NONE)) or None


def _fake_path(
    error: BaseException, frames: list[tuple[types.FrameType, int]], files: Any
) -> str | None:
    """The fake file that *error* names, or that the code which met it had in hand."""
    named = [getattr(error, "filename", None), *_QUOTED.findall(str(error)), *str(error).split()]
    in_hand = [value for frame, _ in reversed(frames) for value in frame.f_locals.values()]
    for each in (*named, *in_hand):
        if isinstance(each, (str, bytes, os.PathLike)):
            path = os.fsdecode(each).rstrip(":,.")
            if path and files.isfile(path):
                return path
    return None


def _is_user(frame: types.FrameType) -> bool:
    return not _file_of(frame).startswith((*_LIBRARIES, "<"))


def _line(frames: list[tuple[types.FrameType, int]]) -> str:
    """The line of the user's code that called the reader."""
    own = [frame for frame in frames if _is_user(frame[0])] or frames
    (summary,) = traceback.StackSummary.extract(iter(own[-1:]))
    return f"`{summary.line}` ({os.path.basename(summary.filename)}, line {summary.lineno})"


def _note(path: str, reader: str) -> str:
    return (
        f"{path!r} is in the fake file system, which only Python's own open() and os functions see:"
        f" {reader} reads in C, and looks for it among the real files. Write real files for such a"
        " reader, as in pytest's tmp_path"
    )
