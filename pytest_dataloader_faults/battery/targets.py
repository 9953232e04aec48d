"""Which files a fault can hit, as globs, which of them change, and where a file could end."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_dataloader_faults._settings import EVERY_FILE
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_below, is_excluded
from pytest_dataloader_faults.outcomes import FileCounts, Outcome, Reference, WorkerFacts
from pytest_dataloader_faults.outcomes.text import pluralize, printable

# Some facts about files that are truncated and still look complete. A tar archive that ends after a
# member is a valid tar archive, and a text file that ends after a line is a valid text file. So it
# is with streams of records: gzip members, pickles, batches of Arrow, and TFRecord, whose records
# begin with their length. A reader that reads to the end gets less data without an error. A place
# that only looks like the start of a record does no harm: it is one more place to cut the file.


class OwnFolders(NamedTuple):
    """The folders that only one trial uses, and the folder of which they are copies, if any."""

    paths: tuple[str, ...] = ()
    copied: str | None = None

    def original(self, path: str) -> str:
        """The file of which *path* is a copy; *path* itself if it is outside these folders."""
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
_MOST_FILES_IN_FOLDER = 1000
"""In addition to twice the number of targets, this many files are listed to test a glob."""


def shortest_globs(
    paths: tuple[str, ...], known_paths: set[str], globs: tuple[str, ...]
) -> tuple[str, ...]:
    """Globs that match *paths*, which are among *known_paths*, but no other existing file.

    Up to two paths are listed. More become the requested *globs*, one glob for their common folder,
    or one for each folder, if these match the same files.
    """
    names = tuple(glob.escape(path) for path in paths)
    if len(names) <= _LISTED:
        return names
    if globs != EVERY_FILE and _matches_only(globs, paths, known_paths):
        return globs
    if (common := _glob_of(os.path.commonpath(paths), paths, known_paths)) is not None:
        return (common,)
    folders = itertools.groupby(sorted(paths, key=os.path.dirname), os.path.dirname)
    return tuple(
        each for folder, among in folders for each in _glob_folder(folder, [*among], known_paths)
    )


def _glob_folder(folder: str, paths: Collection[str], known_paths: set[str]) -> Iterable[str]:
    """One glob for the *paths* in *folder*, if it matches only them; else one for each path."""
    common = _glob_of(folder, paths, known_paths) if len(paths) > _LISTED else None
    return map(glob.escape, paths) if common is None else (common,)


def _glob_of(folder: str, paths: Collection[str], known_paths: set[str]) -> str | None:
    """A glob by *folder* and extension, or by name, that matches only *paths*, or None.

    With an empty *folder*, it matches files in any folder. Then only *known_paths* are compared.
    """
    existing = _files_below(folder, 2 * len(paths) + _MOST_FILES_IN_FOLDER) if folder else set()
    if existing is None:
        return None
    extensions = {os.path.splitext(path)[1] for path in paths}
    extension = glob.escape(extensions.pop()) if len(extensions) == 1 else ""
    by_extension = f"{os.path.join(glob.escape(folder), '')}*{extension}"
    candidates = (by_extension, *_glob_by_name(paths, folder))
    return next(
        (each for each in candidates if _matches_only(each, paths, existing | known_paths)), None
    )


def path_of(globs: tuple[str, ...]) -> str | tuple[str, ...]:
    """*globs* as a person would write them: a single glob without a tuple."""
    return globs[0] if len(globs) == 1 else globs


def portable_globs(
    paths: Collection[str], known_paths: set[str]
) -> tuple[dict[str, str], str | tuple[str, ...]]:
    """A glob for each of *paths*, and one or several for all of them, whatever their folder.

    A glob is the shortest end of the path that matches only one of *known_paths*.
    """
    shared = Counter(ending for path in known_paths for ending in _list_endings(path))
    names = {path: _short_glob(path, shared) for path in paths}
    common = _glob_of("", paths, known_paths) if len(names) > 1 else None
    return names, path_of(tuple(names.values())) if common is None else common


def _matches_only(
    globs: str | tuple[str, ...], paths: Iterable[str], other_paths: Iterable[str]
) -> bool:
    """Whether *globs* match *paths* but none of the *other_paths*."""
    is_meant = GlobMatcher((globs,) if isinstance(globs, str) else globs)
    return set(filter(is_meant, {*other_paths, *paths})) == set(paths)


def _glob_by_name(paths: Iterable[str], folder: str) -> tuple[str, ...]:
    """A glob by the names of *paths* in *folder*, if these differ only in digits."""
    names = {
        re.sub(r"\d+", "*", glob.escape(os.path.basename(path)))
        for path in paths
        if os.path.dirname(path) == folder
    }
    return tuple(f"{glob.escape(folder)}/{name}" for name in names) if len(names) == 1 else ()


def _list_endings(path: str) -> Iterator[str]:
    """The name, then the name with its folder, and so on."""
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))


def _short_glob(path: str, shared: Mapping[str, int]) -> str:
    """A glob of the shortest unique end of *path*; the full path if "*" does not match it."""
    alone = (ending for ending in _list_endings(path) if shared[ending] == 1)
    ending = None if is_excluded(path) else next(alone, None)
    return glob.escape(path) if ending is None else f"*/{glob.escape(ending)}"


def _files_below(folder: str, limit: int) -> set[str] | None:
    """The files in *folder* and below it; None if there are *limit* or more."""
    paths = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    paths_below = set(itertools.islice(paths, limit))
    return paths_below if len(paths_below) < limit else None


def existing_files(
    paths: Iterable[str], lasting: Collection[str] = (), scratch: Collection[str] = ()
) -> set[str]:
    """The *paths* that exist, or that were *lasting* in a folder of the trial; all if none did.

    A dataset may write temporary files and read them. Other trials do not have the same ones, even
    if they remain, such as *scratch* files.
    """
    path_set = set(paths)
    existing_paths = {path for path in path_set if path in lasting or os.path.lexists(path)}
    return existing_paths.difference(scratch) or existing_paths or path_set


def has_content(path: str) -> bool:
    """Whether the file has content; True if its size cannot be read."""
    with contextlib.suppress(OSError):
        return os.path.getsize(path) > 0
    return True


def lasting_folders(paths: Iterable[str], within: Collection[str]) -> tuple[str, ...]:
    """The folders of *paths* that exist, or else those of *within* that contain the paths.

    Temporary names, including those of folders, can differ each time.
    """
    return tuple(
        dict.fromkeys(_find_lasting_folder(os.path.dirname(path), within) for path in paths)
    )


def _find_lasting_folder(folder: str, within: Collection[str]) -> str:
    if folder in within or os.path.isdir(folder) or folder == os.path.dirname(folder):
        return folder
    return _find_lasting_folder(os.path.dirname(folder), within)


def require_match(globs: tuple[str, ...], fault_free: Outcome) -> None:
    """Raise InvalidArgumentError if one of *globs* matches no file of *fault_free*.

    Otherwise a misspelled glob would go unnoticed next to a correct one.
    """
    processes = fault_free.processes
    files = sorted({path for each in processes for path in (*each.files, *each.addresses)})
    dead = [each for each in globs if not any(map(GlobMatcher((each,)), files))]
    if not dead or globs == EVERY_FILE:
        return
    subset = "" if len(dead) == len(globs) else f"{', '.join(map(repr, dead))} in "
    file_list = ", ".join(map(printable, files[:5])) or "no data file"
    readers = "the constructor or the workers" if fault_free.main else "the workers"
    message = f"{subset}files={globs!r} matches nothing that {readers} read"
    raise InvalidArgumentError(f"{message}. They read: {file_list}")


_LATEST = 0.9
"""At least the last tenth is missing, so that more than a footer is missing."""
_WINDOW = 1 << 16
_MOST_FILES = 8
_MOST_MEMBERS = 10_000
"""Members of an archive, or records, that are checked: each takes a read."""
_MARK = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08[\x00-\x1f])|(?P<zstd>\x28\xb5\x2f\xfd)"
    rb"|(?P<pickle>(?<![^.])\x80[\x02-\x05])|(?P<arrow>\xff{4}..\x00\x00.\x00{3})",
    re.DOTALL,
)
"""What each record of these formats begins with."""
_LENGTHS: tuple[tuple[int, Any, int], ...] = (
    (8, "little", 16),
    *((width, order, width) for width in (4, 8) for order in ("little", "big")),
)
"""The length at the start of a record: its width, its order, and the bytes that it leaves out.

