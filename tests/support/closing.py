"""Datasets that close descriptors which are not theirs. Importable by spawned workers."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_dataloader_faults._engine.system import proc
from support.datasets import Records

LEAST = 64
"""Descriptors that a dataset opens: more than the plugin has open below 256."""


class Closing(Records):
    """Closes descriptors in its constructor by *close*, then opens its files by *flags*."""

    def __init__(self, folder: Path, close: Callable[[], None], flags: int = os.O_RDWR) -> None:
        super().__init__(folder)
        close()
        opened = self.paths * (LEAST // len(self.paths))
        self.opened = [os.open(path, flags) for path in opened] if flags >= 0 else []


def close_all() -> None:
    """As code does that makes a daemon."""
    os.closerange(3, 256)


def close_ours(pattern: str) -> None:
    """Close the descriptors of this process whose link matches *pattern*."""
    for number in open_here(pattern):
        os.close(number)


def open_here(pattern: str) -> list[int]:
    """The descriptors of this process whose link matches *pattern*."""
    links = proc.descriptor_links().items()
    return [int(number) for number, link in links if re.search(pattern, link)]


def close_stacks() -> None:
    close_ours("pytest-dataloader-faults-stacks")


def close_sockets() -> None:
    close_ours(r"^socket:")


class Hanging(Closing):
    """Hangs in a worker, or in the main process without workers."""

    def __getitem__(self, index: int) -> Any:
        signal.pause()


class HangingInWorker(Records):
    """Closes the file for stacks in a worker, opens its own files, and hangs."""

    def __getitem__(self, index: int) -> Any:
        close_stacks()
        opened = [os.open(path, os.O_RDWR) for path in self.paths]
        assert opened
        signal.pause()
