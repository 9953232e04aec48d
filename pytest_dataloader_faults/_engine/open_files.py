"""What a process has open already when it is armed [runs in the DataLoader worker]."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_STANDARD_STREAMS = (0, 1, 2)


@dataclass(frozen=True)
class MemoryMapping:
    """One line of /proc/self/maps that is a file's."""

    start: int
    length: int
    protection: int
    offset: int
    path: str


def held_files(matches: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Descriptors of matching files that are open already."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # The one that listed the folder.
            continue
        if int(name) in _STANDARD_STREAMS:
            continue  # Where a test's output goes is no dataset's.
        if _is_there(path) and matches(path) and _is_regular(int(name)):
            yield int(name), path


def _is_there(path: str) -> bool:
    """Whether *path*, as /proc gives it, is that of a file that has its name still."""
    return path.startswith("/") and not path.endswith(" (deleted)")


def _is_regular(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def mapped_files() -> Iterator[MemoryMapping]:
    """Each stretch of memory that is a file's, where the file has its name still."""
    with open("/proc/self/maps", "rb") as lines:  # Only \n ends a line; \r may be in a name.
        for line in map(os.fsdecode, lines):
            span, rights, offset, _device, _inode, *rest = line.rstrip("\n").split(maxsplit=5)
            if rest and _is_there(rest[0]):
                start, end = (int(number, 16) for number in span.split("-"))
                bits = (bit for bit, right in zip((1, 2, 4), rights, strict=False) if right != "-")
                path = _with_newlines(rest[0])
                yield MemoryMapping(start, end - start, sum(bits), int(offset, 16), path)


def _with_newlines(path: str) -> str:
    r"""*path* as it is: the kernel writes \012 for a newline here, but a backslash as it is."""
    return path if os.path.lexists(path) else path.replace(r"\012", "\n")