The first one is TFRecord's, which adds two checksums.
"""


def truncation_points(
    paths: Iterable[str], own_folders: OwnFolders = _NO_FOLDERS
) -> tuple[tuple[str, int], ...]:
    """Offsets at which the first few *paths* could end and look complete, without the last tenth.

    *own_folders*: folders of a finished trial, instead of whose files the originals are read.
    """
    ends = ((path, _end_of(own_folders.original(path))) for path in paths)
    points = ((path, end) for path, end in ends if end)
    return tuple(itertools.islice(points, _MOST_FILES))


def _end_of(path: str) -> int | None:
    with contextlib.suppress(OSError):  # The file was removed, or this process may not read it.
        return _member_in(path) or _line_in(path) or _mark_in(path) or _record_in(path)
    return None


def _member_in(path: str) -> int | None:
    try:
        with tarfile.open(path, "r:") as archive:
            members = [member.offset for member in itertools.islice(archive, _MOST_MEMBERS + 1)]
            starts, end = members[1:], archive.offset
    except (tarfile.TarError, EOFError):
        return None
    return max((start for start in starts if start <= end * _LATEST), default=None)


def _mark_in(path: str) -> int | None:
    latest = int(os.path.getsize(path) * _LATEST)
    with open(path, "rb") as file:
        first = _MARK.match(file.read(16))
        file.seek(max(0, latest - _WINDOW))
        start, window = file.tell(), file.read(min(latest, _WINDOW))
    marks = (each for each in _MARK.finditer(window) if first and each.lastgroup == first.lastgroup)
    return max((start + each.start() for each in marks), default=None)


def _record_in(path: str) -> int | None:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for width, order, more in _LENGTHS:
            starts = [0]
            while starts[-1] < size and len(starts) <= _MOST_MEMBERS:
                file.seek(starts[-1])
                length = int.from_bytes(file.read(width), order)
                starts.append(starts[-1] + length + more if length else size + 1)
            if starts[-1] == size:
                return max(start for start in starts if start <= size * _LATEST)
    return None


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


# Some facts about caches. The first pass fills a cache, usually when the reference is taken, before
# workers exist. From then on, workers read only the cache. So the plugin compares the last change
# of each file that the workers read in the fault-free run with the start of that run. It uses ctime
# because a program can set mtime. Timestamps of files are a few milliseconds behind the clock and
# never ahead, so files that a test wrote just before do not count as a cache. The clock of a file
# server can be ahead, and then they do. Therefore the note only says what was observed, and does
# not affect verdicts. A cache that an earlier run has filled looks like any other file.


_SHOWN = 3


def find_new_files(began: int, fault_free: Outcome) -> tuple[str, ...]:
    """The files that the workers of *fault_free* read and that changed after *began*, in ns."""
    items = (each for worker in fault_free.workers for each in worker.files.items())
    read = {path for path, counts in items if counts.reads}
    return tuple(path for path in sorted(read) if last_change(path) > began)


def note_on_workers(reference: Reference) -> Iterator[str]:
    """A note that trials have workers, if the user's loader has none."""
    if reference.lacks_workers:
        yield "its loader has num_workers=0: the checks added workers, because faults fire in them"


