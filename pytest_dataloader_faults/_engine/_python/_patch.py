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
from collections.abc import Iterator
from typing import Any

from pytest_dataloader_faults._engine._python._acts import Decide
from pytest_dataloader_faults._engine._python._calls import HARMLESS, PROGRAMS, REPLACED, Calls
from pytest_dataloader_faults._engine._python._files import Files, Waits, held_files
from pytest_dataloader_faults._engine._python._objects import (
    FaultedFileIO,
    FaultedMapping,
    bound,
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
    for fd, path in held_files(system):
        if not decide.leaves_alone(path) and decide.judges_reads(path):
            files.follow(fd, path)
            decide.unreached("inherited descriptor")
    pairs = [*_functions(files), *_objects(files)]
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
    for name in PROGRAMS:
        if original := getattr(files.system, name, None) or _starter(name):
            yield original, Instead(original, calls.program(original))


def _starter(name: str) -> Any:
    """The function behind ``subprocess``, where it is loaded."""
    return getattr(sys.modules.get("_posixsubprocess"), name, None)


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
