"""Which of the files that workers use are of one kind, such as images and their masks. Pure."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from pytest_dataloader_faults.outcomes import FileCounts
from pytest_dataloader_faults.outcomes.text import pluralize

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
_MOST = 4
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
    kinds.sort(key=lambda kind: (-_bytes(kind, uses), min(kind)))
    return [*kinds[: _MOST - 1], set().union(*kinds[_MOST - 1 :])] if len(kinds) > _MOST else kinds


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
    return folders if 1 < len(folders) <= _MOST and len(names) == 1 else []


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
    return kinds if 1 < len(kinds) <= _MOST and (has_several or is_complete) else []


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


def _bytes(paths: set[str], uses: _Uses) -> int:
    return sum(
        counts.bytes for files in uses.values() for path, counts in files.items() if path in paths
    )