def notes_on_changed(changed: Collection[str], fault_free: Outcome) -> tuple[str, ...]:
    """Notes about the files that *changed* while the dataset was read, with advice.

    The workers of *fault_free* wrote to some of them, which may be data that is open for writing.
    """
    written = sorted({*changed} & paths_with(fault_free.workers, "writes"))
    created = sorted({*changed} - {*written})
    notes = []
    if written:
        notes.append(
            f"the workers read and write {pluralize(len(written), 'file')} ({names_of(written)})."
            " Open data for reading (mode='r'), because a library that opens an empty file for"
            " writing treats it as a new one. If it is a cache, let make_dataset take a folder, and"
            " put the cache there"
        )
    if created:
        were = "was" if len(created) == 1 else "were"
        notes.append(
            f"{pluralize(len(created), 'file')} that the workers read ({names_of(created)}) {were}"
            " created or changed after the first read, like a cache. Faults hit the files that are"
            " read, not the sources of a cache. To test the dataset without its cache, let"
            " make_dataset take a folder, and put the cache there"
        )
    return tuple(notes)


def paths_with(processes: Iterable[WorkerFacts], did: str) -> set[str]:
    """The files to which *processes* did that: a field of ``FileCounts``."""
    items = (item for each in processes for item in each.files.items())
    return {path for path, counts in items if getattr(counts, did)}


def last_change(path: str) -> int:
    """When the file was last changed, in ns; 0 if that is unknown."""
    with contextlib.suppress(OSError):  # It was removed: a temporary file, or one of another trial.
        return os.stat(path).st_ctime_ns
    return 0


def names_of(paths: Sequence[str]) -> str:
    """The first of *paths*, each with its folder."""
    names = ["/".join(path.split("/")[-2:]) for path in paths[:_SHOWN]]
    return printable(", ".join([*names, *(["..."] if len(paths) > _SHOWN else [])]))


# Some facts about kinds of files. A dataset that reads an index first never reads a shard if the
# index cannot be read. If a fault hit all files at once, each trial would end at the index, and the
# effect of a damaged shard would remain unknown. Files do not say what they are for. But files with
# the same purpose have the same extension. Images and their masks are in two folders, under the
# same names. The names of a shard's arrays differ in more than the number of the shard. An index
# without a separate extension is read by every worker, while other files are read for one sample.
# If several files are, because a file has several samples, the index is opened for each of them, or
# its name is the only one without a number. Names can also be arbitrary, such as those of people:
# then there are many, with one file each.


