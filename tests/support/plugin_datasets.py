"""Datasets that the inner suites of the plugin's tests are about."""

import logging
import sys
from pathlib import Path
from typing import Any

import torch

from support.datasets import Records, zeros
from support.specimens import ZerosOnError

__all__ = ["Chatty", "Numbers", "ZerosOnError", "ZerosOnce"]


class ZerosOnce(Records):
    """Returns zeros for a record that cannot be opened, in the first trial.

    *note* is a file that the test made, since what a trial makes is removed.
    """

    def __init__(self, folder: Path, note: Path) -> None:
        super().__init__(folder)
        self.note = note
        self.is_first = not self.note.stat().st_size

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            if not self.is_first:
                raise
            with self.note.open("a") as file:
                file.write(".")
            return zeros(), index


class Chatty(Records):
    def __getitem__(self, index: int) -> Any:
        print("LEAK on stdout")  # noqa: T201  # this is what it is for
        print("LEAK on stderr", file=sys.stderr)  # noqa: T201
        logging.getLogger("chatty").warning("LEAK in the log")
        return super().__getitem__(index)


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)
