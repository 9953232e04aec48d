"""Files in the place of files, so that these are never touched [runs in the worker]."""

from __future__ import annotations

import os
from tempfile import gettempdir
from typing import Any

from pytest_dataloader_faults._engine.file_copies import NOTICE, FileEdit, flipped

_CHUNK = 1 << 22
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def altered_copy(
    system: Any, path: str, alteration: FileEdit, flags: int, *, source: str | None = None
) -> int:
    """A descriptor of a nameless file that is *path*, as *alteration* says.

    It may be read and written as *flags* say. *source*: another name, under which *path* is open.
    """
    size = system.stat(source or path).st_size
    kept = size if alteration.kept is None else min(size, alteration.kept)

    def fill(to: int) -> None:
        _copy(system, source or path, kept, to)
        for flips, seed in alteration.flips:
            for place, mask in flipped(os.path.basename(path), size, flips, seed).items():
                if place < kept:
                    byte = system.pread(to, 1, place)[0]
                    system.pwrite(to, bytes([byte ^ mask]), place)

    return _made(system, flags, fill)


def stranger(system: Any, path: str, flags: int) -> int:
    """A descriptor of a nameless file as long as *path*, which has nothing to do with it."""
    size = system.stat(path).st_size

    def fill(to: int) -> None:
        system.write(to, NOTICE[:size])
        system.ftruncate(to, size)

    return _made(system, flags, fill)


def _made(system: Any, flags: int, fill: Any) -> int:
    written, name = _nameless(system) if hasattr(system, "memfd_create") else _named(system)
    try:
        fill(written)
        return int(system.open(name, flags & _ACCESS | _CLOSE_ON_EXEC))
    finally:
        system.close(written)
        if not name.startswith("/proc/"):
            system.unlink(name)


def _nameless(system: Any) -> tuple[int, str]:
    fd = system.memfd_create("pytest-dataloader-faults")
    return fd, f"/proc/self/fd/{fd}"


def _named(system: Any) -> tuple[int, str]:
    folder = system.scratch() if hasattr(system, "scratch") else gettempdir()
    name = os.path.join(folder, f"pytest-dataloader-faults-{os.urandom(8).hex()}")
    return system.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), name


def _copy(system: Any, path: str, length: int, to: int) -> None:
    source = system.open(path, os.O_RDONLY)
    try:
        while length and (chunk := system.read(source, min(length, _CHUNK))):
            length -= len(chunk)
            while chunk:
                chunk = chunk[system.write(to, chunk) :]
    finally:
        system.close(source)
