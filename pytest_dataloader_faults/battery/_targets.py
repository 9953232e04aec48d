"""Which files are put at risk: what users say, and globs for exactly what recon chose.

Where a file could end, and would not look shorter than it should be.

A tar archive that ends where a member ends is a tar archive, and a text that ends with a line is a
text: whoever reads to the end reads less and sees no error.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults._globs import GlobMatcher
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes._text import printable

Files: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

EVERY_FILE = ("*",)
_LISTED = 4
_LOOKED_AT = 1000
"""Files looked at in a folder, beyond twice those that are meant, to see if one glob will do."""


def globs_of(files: Files | None) -> tuple[str, ...]:
    """*files* as globs; every file if there are none given."""
    if files is None:
        return EVERY_FILE
    given: Any = (files,) if isinstance(files, (str, os.PathLike)) else files
    try:
        globs = tuple(map(os.fspath, given))
    except TypeError:
        globs = ()
    if not globs or not all(isinstance(each, str) and each for each in globs):
        message = (
            f"files={files!r} must be a glob or a list of globs, such as '*.jpg' or"
            " ['*.jpg', '*.json'], or None for every file"
        )
        raise InvalidArgumentError(message)
    return globs


def globs_for(paths: tuple[str, ...], seen: set[str], asked: tuple[str, ...]) -> tuple[str, ...]:
    """Globs for *paths*, some of the files *seen*, and for no other file that exists.

    They are listed, unless they are many and the globs that were *asked* for, or one for their
    folder, mean the same.
    """
    names = tuple(glob.escape(path) for path in paths)
    if len(names) <= _LISTED:
        return names
    if asked != EVERY_FILE and set(filter(GlobMatcher(asked), seen)) == set(paths):
        return asked
    folder = _folder(paths)
    return (folder,) if _means_only(folder, paths, seen) else names


def _folder(paths: tuple[str, ...]) -> str:
    ends = {os.path.splitext(path)[1] for path in paths}
    end = ends.pop() if len(ends) == 1 else ""
    return f"{glob.escape(os.path.commonpath(paths))}/*{glob.escape(end)}"


def _means_only(pattern: str, paths: tuple[str, ...], seen: set[str]) -> bool:
    """Whether *pattern* means none but *paths*. Of a folder too large to look through: no."""
    meant, matches = set(paths), GlobMatcher((pattern,))
    limit = 2 * len(paths) + _LOOKED_AT
    there = list(itertools.islice(_files_below(os.path.commonpath(paths)), limit))
    if len(there) == limit:
        return False
    return not any(matches(path) for path in {*there, *seen} - meant)


def _files_below(folder: str) -> Iterator[str]:
    for where, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(where, name)


def lasting(control: Outcome, matches: Callable[[str], bool]) -> Callable[[str], bool]:
    """*matches*, but not files that are gone by now, if there are others: no trial has them again.

    A dataset may write temporary files and read them.
    """
    seen = {path for worker in control.workers for path in worker.files if matches(path)}
    there = {path for path in seen if os.path.lexists(path)}
    return (there or seen).__contains__


def nothing_matches(globs: tuple[str, ...], control: Outcome) -> str:
    """What to say of *globs* that mean no file that the workers read in *control*."""
    files = sorted({path for worker in control.workers for path in worker.files})
    shown = ", ".join(map(printable, files[:5])) or "no data file at all"
    return f"files={globs!r} matches nothing that the workers read. They read: {shown}"


_LATEST = 0.9
"""What is missing is at least the last tenth, so that it is not a footer alone."""
_WINDOW = 1 << 16
_MOST_FILES = 8


def ends_of(paths: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """For the first of *paths* that have such a place, the last one in the first nine tenths."""
    found = ((path, _end_of(path)) for path in paths)
    known = [(path, end) for path, end in found if end]
    return tuple(known[:_MOST_FILES])


def _end_of(path: str) -> int | None:
    with contextlib.suppress(OSError):  # It is gone, or was never this process's to read.
        return _member_in(path) or _line_in(path)
    return None


def _member_in(path: str) -> int | None:
    try:
        with tarfile.open(path, "r:") as archive:
            starts = [member.offset for member in archive][1:]
            whole = archive.offset
    except (tarfile.TarError, EOFError):
        return None
    return max((start for start in starts if start <= whole * _LATEST), default=None)


def _line_in(path: str) -> int | None:
    latest = int(os.path.getsize(path) * _LATEST)
    with open(path, "rb") as file:
        start = max(0, latest - _WINDOW)
        file.seek(start)
        window = file.read(latest - start)
    return start + window.rfind(b"\n") + 1 if b"\n" in window and _is_text(window) else None


def _is_text(window: bytes) -> bool:
    cut = window[_WINDOW - len(window) and 0 :]
    try:
        text = cut.decode("utf-8", "ignore" if len(window) == _WINDOW else "strict")
    except UnicodeDecodeError as error:
        return error.start > len(window) - 4 and _is_text(window[: error.start])
    return all(letter.isprintable() or letter in "\t\r\n\f\ufeff" for letter in text)
