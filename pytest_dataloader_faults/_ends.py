"""Where a file could end, and would not look shorter than it should be.

A tar archive that ends where a member ends is a tar archive, and a text that ends with a line is a
text: whoever reads to the end reads less and sees no error.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterable

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
