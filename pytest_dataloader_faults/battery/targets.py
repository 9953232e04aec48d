"""Which files a fault can hit, as globs, which of them change, and where a file could end.

Some facts about ends at which a file still looks whole. A tar archive that ends where a member ends
is a tar archive, and a text that ends with a line is a text: a reader that reads to the end gets
less and sees no error.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pytest_dataloader_faults._settings import EVERY_FILE
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.globs import (
    NETWORK,
    GlobMatcher,
    is_below,
    is_excluded,
    is_of_network,
)
from pytest_dataloader_faults.outcomes import Outcome, WorkerFacts
from pytest_dataloader_faults.outcomes.text import counted, printable


class OwnFolders(NamedTuple):
    """The folders that a trial has for itself, and the folder of which they are copies, if any."""

    paths: tuple[str, ...] = ()
    copied: str | None = None

    def original(self, path: str) -> str:
        """The file that *path* is a copy of; *path* itself if it is outside of these folders."""
        above = next((each for each in self.paths if is_below(path, [each])), None)
        if self.copied is None or above is None:
            return path
        return os.path.join(self.copied, os.path.relpath(path, above))

    def is_made_by_dataset(self, path: str) -> bool:
        """Whether the dataset has put *path* into one of them."""
        return is_below(path, self.paths) and not (
            self.copied is not None and os.path.lexists(self.original(path))
        )


_NO_FOLDERS = OwnFolders()
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
    """A glob by *folder* and extension, or by name, that means *paths* and no other file."""
    existing = _files_below(folder, 2 * len(paths) + _LOOKED_AT)
    if existing is None:
        return None
    found = (_common_glob(paths, f"{glob.escape(folder)}/"), *_glob_by_name(paths, folder))
    return next((each for each in found if means_only((each,), paths, existing | seen)), None)


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


def _glob_by_name(paths: Iterable[str], folder: str) -> tuple[str, ...]:
    """A glob by the names of *paths* in *folder*, if these differ only in digits."""
    names = {
        re.sub(r"\d+", "*", glob.escape(os.path.basename(path)))
        for path in paths
        if os.path.dirname(path) == folder
    }
    return tuple(f"{glob.escape(folder)}/{name}" for name in names) if len(names) == 1 else ()


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


def scratch_files(fault_free: Outcome, own: OwnFolders) -> set[str]:
    """Temporary files that a worker made and left: another trial makes others.

    A folder of the trial's *own* begins empty, so files with the same names come again there.
    """
    left = {path for worker in fault_free.workers for path in worker.leftover_files}
    return {path for path in left if not is_below(path, own.paths)}


def existing_files(
    paths: Iterable[str], lasting: Collection[str] = (), scratch: Collection[str] = ()
) -> set[str]:
    """Those of *paths* that exist, or were *lasting* in a folder of the trial; all, if none did.

    A dataset may write temporary files and read them, and no other trial has the same ones, even if
    they stay, as *scratch* does.
    """
    seen = set(paths)
    last = {path for path in seen if path in lasting or os.path.lexists(path)}
    return last.difference(scratch) or last or seen


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


def truncation_points(
    paths: Iterable[str], own: OwnFolders = _NO_FOLDERS
) -> tuple[tuple[str, int], ...]:
    """Where each of the first few *paths* could end, in its first nine tenths, and look whole.

    *own*: folders of a trial that is over, whose files are looked at where they were copied from.
    """
    found = ((path, _end_of(own.original(path))) for path in paths)
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


# Some facts about what can be seen of a cache. The first reading fills it, which is mostly that of
# the reference, before there is any worker; from then on workers read the cache alone. So each
# file that the workers read without a fault is asked when it was changed last, and that is compared
# with the time at which the baseline began. The time is ctime, since a program may set mtime to
# what it likes. The stamps of files are a few milliseconds behind that time, and never ahead: what
# a test wrote just before is not taken for a cache. The clock of a file server may be ahead, and
# then it is. So the text says what was seen, and no verdict depends on it. A cache that an earlier
# run has filled cannot be told from any other file.


_SHOWN = 3
_TAKE_FOLDER = (
    "To try the dataset without its cache, have make_dataset take a folder, and put the cache there"
)
BY_FACTORY = "make_dataset writes or touches the files that it reads"
BY_WORKERS = "the workers write or touch the files that they read"
_REMEDIES = {
    BY_FACTORY: "Write them before, as in a fixture, so that make_dataset only opens them",
    BY_WORKERS: "Have the workers leave the data files as they are",
}


def files_made_since(began: int, fault_free: Outcome) -> tuple[str, ...]:
    """The files that the workers of *fault_free* read and that changed after *began*, in ns."""
    is_python = fault_free.engine == "python"  # It does not see what C reads, but most opens.
    every = (each for worker in fault_free.workers for each in worker.files.items())
    read = {path for path, counts in every if counts.reads or (is_python and counts.opens)}
    return tuple(path for path in sorted(read) if _last_change(path) > began)


def note_on_cache(made: Sequence[str]) -> str:
    """What to say about the files that were *made*, and what to do."""
    files, were = ("file", "was") if len(made) == 1 else ("files", "were")
    return (
        f"{len(made)} {files} that the workers read ({_names(made)}) {were} made or changed after"
        " the first reading began, as a cache is. Faults happen to files that are read, and not to"
        f" the sources of a cache. {_TAKE_FOLDER}"
    )


@dataclass(frozen=True)
class FollowedRun:
    """An epoch without a fault, in which files are followed from the constructor on. Plain data.

    What a run rewrites, or makes in a folder of its own, cannot be bad when the next one begins.

    Attributes:
        outcome: Its facts, without these files.
        rewritten: Those of them that it read, but for *own*.
        own: Those that it read in a folder of its own.
        writer: BY_FACTORY or BY_WORKERS.
    """

    outcome: Outcome
    rewritten: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    writer: str = BY_FACTORY

    @classmethod
    def of(cls, run: Outcome, began: int, folders: OwnFolders) -> FollowedRun:
        """What *run* shows, which *began* at that time, in ns, with *folders* of its own."""
        used = {path for each in run.processes for path in each.files}
        own = set(filter(folders.is_made_by_dataset, used))
        changed = {path for path in used - own if _last_change(folders.original(path)) > began}
        without = partial(_without, own | changed)
        main = None if run.main is None else without(run.main)
        kept = replace(run, main=main, workers=tuple(map(without, run.workers)))
        read, written = _paths(run.processes, "reads"), _paths(run.workers, "writes")
        by_main = _paths([run.main] if run.main else [], "writes")
        is_by_workers = (own | changed) & read <= written - by_main
        writer = BY_WORKERS if is_by_workers else BY_FACTORY
        return cls(kept, tuple(sorted(changed & read)), tuple(sorted(own & read)), writer)

    def refusal(self, globs: tuple[str, ...]) -> tuple[str, str] | None:
        """Why no file that *globs* mean can be damaged beforehand, and what to do; or None."""
        is_meant = GlobMatcher(globs)
        meant = tuple(filter(is_meant, (*self.rewritten, *self.own)))
        if not meant or any(map(is_meant, _paths(self.outcome.processes, "reads"))):
            return None
        why = f"{self.writer} ({_names(meant)}), so they cannot be damaged before it is called"
        return why, _REMEDIES[self.writer]

    def notes(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """What to say where others than these can be damaged beforehand."""
        meant = tuple(filter(GlobMatcher(globs), self.rewritten))
        if not meant:
            return ()
        which = f"{counted(len(meant), 'file')} that each run writes ({_names(meant)})"
        return (f"{which} cannot be damaged before make_dataset() is called",)


def _without(paths: Collection[str], process: WorkerFacts) -> WorkerFacts:
    files = {path: counts for path, counts in process.files.items() if path not in paths}
    return replace(process, files=files)


def _paths(processes: Iterable[WorkerFacts], did: str) -> set[str]:
    """The files to which *processes* did that: a field of ``FileCounts``."""
    every = (item for each in processes for item in each.files.items())
    return {path for path, counts in every if getattr(counts, did)}


def _last_change(path: str) -> int:
    with contextlib.suppress(OSError):  # It is gone: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def _names(paths: Sequence[str]) -> str:
    """The first of *paths*, each with its folder."""
    names = ["/".join(path.split("/")[-2:]) for path in paths[:_SHOWN]]
    return printable(", ".join([*names, *(["..."] if len(paths) > _SHOWN else [])]))
