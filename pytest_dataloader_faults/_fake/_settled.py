"""A worker that has a fake file system, once it is there [runs in the DataLoader worker]."""

from __future__ import annotations

from typing import Any

_FIRST_NUMBER = 4096
"""Of the fake descriptors. Real ones are lower, so that neither is ever taken for the other."""


def settle(patcher: Any) -> None:
    """Every file access in this process is the user's: none is passed on to the real files."""
    patcher.skip_names = set()
    for module in patcher.fake_modules.values():
        if hasattr(module, "skip_names"):
            module.skip_names = set()
    keep_numbers_apart(patcher.fs)


def keep_numbers_apart(files: Any) -> None:
    """Have *files* number descriptors in a range of their own.

    A number that C code takes for a real one (np.fromfile, mmap) is then not open, where it could
    be that of a pipe between the loader and its workers.
    """
    files.open_files.extend([None] * (_FIRST_NUMBER - len(files.open_files)))
