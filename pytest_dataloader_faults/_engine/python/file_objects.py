"""Replacements for open(), ``io.FileIO`` and ``mmap.mmap`` [runs in the worker].

Some facts about files of Python. open() makes a FileIO, and wraps it in a BufferedReader and that
in a TextIOWrapper as its mode says. The last two are written in C and read by the methods of the
one below (``readinto``, ``readall``), so that one which asks first is asked by them. The C code of
open() takes no other FileIO, but its twin in ``_pyio`` looks the name up among its globals. A
copy with other globals gives what open() gives, in each version of Python.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]  # it has no stubs
import abc
import inspect
import io
import mmap
import types
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from pytest_dataloader_faults._engine.python.descriptors import DescriptorTable
from pytest_dataloader_faults._engine.python.os_functions import caller


class ReplacesClass(abc.ABCMeta):
    """A class that counts instances of the class it replaces as its own: older files are."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _replaced_by(cls)) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _replaced_by(cls)) or super().__subclasscheck__(subclass)


def _replaced_by(kind: type) -> Any:
    """The class that *kind* itself, and none that it derives from, is in the place of."""
    return vars(kind).get("replaces", ())


class FaultedFileIO(io.FileIO, metaclass=ReplacesClass):
    """A FileIO that asks the policy before it opens, reads and writes."""

    files: ClassVar[DescriptorTable]

    def __init__(
        self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
    ) -> None:
        super().__init__(file, mode, closefd, opener or partial(self.files.open, mode=0o666))

    def fileno(self) -> int:
        """The number, which is watched from now on."""
        fd = super().fileno()
        self.files.hand_out(fd, f"fileno in {caller(1)}")
        return fd

    def use_matters(self) -> bool:
        """Whether a read or a write that goes unseen matters."""
        return not self.closed and self.files.use_matters(super().fileno())

    def read(self, size: int | None = -1, /) -> bytes:
        """One read, or for a negative *size* as many as it takes."""
        if size is None or size < 0:
            return self.readall()
        return super().read(self._allowed_length(size))

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        return super().readinto(view[: self._allowed_length(len(view))])

    def readall(self) -> bytes:
        """As many reads as C makes."""
        return read_all(self, self.files.system.fstat(super().fileno()).st_size)

    def write(self, data: Any, /) -> int:
        """One write."""
        view = memoryview(data).cast("B")
        length = self.files.length_to_write(super().fileno(), "write", len(view))
        return super().write(view[:length])

    def close(self) -> None:
        """And forget the number, if it goes."""
        if not self.closed and self.closefd:
            self.files.forget(super().fileno())
        super().close()

    def _allowed_length(self, length: int) -> int:
        return self.files.allowed_length(super().fileno(), "read", length)


_CHUNK = io.DEFAULT_BUFFER_SIZE


def read_all(file: io.RawIOBase, size: int) -> bytes:
    """Reads of what is left of *size* and one byte more, until one gives nothing, as in C."""
    left = size - file.tell() if file.seekable() else 0
    result = bytearray()
    while chunk := file.read(max(left + 1 - len(result), 1) if left > 0 else _CHUNK):
        result += chunk
    return bytes(result)


class FaultedMapping(mmap.mmap, metaclass=ReplacesClass):
    """An mmap that asks the policy before it maps."""

    files: ClassVar[DescriptorTable]

    def __new__(cls, fileno: int, length: int, *arguments: Any, **named: Any) -> Any:
        offset = named.get("offset", next(iter(arguments[3:]), 0))  # The sixth of mmap().
        cls.files.check_mapping(fileno, length, offset)
        return super().__new__(cls, fileno, length, *arguments, **named)


def bind(kind: type, files: DescriptorTable, original: type) -> Any:
    """*kind*, which asks *files*, in the place of *original*."""
    body = {"files": files, "replaces": original, "__module__": original.__module__}
    return type(kind)(original.__name__, (kind,), body)


def open_with(**own: Any) -> Callable[..., Any]:
    """An open() that finds *own* among its globals."""
    twin = inspect.unwrap(_pyio.open)
    named = ("BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper")
    world = vars(_pyio) | {name: getattr(io, name) for name in named} | own
    return types.FunctionType(twin.__code__, world, "open", twin.__defaults__)


def uses_in_python(isfileobj: Callable[[object], bool]) -> Callable[[object], bool]:
    """Have np.load() and np.save() use the methods of a file that matters, as they do of others.

    numpy/lib/format.py: where ``isfileobj`` is true of it, np.fromfile() takes its descriptor, and
    so does ``tofile``.
    """

    def call(file: object) -> bool:
        raw = getattr(file, "raw", file)
        is_ours = isinstance(raw, io.RawIOBase) and getattr(raw, "use_matters", bool)()
        return not is_ours and isfileobj(file)

    return call
