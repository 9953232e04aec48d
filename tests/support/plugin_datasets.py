"""Datasets that the inner suites of the plugin's tests are about."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import torch

from support.datasets import Records, Substitutes
from support.specimens import ZerosOnError

__all__ = ["Chatty", "Numbers", "WaitsOnError", "ZerosOnError"]


class WaitsOnError(Substitutes, Records):
    """Waits forever for what it cannot have."""

    def substitute(self, _index: int, _error: Exception) -> Any:
        threading.Event().wait()


class Chatty(Records):
    """Prints, warns and logs with each sample."""

    def __getitem__(self, index: int) -> Any:
        print("LEAK on stdout")  # noqa: T201  # this is what it is for
        print("LEAK on stderr", file=sys.stderr)  # noqa: T201
        logging.getLogger("chatty").warning("LEAK in the log")
        return super().__getitem__(index)


class Numbers(torch.utils.data.Dataset[Any]):
    """Reads no file at all."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)
