"""A process that has a fake file system permanently [runs in the DataLoader worker]."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.python.pyfakefs.notes import explain_errors
from pytest_dataloader_faults._engine.python.pyfakefs.os_functions import FakeOs

_FIRST_NUMBER = 4096
"""Of the fake descriptors. Real ones are lower, so that neither is ever taken for the other."""


_patched: set[int] = set()
"""The process that is patched. A process that it forks is patched again."""


def patch_for_good(current: Any) -> None:
    """Let every file access in this process see the fake files: all of them are the user's."""
    if os.getpid() in _patched:
        return
    _patched.add(os.getpid())
    explain_errors()
    for each in (current, *current.fake_modules.values()):  # Also those that pyfakefs skips.
        if hasattr(each, "skip_names"):
            each.skip_names = set()
    separate_fd_range(current)


def separate_fd_range(current: Any) -> None:
    """Give fake descriptors a range of numbers of their own, and pyfakefs a pread().

    A number that C code takes for a real one (np.fromfile, mmap) is then not open, where it could
    be that of a pipe between the loader and its workers.
    """
    files, fake_os = current.fs, current.fake_modules["os"]
    files.open_files.extend([None] * (_FIRST_NUMBER - len(files.open_files)))
    fake_os.pread = FakeOs(files, fake_os, None, scarce=False).pread


class PatchWorker:
    """A ``worker_init_fn`` that patches its worker permanently and then runs the user's own."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        patch_for_good(patcher())
        if self._then is not None:
            self._then(worker)
