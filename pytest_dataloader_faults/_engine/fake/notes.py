"""Notes on errors of readers that cannot see a fake file [runs wherever a dataset is read].

Readers written in C look for a path among the real files. What they say then ("No such file", or
nothing but None) is puzzling when that file was just made, so a note explains the error.
"""

from __future__ import annotations

import functools
import os
import re
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._engine.fake import fake_files

_NOT_FOUND = re.compile(
    r"no such (file|table)|not found|(does|do) not exist|bad file descriptor|fdopen|"
    r"(unable|cannot|can't|could not|failed|error)( to)? open",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"NoneType|\.empty\(\)")
_RETURN_NONE = {"imread", "imreadmulti", "VideoCapture"}
"""Readers, of cv2, that do not complain about a file that is not there."""
_QUOTED = re.compile(r"""['"]([^'"]+)['"]""")
_MAX_LISTED = 100
"""Of a list of paths: if one is a fake file, they all are."""
_SEES_FAKE_FILES = re.compile(r"/pyfakefs/|/pytest_dataloader_faults/(fake_files|_engine)/")
_LIBRARIES = re.compile(rf"{re.escape(sysconfig.get_path('stdlib'))}/|.*/(site|dist)-packages/")


def explain_errors() -> None:
    """Add a note to each error of this process's fetches that is about a fake file."""
    from torch.utils.data._utils import fetch

    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        fetcher.fetch = _wrap_fetch(fetcher.fetch)  # type: ignore[method-assign]


def _wrap_fetch(fetch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def fetch_with_note(self: Any, index: Any) -> Any:
        try:
            return fetch(self, index)
        except StopIteration:
            raise
        except Exception as error:
            explain(error)
            raise

    return fetch_with_note


def explain(error: BaseException) -> None:
    """Add a note to *error* if it is about a fake file."""
    if not (note := note_for(error)):
        return
    if hasattr(error, "add_note"):  # From Python 3.11 on.
        error.add_note(note)
        return
    *_, deepest = _chain(error)
    deepest.__cause__ = FileNotFoundError(note)


def note_for(error: BaseException) -> str | None:
    """The note for *error*, if it is about a fake file, which only Python code sees."""
    files = fake_files()
    for link in _chain(error) if files is not None else ():
        frames = list(traceback.walk_tb(link.__traceback__))
        if not frames or _SEES_FAKE_FILES.search(frames[-1][0].f_code.co_filename):
            continue  # Code that sees fake files raised it.
        text = _text_of(link)
        silent = _silent_readers(text, frames)
        is_missed = isinstance(link, FileNotFoundError) or _NOT_FOUND.search(text)
        if (is_missed or silent) and (path := _fake_path(link, text, frames, files)):
            return (
                f"{path!r} is in the fake file system, which only Python's own open() and os"
                f" functions see, but {silent or _line(frames)} reads in C, and looks for a real"
                " file. Write real files for this reader, for example in pytest's tmp_path"
            )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _text_of(error: BaseException) -> str:
    """Its text; one that torch brought from a worker may lack what its class makes it from."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # whatever its class does
        return " ".join(map(str, error.args))


def _silent_readers(text: str, frames: list[tuple[types.FrameType, int]]) -> str | None:
    """Readers in the user's code that return None, if an error says that something is None."""
    if not _NOTHING.search(text):
        return None
    names = {name for frame, _ in frames for name in frame.f_code.co_names if _is_user(frame)}
    return " or ".join(f"{name}()" for name in sorted(names & _RETURN_NONE)) or None


def _fake_path(
    error: BaseException, text: str, frames: list[tuple[types.FrameType, int]], files: Any
) -> str | None:
    """The fake file or folder that *error* names, or a file that the code there had in hand."""
    names = [getattr(error, "filename", None), *_QUOTED.findall(text), *text.split()]
    in_hand = [value for frame, _ in reversed(frames) for value in frame.f_locals.values()]
    for value in (*names, *in_hand):
        if isinstance(value, (str, bytes, os.PathLike)):
            path = os.fsdecode(value).rstrip(":,.")
            is_folder = value in names and os.sep in path and files.isdir(path)
            if path and (is_folder or files.isfile(path)):
                return path
    attributes = (each for each in _attributes_of(in_hand) if isinstance(each, (str, os.PathLike)))
    return next(
        (os.path.dirname(each) for each in attributes if files.isfile(os.fspath(each))), None
    )


def _attributes_of(values: list[Any]) -> Iterator[Any]:
    """What objects among *values* keep, in lists too: ``np.fromfile(self.paths[index])``."""
    for attribute in (each for value in values for each in getattr(value, "__dict__", {}).values()):
        yield from attribute[:_MAX_LISTED] if isinstance(attribute, (list, tuple)) else (attribute,)


def _is_user(frame: types.FrameType) -> bool:
    """Whether it is outside of libraries; code that C code compiled lacks an absolute path."""
    path = frame.f_code.co_filename
    return os.path.isabs(path) and not _LIBRARIES.match(path)


def _line(frames: list[tuple[types.FrameType, int]]) -> str:
    """The line of the user's code that called the reader."""
    user_frames = [frame for frame in frames if _is_user(frame[0])] or frames
    (summary,) = traceback.StackSummary.extract(iter(user_frames[-1:]))
    return f"`{summary.line}` ({os.path.basename(summary.filename)}, line {summary.lineno})"
