"""Datasets of which everything that can be shown is hostile to who reads it in a terminal."""

import os
import select
import sys
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
            return self._make_sample(list(self.paths[index].read_bytes()))
        except OSError:
            return self._substitute(self.paths[index])

    def _make_sample(self, data: list[int]) -> Any:
        return torch.tensor(data)


class Zeros(_Files):
    def _substitute(self, path: Path) -> Any:
        return torch.zeros(64)


class Keys(Zeros):
    """Samples are dicts with a hostile key."""

    def _make_sample(self, data: list[int]) -> Any:
        return {TEXT: torch.tensor(data)}

    def _substitute(self, path: Path) -> Any:
        return {f"other{TEXT}": TEXT}


class Texts(_Files):
    """Samples are texts."""

    def _make_sample(self, data: list[int]) -> Any:
        return f"{data[0]}{TEXT}"

    def _substitute(self, path: Path) -> Any:
        return TEXT


class Raises(_Files):
    """Raises an error that hides its cause."""

    def _substitute(self, path: Path) -> Any:
        raise RuntimeError(TEXT) from None


_Named = type(f"Error{TEXT}", (Exception,), {})


class RaisesNamed(_Files):
    """The class of the error has the name."""

    def _substitute(self, path: Path) -> Any:
        raise _Named(TEXT) from None


class Prints(_Files):
    """Prints, and ends its process."""

    def _substitute(self, path: Path) -> Any:
        sys.stderr.write(f"{path} {TEXT}\n")
        sys.stderr.flush()
        os._exit(3)


class Hangs(_Files):
    """Waits in code of a file with the name."""

    def _substitute(self, path: Path) -> Any:
        exec(  # noqa: S102
            compile("def wait():\n    poll().poll()\nwait()", f"{TEXT}.py", "exec"),
            {"poll": select.poll},
        )


class Fails(_Files):
    """Fails without a fault."""

    def __getitem__(self, index: int) -> Any:
        raise ValueError(f"{self.paths[index]} {TEXT}")


class FailsAtOnce(_Files):
    """Cannot be made."""

    def __init__(self, folder: Path) -> None:
        raise ValueError(f"{folder} {TEXT}")


Named = type(f"Named{TEXT}", (Zeros,), {})
DATASETS = [Zeros, Keys, Texts, Raises, RaisesNamed, Prints, Hangs, Fails, FailsAtOnce, Named]


def hostile_lines(text: str) -> list[str]:
    """The lines of a report that a terminal would not show as they are, or that are forged."""
    lines = text.split("\n")
    forged = [line for line in lines if line.startswith("FAILED forged.py")]
    return forged + [line for line in lines if not line.isprintable()]
