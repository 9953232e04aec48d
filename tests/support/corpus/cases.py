"""A dataset with a known bug, and what the battery says about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.datasets import Records, write_records
from support.waiting import allowed


@dataclass(frozen=True)
class Case:
    """A bug that a dataset author can cause: a dataset with it, what the battery says, its twin.

    A *specimen* or *twin* that requires a folder for its cache gets an empty one for each trial.

    Attributes:
        entry: Its number in the corpus, or its family if it is not of the corpus.
        specimen: Makes a dataset (or a ready DataLoader) with the bug, of a folder of records.
        check: The check that finds it.
        finding: The verdict, a colon, and words in the first line of the explanation.
        twin: Makes the same without the bug.
        options: Arguments of ``check_dataset`` for both.
        library: Whose error it is, if the failure is only a warning because of that.
        write: Fills the folder that both are made of, if not with records.

    """

    entry: str
    specimen: Callable[..., Any]
    check: str
    finding: str
    twin: Callable[..., Any] = Records
    options: Mapping[str, Any] = field(default_factory=dict)
    library: str = ""
    write: Callable[[Path], object] | None = None

    @property
    def verdict(self) -> str:
        return self.finding.partition(": ")[0]

    @property
    def limits(self) -> dict[str, float]:
        """More options for the specimen alone: a healthy pass does not take as long."""
        return {"deadline": allowed(2.0)} if self.verdict == "hung" else {}

    @property
    def says(self) -> str:
        return self.finding.partition(": ")[2]

    @property
    def key(self) -> str:
        """Its name in causes.txt."""
        return f"{self.entry} {self.specimen.__name__} {self.check}"

    @property
    def cause(self) -> str:
        """The likely cause that the check names."""
        return CAUSES[self.key]

    def fill(self, folder: Path) -> Path:
        """*folder*, which is created, with the files that both are made of."""
        if self.write is None:
            return write_records(folder)
        folder.mkdir(parents=True)
        self.write(folder)
        return folder


def _read_causes() -> dict[str, str]:
    """The likely cause of each case: a line, with the cases below it."""
    causes, cause = {}, ""
    for line in Path(__file__).with_name("causes.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            causes[line.strip()] = cause
        else:
            cause = line
    return causes


CAUSES = _read_causes()
