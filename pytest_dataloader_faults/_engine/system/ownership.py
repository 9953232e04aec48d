"""Descriptors of this package in processes that also run the user's code.

A dataset that closes descriptors that it did not open, as ``os.closerange(3, 256)`` does, frees the
numbers of ours, and the next files that it opens get them. A write to such a number would land in
the user's file, and a close would take that file away from the dataset.
"""

from __future__ import annotations

import contextlib
import os

from pytest_dataloader_faults._engine.system.proc import file_of, link_of
from pytest_dataloader_faults.exceptions import HarnessError

_CLOSED = (
    "file descriptors were closed by code that did not open them: {} belonged to"
    " pytest-dataloader-faults and {}. Close only descriptors that your code opened: a call such as"
    " os.closerange(3, 256) also closes those of torch and pytest"
)


class ClosedByUserError(HarnessError):
    """User code closed a descriptor of this package. The message says what has its number now."""


class OwnedDescriptor:
    """The descriptor *number*, while it refers to the same file as now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.file = file_of(number)

    @property
    def is_open(self) -> bool:
        """Whether *number* still stands for the same file."""
        with contextlib.suppress(OSError):
            return file_of(self.number) == self.file
        return False

    def require(self) -> int:
        """The number; raises ClosedByUserError unless it still stands for the same file."""
        if not self.is_open:
            raise ClosedByUserError(_CLOSED.format(self.number, _describe(self.number)))
        return self.number

    def close(self) -> None:
        """Close the descriptor, unless its number belongs to another file by now."""
        if self.is_open:
            os.close(self.number)


def _describe(number: int) -> str:
    try:
        return f"is now {link_of('self', number)}"
    except FileNotFoundError:
        return "is closed now"
