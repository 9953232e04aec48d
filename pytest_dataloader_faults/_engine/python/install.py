"""Put the replacements in the place of Python's own file access [runs in the worker].

Another library may have replaced functions before: the originals are those that are there when the
faults are installed. Modules keep their own names for what they imported (``from builtins import
open`` in tarfile, bz2 and lzma; in Python 3.10 a class of pathlib does as well). So each name of
each module is exchanged.

Files may be open already. Functions of ``os`` get their numbers and are replaced, so reads by these
functions are seen. Reads by file objects and mappings made earlier are not seen, but counted as
unobserved.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import mmap
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._engine.file_copies import altered_copy
from pytest_dataloader_faults._engine.policy import Closed, FaultPolicy, Substitute
from pytest_dataloader_faults._engine.python import replacements
from pytest_dataloader_faults._engine.python.descriptors import Clock, DescriptorTable
from pytest_dataloader_faults._engine.system.proc import (
    inherited_fds,
    inherited_mappings,
    is_write_only,
)


def install(policy: FaultPolicy, clock: Clock) -> tuple[DescriptorTable, Replacements]:
    """Ask *policy* about each file access from now on; the replacements that were made."""
    system = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
    files = DescriptorTable(policy, system, clock)
    handle_inherited(files)
    pairs = [*_functions(files), *_objects(files)]
    replace_everywhere(pairs)
    return files, pairs


def _functions(files: DescriptorTable) -> Iterator[tuple[Any, Any]]:
    calls, system, loaded = replacements.OsFunctions(files), files.system, sys.modules.get
    for name in replacements.REPLACED:
        if original := getattr(system, name, None):
            yield original, Replacement(original, getattr(calls, name))
    yield from _replacements(system, calls.wrap_observed, *replacements.OBSERVED)
    yield from _replacements(system, calls.wrap_start, *replacements.STARTERS)
    yield from _replacements(loaded("_posixsubprocess"), calls.wrap_start, "fork_exec")
    yield from _replacements(loaded("fcntl"), calls.control, "fcntl")
    yield from _replacements(loaded("fcntl"), calls.wrap_observed, "flock", "lockf", "ioctl")
    yield from numpy_replacements()


def numpy_replacements() -> Iterator[tuple[Any, Any]]:
    """The function of numpy that lets C code read a file, if numpy is loaded."""
    owner = sys.modules.get("numpy.lib.format")
    return _replacements(owner, replacements.uses_in_python, "isfileobj")


def _replacements(
    owner: object, make: Callable[[Any], Callable[..., Any]], *functions: str
) -> Iterator[tuple[Any, Any]]:
    """Those *functions* that *owner* has, each with what *make* makes of it."""
    for name in functions:
        if original := getattr(owner, name, None):
            yield original, Replacement(original, make(original))


def _objects(files: DescriptorTable) -> Iterator[tuple[Any, Any]]:
    file_type = replacements.bind(replacements.FaultedFileIO, files, io.FileIO)
    yield io.FileIO, file_type
    yield mmap.mmap, replacements.bind(replacements.FaultedMapping, files, mmap.mmap)
    original, around = builtins.open, replacements.open_with(FileIO=file_type)

    def opens(file: Any, *arguments: Any, **keywords: Any) -> Any:
        return (around if files.may_have_faults(file) else original)(file, *arguments, **keywords)

    yield original, Replacement(original, opens)


class Replacement:
    """A replacement of *original*: a plain function even in a class, and equal to it.

    Equal, because code looks it up in sets such as ``os.supports_dir_fd``.
    """

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._call = call

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(*arguments, **keywords)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> str:
        """Pickled by name, as a function is."""
        return str(self._original.__name__)

    def __repr__(self) -> str:
        return f"<{self._original!r}, replaced by pytest-dataloader-faults>"


Replacements = list[tuple[Any, Any]]
"""Pairs of an object and its replacement."""


def replace_everywhere(pairs: Replacements) -> None:
    """Put the second of each pair wherever a module has a name for the first."""
    instead = {id(old): new for old, new in pairs}
    modules = list(sys.modules.values())
    owners: list[Any] = [each for each in modules if isinstance(each, types.ModuleType)]
    if accessor := getattr(sys.modules.get("pathlib"), "_NormalAccessor", None):
        owners.append(accessor)
    for owner in owners:
        for name, value in list(vars(owner).items()):
            if id(value) in instead:
                setattr(owner, name, instead[id(value)])


def handle_inherited(files: DescriptorTable) -> None:
    """Close, exchange and follow what is open already, where the system can list it."""
    policy = files.policy
    inherited: list[tuple[int, str]] = []
    mapped: set[str] = set()
    with contextlib.suppress(OSError):  # There is no /proc.
        inherited = list(inherited_fds(lambda path: not policy.is_exempt(path)))
        mapped = {each.path for each in inherited_mappings(lambda path: _is_at_risk(policy, path))}
    for fd, path in inherited:
        is_readable = not is_write_only(fd)
        if is_readable and not _handle_inherited_fd(files, fd, path):
            continue
        files.track(fd, path)
        if is_readable and policy.faults.needs_reads_of(path):
            policy.count_unobserved("inherited descriptor")
    policy.count_unobserved("inherited mapping", len(mapped))


def _is_at_risk(policy: FaultPolicy, path: str) -> bool:
    """Whether a fault may be about a mapping of *path*."""
    is_read = policy.faults.needs_reads_of(path) and not policy.is_exempt(path)
    return is_read or policy.faults.has_file_faults(path)


def _handle_inherited_fd(files: DescriptorTable, fd: int, path: str) -> bool:
    """Whether *fd* is open after that."""
    system = files.system
    name = f"/proc/self/fd/{fd}"
    for action in files.policy.inherited_fd_actions(path, system.fstat(fd).st_size):
        if isinstance(action, Substitute):
            copy = altered_copy(system, path, action.edit, os.O_RDONLY, source=name)
            _replace(files, fd, copy)
        if isinstance(action, Closed):
            system.close(fd)
            return False
    return True


def _replace(files: DescriptorTable, fd: int, source: int) -> None:
    """Make *fd* the file of *source*, at the same place in it."""
    system = files.system
    system.lseek(source, system.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    system.dup2(source, fd, system.get_inheritable(fd))
    system.close(source)
