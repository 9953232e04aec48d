"""A process that has a fake file system for good [runs in the DataLoader worker]."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.python.pyfakefs.notes import explain_errors
from pytest_dataloader_faults._engine.python.pyfakefs.os_functions import FakeOs

_FIRST_NUMBER = 4096
"""Of the fake descriptors. Real ones are lower, so that neither is ever taken for the other."""


_settled: list[int] = []


def patch_for_good(current: Any) -> None:
    """Every file access in this process is the user's: none is passed on to the real files."""
    if os.getpid() in _settled:
        return
    _settled[:] = [os.getpid()]
    explain_errors()
    patch_every_module(current, contextlib.ExitStack())
    separate_fd_range(current)


def patch_every_module(current: Any, undo: contextlib.ExitStack) -> None:
    """Have no module passed on to the real files, by whichever name it calls; *undo* ends that."""
    for each in (current, *current.fake_modules.values()):
        if hasattr(each, "skip_names"):
            undo.callback(setattr, each, "skip_names", each.skip_names)
            each.skip_names = set()


def separate_fd_range(current: Any) -> None:
    """Have pyfakefs number descriptors in a range of their own, and give it a pread().

    A number that C code takes for a real one (np.fromfile, mmap) is then not open, where it could
    be that of a pipe between the loader and its workers.
    """
    files, fake_os = current.fs, current.fake_modules["os"]
    files.open_files.extend([None] * (_FIRST_NUMBER - len(files.open_files)))
    fake_os.pread = FakeOs(files, fake_os, None, scarce=False).pread


class PatchWorker:
    """A ``worker_init_fn`` that settles its worker and then runs the user's own."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        patch_for_good(patcher())
        if self._then is not None:
            self._then(worker)
