"""A copy of a file's beginning, so that the file itself is never touched [runs in the worker]."""

from __future__ import annotations

import os
from tempfile import gettempdir
from typing import Any

_CHUNK = 1 << 22
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def head_of(system: Any, path: str, length: int, flags: int) -> int:
    """A descriptor of a nameless file that holds the first *length* bytes of *path*.

    It may be read and written as *flags* say.
    """
    written, name = _nameless(system) if hasattr(system, "memfd_create") else _named(system)
    try:
        _copy(system, path, length, written)
        return int(system.open(name, flags & _ACCESS | _CLOSE_ON_EXEC))
    finally:
        system.close(written)
        if not name.startswith("/proc/"):
            system.unlink(name)


def _nameless(system: Any) -> tuple[int, str]:
    fd = system.memfd_create("pytest-dataloader-faults")
    return fd, f"/proc/self/fd/{fd}"


def _named(system: Any) -> tuple[int, str]:
    name = os.path.join(gettempdir(), f"pytest-dataloader-faults-{system.urandom(8).hex()}")
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
