"""Datasets whose names and texts contain terminal escapes."""

import os
from pathlib import Path
from typing import Any

import torch

from support.datasets import Records

TITLE = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
"""Sets the title of a terminal, clears it, and has it print in red."""
ORDER = "\u202e\u2028\x85\u2066"
"""Turns the order of what follows, and breaks lines in some programs."""
LINE = "\nFAILED forged.py::test_it - hacked\r"
TEXT = f"{TITLE}{ORDER}{LINE}"
NAMES = [f"{TITLE}.bin", f"{ORDER}.bin", f"{LINE}.bin", os.fsdecode(b"\xff\xfe.bin"), "a\rb.bin"]


def write_hostile(folder: Path) -> Path:
    """A folder of files; its own name is hostile, too."""
    folder /= f"folder{TEXT}"
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(bytes(range(number, number + 64)))
    return folder


class _Files(Records):
    """The content of each file; *_substitute* says what comes of one that cannot be read."""

    def __getitem__(self, index: int) -> Any:
        try:
            return torch.tensor(list(self.paths[index].read_bytes()))
        except OSError:
            return self._substitute(self.paths[index])


class Zeros(_Files):
    def _substitute(self, path: Path) -> Any:
        return torch.zeros(64)


class Raises(_Files):
    def _substitute(self, path: Path) -> Any:
        raise RuntimeError(TEXT) from None


class FailsAtOnce(_Files):
    def __init__(self, folder: Path) -> None:
        raise ValueError(f"{folder} {TEXT}")


DATASETS = [Zeros, Raises, FailsAtOnce]


def hostile_lines(text: str) -> list[str]:
    """The lines of a report that a terminal would not show as they are, or that are forged."""
    lines = text.split("\n")
    forged = [line for line in lines if line.startswith("FAILED forged.py")]
    return forged + [line for line in lines if not line.isprintable()]