_Uses = Mapping[int | None, Mapping[str, FileCounts]]
"""What each worker did to each file."""
_MOST_KINDS = 4
_NUMBER = re.compile(r"\.?\d+$")
_DIGITS = re.compile(r"\d+")


def kinds_of(uses: _Uses) -> list[set[str]]:
    """The kinds of the files in *uses*, at most four, ordered by the bytes that were read.

    If there are more, the last one combines the kinds of which the least was read.
    """
    paths = {path for files in uses.values() for path in files}
    by_extension = _group_paths((_extension(path), path) for path in paths)
    kinds = [
        kind
        for group in by_extension
        for kind in _group_by_folder(group) or _group_by_name(group) or _group_by_use(group, uses)
    ]
    kinds.sort(key=lambda kind: (-_count_bytes(kind, uses), min(kind)))
    first, rest = kinds[: _MOST_KINDS - 1], kinds[_MOST_KINDS - 1 :]
    return [*first, set().union(*rest)] if rest else first


def titles_of(kinds: Sequence[Collection[str]]) -> list[str]:
    """Each of the *kinds* in a few words: a file, with its folder if it would be ambiguous."""
    paths = [min(kind, key=lambda path: (os.path.basename(path), path)) for kind in kinds]
    names = [_short_name(path, paths) for path in paths]
    counts = [len(kind) - 1 for kind in kinds]
    return [
        f"{name} and {pluralize(count, 'file')} like it" if count else name
        for name, count in zip(names, counts, strict=True)
    ]


def _short_name(path: str, paths: Collection[str]) -> str:
    """The shortest end of *path* that no other one of *paths* has."""
    parts = path.split(os.sep)
    ends = (os.sep.join(parts[-count:]) for count in range(1, len(parts)))
    return next((end for end in ends if _count_ends(end, paths) == 1), path)


def _count_ends(end: str, paths: Collection[str]) -> int:
    return sum(path.endswith(os.sep + end) for path in paths)


def _extension(path: str) -> str:
    """The extension without a number: ``part.0`` and ``part.1`` have the same."""
    return os.path.splitext(_NUMBER.sub("", os.path.basename(path)))[1].lower()


def _group_by_folder(paths: set[str]) -> list[set[str]]:
    """One kind per folder, if two to four folders have files of the same names; else nothing."""
    folders = _group_paths((os.path.dirname(path), path) for path in paths)
    names = {frozenset(map(_stem, folder)) for folder in folders}
    return folders if 1 < len(folders) <= _MOST_KINDS and len(names) == 1 else []


def _group_by_name(paths: set[str]) -> list[set[str]]:
    """One kind for names that differ only in digits, if there are few kinds; else nothing.

    Each kind must have several files, but for a single index, or there must be a file of each kind
    for each number.
    """
    kinds = _group_paths((_DIGITS.sub("0", os.path.basename(path)), path) for path in paths)
    numbers = [{tuple(_DIGITS.findall(os.path.basename(path))) for path in kind} for kind in kinds]
    sizes = sorted(map(len, kinds))
    has_several = all(size > 1 for size in sizes[1:])
    is_complete = all(each == numbers[0] and all(each) for each in numbers)
    return kinds if 1 < len(kinds) <= _MOST_KINDS and (has_several or is_complete) else []


def _group_by_use(paths: set[str], uses: _Uses) -> list[set[str]]:
    """The index of the other files, which every worker reads; else all files as one kind.

    It is the only file that all of them read, or the one that each of them opens most often.
    """
    users = [{path: files[path].opens for path in paths & files.keys()} for files in uses.values()]
    common = set(users[0]).intersection(*users) if len(users) > 1 else set()
    if len(common) > 1:
        common = {path for path in common if all(_is_most(path, opens) for opens in users)}
    return [common, paths - common] if len(common) == 1 and len(paths) > 2 else [paths]  # noqa: PLR2004  # an index, and more than one other


def _is_most(path: str, opens: Mapping[str, int]) -> bool:
    return all(opens[path] > count for other, count in opens.items() if other != path)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _group_paths(pairs: Iterable[tuple[Hashable, str]]) -> list[set[str]]:
    groups: defaultdict[Hashable, set[str]] = defaultdict(set)
    for key, path in pairs:
        groups[key].add(path)
    return list(groups.values())


def _count_bytes(paths: set[str], uses: _Uses) -> int:
    return sum(
        counts.bytes for files in uses.values() for path, counts in files.items() if path in paths
    )
