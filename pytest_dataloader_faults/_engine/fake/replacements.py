"""Replacements for functions of ``os``, for open() and for numpy [runs in the worker].

Each takes the arguments of the function that it replaces.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]  # it lacks stubs
import functools
import inspect
import io
import sys
import types
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.fake.descriptors import DescriptorTable

CALLS_USER_CODE = True


class OsFunctions:
    """The replacements, by the names that they have in ``os``."""

    def __init__(self, files: DescriptorTable) -> None:
        self._files = files
        self._system = files.system

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return self._files.open(path, flags, mode, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        self._files.forget(fd)
        self._system.close(fd)

    def dup(self, fd: int, /) -> int:
        return self._files.track_duplicate(fd, self._system.dup(fd))

    def dup2(self, fd: int, fd2: int, inheritable: bool = True) -> int:
        self._files.forget(fd2)
        return self._files.track_duplicate(fd, self._system.dup2(fd, fd2, inheritable))

    def read(self, fd: int, length: int, /) -> bytes:
        allowed_length = self._files.allowed_length(fd, "read", length)
        return self._system.read(fd, allowed_length)  # type: ignore[no-any-return]

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        allowed_length = self._files.allowed_length(fd, "pread64", length, offset)
        return self._system.pread(fd, allowed_length, offset)  # type: ignore[no-any-return]


# Some facts about files of Python. open() makes a FileIO, and wraps it in a BufferedReader and that
# in a TextIOWrapper as its mode says. The last two are written in C and read by the methods of the
# first (``readinto``, ``readall``), so that they use one which queries the policy before. The C
# code of open() does not accept another FileIO, but its twin in ``_pyio`` looks the name up among
# its globals. A copy with other globals returns what open() returns, in each version of Python.


_CHUNK = io.DEFAULT_BUFFER_SIZE


def read_all(file: io.RawIOBase, size: int) -> bytes:
    """Reads of what is left of *size* and one byte more, until one returns nothing, as in C."""
    remaining = size - file.tell() if file.seekable() else 0
    result = bytearray()
    while chunk := file.read(max(remaining + 1 - len(result), 1) if remaining > 0 else _CHUNK):
        result += chunk
    return bytes(result)


def open_with(**replacements: Any) -> Callable[..., Any]:
    """An open() that finds *replacements* among its globals."""
    twin = inspect.unwrap(_pyio.open)
    classes = ("BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper")
    world = vars(_pyio) | {name: getattr(io, name) for name in classes} | replacements
    return types.FunctionType(twin.__code__, world, "open", twin.__defaults__)


def _uses_in_python(
    isfileobj: Callable[[object], bool], fake_kind: type
) -> Callable[[object], bool]:
    """Have np.load() and np.save() use the methods of a file that matters, as they do of others.

    numpy/lib/format.py: if ``isfileobj`` is true of it, np.fromfile() takes its descriptor, and so
    does ``tofile``.
    """

    @functools.wraps(isfileobj)
    def call(file: object) -> bool:
        raw = getattr(file, "raw", file)
        return not isinstance(raw, fake_kind) and isfileobj(file)

    return call


def replace_in_numpy(fake_kind: type) -> None:
    """Let numpy read and write files of *fake_kind* by their methods, if numpy is loaded.

    Modules keep their own names for what they imported, so each name of each module is replaced.
    """
    original = getattr(sys.modules.get("numpy.lib.format"), "isfileobj", None)
    if original is None:
        return
    replacement = _uses_in_python(original, fake_kind)
    for owner in list(sys.modules.values()):
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if value is original:
                setattr(owner, name, replacement)
