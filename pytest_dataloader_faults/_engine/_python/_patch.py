"""Put the replacements in the place of Python's own file access [runs in the worker].

The originals are those that are there when it happens, which another library may have replaced.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import mmap
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._engine._python._acts import Decide
from pytest_dataloader_faults._engine._python._calls import HARMLESS, REPLACED, STARTERS, Calls
from pytest_dataloader_faults._engine._python._files import Files, Waits
from pytest_dataloader_faults._engine._python._inherited import take_over
from pytest_dataloader_faults._engine._python._objects import (
    FaultedFileIO,
    FaultedMapping,
    bound,
    is_judged,
    open_for,
)
from pytest_dataloader_faults._engine._python._sweep import Exchange, Instead, exchange


class RealTime:
    """Waits in earnest."""

    def sleep(self, seconds: float) -> None:
        """As time.sleep()."""
        time.sleep(seconds)

    def hang(self) -> None:
        """For good."""
        threading.Event().wait()


def install(decide: Decide, waits: Waits) -> tuple[Files, Exchange]:
    """Have *decide* asked from now on. What was open before is beyond its reach, and told so."""
    system = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
    files = Files(decide, system, waits)
    take_over(files)
    pairs = [*_functions(files), *_functions_elsewhere(files), *_objects(files)]
    exchange(pairs)
    return files, pairs


def _functions(files: Files) -> Iterator[tuple[Any, Any]]:
    calls = Calls(files)
    for name in REPLACED:
        if original := getattr(files.system, name, None):
            yield original, Instead(original, getattr(calls, name))
    for name in HARMLESS:
        if original := getattr(files.system, name, None):
            yield original, Instead(original, calls.harmless(original))
    for name in STARTERS:
        if original := getattr(files.system, name, None):
            yield original, Instead(original, calls.starter(original))


def _functions_elsewhere(files: Files) -> Iterator[tuple[Any, Any]]:
    """Of modules that not every system has, or not every dataset uses."""
    calls = Calls(files)
    if original := _loaded("_posixsubprocess", "fork_exec"):
        yield original, Instead(original, calls.starter(original))
    if original := _loaded("fcntl", "fcntl"):
        yield original, Instead(original, calls.control(sys.modules["fcntl"]))
    for name in ("flock", "lockf", "ioctl"):
        if original := _loaded("fcntl", name):
            yield original, Instead(original, calls.harmless(original))
    if original := _loaded("numpy.lib.format", "isfileobj"):
        yield original, Instead(original, _reads_in_c(original))


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _reads_in_c(original: Any) -> Callable[[object], bool]:
    """Have np.load() read by the methods of a file whose reads matter, as it does of others.

    numpy/lib/format.py: where ``isfileobj`` is true of it, np.fromfile() takes its descriptor.
    """
    return lambda file: not is_judged(file) and original(file)


def _objects(files: Files) -> Iterator[tuple[Any, Any]]:
    file_type = bound(FaultedFileIO, files, io.FileIO)
    yield io.FileIO, file_type
    yield mmap.mmap, bound(FaultedMapping, files, mmap.mmap)
    yield builtins.open, Instead(builtins.open, open_for(files, file_type, builtins.open))


@contextlib.contextmanager
def patched(decide: Decide, waits: Waits | None = None) -> Iterator[Files]:
    """While it lasts, file access by Python code is as *decide* says."""
    files, pairs = install(decide, waits or RealTime())
    try:
        yield files
    finally:
        exchange([(new, old) for old, new in pairs])
