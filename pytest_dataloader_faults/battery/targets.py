"""Which files a fault can hit, as globs, and where a file could end and still look whole.

Some facts about such ends. A tar archive that ends where a member ends is a tar archive, and a text
that ends with a line is a text: a reader that reads to the end gets less and sees no error.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from pytest_dataloader_faults._settings import EVERY_FILE
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.globs import NETWORK, GlobMatcher, is_excluded, is_of_network
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.text import printable

_LISTED = 2
_LOOKED_AT = 1000
"""Files looked at in a folder, beyond twice those that are meant, to see if one glob will do."""


def shortest_globs(
    paths: tuple[str, ...], seen: set[str], asked: tuple[str, ...]
) -> tuple[str, ...]:
    """Globs for *paths*, some of the files *seen*, and for no other file that exists.

    Two paths are listed. More become the globs that were *asked* for, one glob for their common
    folder, or one for each folder, where that means the same.
    """
    names = tuple(glob.escape(path) for path in paths)
    if len(names) <= _LISTED:
        return names
    if asked != EVERY_FILE and means_only(asked, paths, seen):
        return asked
    if (common := _glob_of(os.path.commonpath(paths), paths, seen)) is not None:
        return (common,)
    folders = itertools.groupby(sorted(paths, key=os.path.dirname), os.path.dirname)
    return tuple(each for folder, among in folders for each in _in_folder(folder, [*among], seen))


def _in_folder(folder: str, paths: Collection[str], seen: set[str]) -> Iterable[str]:
    """One glob for those of *paths* that lie in *folder*, if that means only them; else each."""
    common = _glob_of(folder, paths, seen) if len(paths) > _LISTED else None
    return map(glob.escape, paths) if common is None else (common,)


def _glob_of(folder: str, paths: Collection[str], seen: set[str]) -> str | None:
    """The glob by *folder* and extension, if it means *paths* and no other file that exists."""
    found = _common_glob(paths, f"{glob.escape(folder)}/")
    existing = _files_below(folder, 2 * len(paths) + _LOOKED_AT)
    is_exact = existing is not None and means_only((found,), paths, existing | seen)
    return found if is_exact else None


def path_of(globs: tuple[str, ...]) -> str | tuple[str, ...]:
    """The glob, if it is one only: as a person would write it."""
    return globs[0] if len(globs) == 1 else globs


def short_globs(
    paths: Collection[str], seen: Collection[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """A glob for each of *paths*, and globs for all of them, wherever their folder lies.

    A glob is the end of a path, as long as that means one of the files *seen* only.
    """
    shared = Counter(ending for path in seen for ending in _endings(path))
    names = {path: _short_glob(path, shared) for path in paths}
    common = (_common_glob(paths),)
    is_exact = len(names) > 1 and means_only(common, paths, seen)
    return names, common if is_exact else tuple(names.values())


def means_only(globs: tuple[str, ...], paths: Iterable[str], others: Iterable[str]) -> bool:
    """Whether *globs* mean *paths* and none of the *others*."""
    return set(filter(GlobMatcher(globs), {*others, *paths})) == set(paths)


def _common_glob(paths: Iterable[str], folder: str = "") -> str:
    """A glob by the extension of *paths*, if all have the same."""
    extensions = {os.path.splitext(path)[1] for path in paths}
    return f"{folder}*{glob.escape(extensions.pop()) if len(extensions) == 1 else ''}"


def _endings(path: str) -> Iterator[str]:
    """The name, then the name with its folder, and so on."""
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))


def _short_glob(path: str, shared: Mapping[str, int]) -> str:
    """A glob of the shortest end of *path* that no other has; all of it if "*" leaves it out."""
    alone = (ending for ending in _endings(path) if shared[ending] == 1)
    ending = None if is_excluded(path) else next(alone, None)
    return glob.escape(path) if ending is None else f"*/{glob.escape(ending)}"


def _files_below(folder: str, most: int) -> set[str] | None:
    """The files in *folder* and below it; None if there are too many to look at."""
    paths = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    found = set(itertools.islice(paths, most))
    return found if len(found) < most else None


def existing_files(paths: Iterable[str], lasting: Collection[str] = ()) -> set[str]:
    """Those of *paths* that exist, or were *lasting* in a folder of the trial; all, if none did.

    A dataset may write temporary files and read them, and no other trial has the same ones.
    """
    seen = set(paths)
    return {path for path in seen if path in lasting or os.path.lexists(path)} or seen


def has_content(path: str) -> bool:
    """Whether the file is not empty, as far as can be seen."""
    with contextlib.suppress(OSError):
        return os.path.getsize(path) > 0
    return True


class Connections(NamedTuple):
    """TCP connections by their paths, and the globs that mean them."""

    paths: tuple[str, ...]
    globs: tuple[str, ...]


def connections_of(fault_free: Outcome, globs: tuple[str, ...]) -> Connections:
    """Those that the workers of *fault_free* made; none where *globs* mean only files."""
    asked = tuple(filter(is_of_network, globs))
    meant = (f"{NETWORK}*",) if globs == EVERY_FILE else asked
    made = {path for worker in fault_free.workers for path in worker.connections}
    return Connections(tuple(sorted(filter(GlobMatcher(meant), made))), meant)


def lasting_folders(paths: Iterable[str], within: Collection[str]) -> tuple[str, ...]:
    """The folders of *paths* that exist, or else those of *within* that the paths lie in.

    A temporary name may be another one each time, also that of a folder.
    """
    return tuple(dict.fromkeys(_lasting(os.path.dirname(path), within) for path in paths))


def _lasting(folder: str, within: Collection[str]) -> str:
    if folder in within or os.path.isdir(folder) or folder == os.path.dirname(folder):
        return folder
    return _lasting(os.path.dirname(folder), within)


def require_match(globs: tuple[str, ...], fault_free: Outcome) -> None:
    """Raise InvalidArgumentError if *globs* were given and one means no file of *fault_free*.

    One that is misspelt would otherwise go unnoticed beside another one.
    """
    used = fault_free.processes
    files = sorted({path for each in used for path in (*each.files, *each.connections)})
    dead = [each for each in globs if not any(map(GlobMatcher((each,)), files))]
    if not dead or globs == EVERY_FILE:
        return
    which = "" if len(dead) == len(globs) else f"{', '.join(map(repr, dead))} in "
    shown = ", ".join(map(printable, files[:5])) or "no data file at all"
    message = f"{which}files={globs!r} matches nothing that the workers read. They read: {shown}"
    raise InvalidArgumentError(message)


_LATEST = 0.9
"""What is missing is at least the last tenth, so that it is not a footer alone."""
_WINDOW = 1 << 16
_MOST_FILES = 8
_MOST_MEMBERS = 10_000
"""Members of an archive that are looked at: each takes a read."""


def truncation_points(paths: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Where each of the first few *paths* could end, in its first nine tenths, and look whole."""
    found = ((path, _end_of(path)) for path in paths)
    known = ((path, end) for path, end in found if end)
    return tuple(itertools.islice(known, _MOST_FILES))


def _end_of(path: str) -> int | None:
    with contextlib.suppress(OSError):  # The file is gone, or this process may not read it.
        return _member_in(path) or _line_in(path)
    return None


def _member_in(path: str) -> int | None:
    try:
        with tarfile.open(path, "r:") as archive:
            members = [member.offset for member in itertools.islice(archive, _MOST_MEMBERS + 1)]
            starts, whole = members[1:], archive.offset
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
    try:
        text = window.decode("utf-8", "ignore" if len(window) == _WINDOW else "strict")
    except UnicodeDecodeError as error:
        return error.start > len(window) - 4 and _is_text(window[: error.start])
    return all(letter.isprintable() or letter in "\t\r\n\f\ufeff" for letter in text)
