"""Which files are of one kind: an index, the shards, the pictures, their masks. Pure.

Some facts about kinds of files. A dataset that reads an index first never reads a shard where the
index cannot be read: under faults of all files at once, each trial ends at the index, and nobody
knows how the dataset takes a bad shard. What a file is for is written nowhere. But files of one
purpose have one extension; pictures and their masks lie in two folders under the same names; and an
index without an extension of its own is read by each worker, while the others read a sample each.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from pytest_dataloader_faults.outcomes.records import FileCounts

Uses = Mapping[int, Mapping[str, FileCounts]]
"""What each worker did to each file."""
_MOST = 3
_NUMBER = re.compile(r"\.?\d+$")


def kinds_of(used: Uses) -> list[set[str]]:
    """The kinds of the files that workers *used*, at most three; what was read most comes first.

    Where there are more, the last one is all that was read least.
    """
    paths = {path for files in used.values() for path in files}
    by_extension = _grouped((_extension(path), path) for path in paths)
    kinds = [kind for group in by_extension for kind in _by_folder(group) or _by_use(group, used)]
    kinds.sort(key=lambda kind: (-_bytes(kind, used), min(kind)))
    return [*kinds[: _MOST - 1], set().union(*kinds[_MOST - 1 :])] if len(kinds) > _MOST else kinds


def _extension(path: str) -> str:
    """Without a number: ``part.0`` and ``part.1`` are alike."""
    return os.path.splitext(_NUMBER.sub("", os.path.basename(path)))[1].lower()


def _by_folder(paths: set[str]) -> list[set[str]]:
    """Those of each folder, if two or three folders have files of the same names; else nothing."""
    folders = _grouped((os.path.dirname(path), path) for path in paths)
    names = {frozenset(map(_stem, folder)) for folder in folders}
    return folders if 1 < len(folders) <= _MOST and len(names) == 1 else []


def _by_use(paths: set[str], used: Uses) -> list[set[str]]:
    """The only file that each worker reads, and the others, where there is one such; else all."""
    users = [set(files) for files in used.values()]
    common = paths.intersection(*users) if len(users) > 1 else set()
    return [common, paths - common] if len(common) == 1 and len(paths) > 2 else [paths]  # noqa: PLR2004  # an index, and more than one other


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _grouped(pairs: Iterable[tuple[Hashable, str]]) -> list[set[str]]:
    groups: defaultdict[Hashable, set[str]] = defaultdict(set)
    for key, path in pairs:
        groups[key].add(path)
    return list(groups.values())


def _bytes(paths: set[str], used: Uses) -> int:
    return sum(
        counts.bytes for files in used.values() for path, counts in files.items() if path in paths
    )
