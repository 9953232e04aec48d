"""What may become of one file operation, and who decides it. Pure.

The replaced functions carry out actions and count nothing; a ``FaultPolicy`` counts and touches no
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from pytest_dataloader_faults._engine.file_copies import FileEdit


@dataclass(frozen=True)
class Fail:
    """The operation raises OSError with *errno*."""

    errno: int


@dataclass(frozen=True)
class Closed:
    """The descriptor that is handed out is not open."""


@dataclass(frozen=True)
class Stranger:
    """The descriptor that is handed out is another file's, of the same length."""


@dataclass(frozen=True)
class Substitute:
    """The file is a copy that differs by *alteration*."""

    alteration: FileEdit


@dataclass(frozen=True)
class Short:
    """A read gives *max_bytes* at most."""

    max_bytes: int


@dataclass(frozen=True)
class Delay:
    """The operation takes *seconds* longer."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """The operation does not come back while the faults are armed."""


Action: TypeAlias = Fail | Closed | Stranger | Substitute | Short | Delay | Hang
Actions: TypeAlias = Sequence[Action]
"""Carried out in their order: what takes time first, then at most one of the others."""


class Reading(NamedTuple):
    """One read: where it begins, and how many bytes it would give without a fault.

    A mapping is one, whose call is ``mmap``.
    """

    path: str
    call: str
    offset: int
    length: int


class FaultPolicy(Protocol):
    """Who says what becomes of each operation in this process. Paths are absolute."""

    def leaves_alone(self, path: str) -> bool:
        """Whether *path* is none of its business: a system, package or code file."""

    def judges_reads(self, path: str) -> bool:
        """Whether reads of *path* that go unseen are to be told."""

    def opened(self, path: str, size: int | None, *, reads: bool) -> Actions:
        """For the opening of a file of *size* bytes, None if there is none; *reads*: for reading.

        Fail, or, where *reads*, Closed, Stranger or Substitute.
        """

    def inherited(self, path: str, size: int) -> Actions:
        """For a file that was open before: Closed, Stranger or Substitute."""

    def looked_at(self, path: str, size: int) -> Actions:
        """For a stat(2) by path of a file of *size* bytes: Substitute, or nothing."""

    def read(self, reading: Reading) -> Actions:
        """For one read: Delay or Hang, then Fail or Short. What is mapped cannot be Short."""

    def exhausted(self, path: str) -> None:
        """Told that *path* was not opened for want of a descriptor."""

    def refused(self, why: str) -> None:
        """Told that a fault is due which cannot be made to happen."""

    def means(self, path: str) -> bool:
        """Whether any fault is about *path*."""

    def unobserved(self, what: str, count: int = 1) -> None:
        """Told of *count* more ways in which a file may be read unseen; -1 takes one back."""
