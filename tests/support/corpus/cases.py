"""What an entry of the corpus becomes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.datasets import Records


@dataclass(frozen=True)
class Case:
    """A bug that a dataset author can cause: who has it, what the battery says, who has it not.

    Attributes:
        entry: Its number in the corpus.
        guilty: Makes a dataset (or a ready DataLoader) that has it, of a folder of records.
        check: The check that finds it.
        verdict: What it is convicted of.
        says: Words in the first line of the explanation.
        twin: Makes the same without the bug.
        options: Arguments of ``check_dataset`` for both.
        deadline: Seconds for the guilty alone, where it hangs.
        moot: Checks that do not apply to the twin, each with a part of the reason it is told.

    """

    entry: str
    guilty: Callable[[Path], Any]
    check: str
    verdict: str
    says: str
    twin: Callable[[Path], Any] = Records
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0
    moot: Mapping[str, str] = field(default_factory=dict)
