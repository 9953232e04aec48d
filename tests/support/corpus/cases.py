"""What an entry of the corpus becomes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.datasets import Records


@dataclass(frozen=True)
class Case:
    """A bug that a dataset author can cause: a dataset with it, what the battery says, its twin.

    A *specimen* or *twin* that requires a folder for its cache gets an empty one for each trial.

    Attributes:
        entry: Its number in the corpus.
        specimen: Makes a dataset (or a ready DataLoader) with the bug, of a folder of records.
        check: The check that finds it.
        finding: The verdict, a colon, and words in the first line of the explanation.
        twin: Makes the same without the bug.
        options: Arguments of ``check_dataset`` for both.
        deadline: Seconds for the specimen alone, if it hangs.
        not_applicable: Checks that do not apply to the twin, with a part of the reason.
        cause: The likely cause that the check names, or a part of it.
        library: Whose error it is, if the failure is only a warning because of that.

    """

    entry: str
    specimen: Callable[..., Any]
    check: str
    finding: str
    twin: Callable[..., Any] = Records
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""
    library: str = ""

    @property
    def verdict(self) -> str:
        return self.finding.partition(": ")[0]

    @property
    def says(self) -> str:
        return self.finding.partition(": ")[2]
