"""What may become of one file operation, and who decides it. Pure.

The replaced functions carry out acts and count nothing; a ``Decide`` counts and touches no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias


@dataclass(frozen=True)
class Fail:
    """The operation raises OSError with *errno*."""

    errno: int


@dataclass(frozen=True)
class Closed:
    """The descriptor that is handed out is not open."""


@dataclass(frozen=True)
class Substitute:
    """The file is a copy of its first *kept* bytes."""

    kept: int


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


Act: TypeAlias = Fail | Closed | Substitute | Short | Delay | Hang
Acts: TypeAlias = Sequence[Act]
"""Carried out in their order: what takes time first, then at most one of the others."""


class Reading(NamedTuple):
    """One read: where it begins, and how many bytes it would give without a fault."""

    path: str
    call: str
    offset: int
    length: int


class Decide(Protocol):
    """Who says what becomes of each operation in this process. Paths are absolute."""

    def leaves_alone(self, path: str) -> bool:
        """Whether *path* is none of its business: a system, package or code file."""

    def judges_reads(self, path: str) -> bool:
        """Whether reads of *path* that go unseen are to be told."""

    def opened(self, path: str, size: int | None, *, reads: bool) -> Acts:
        """For the opening of a file of *size* bytes, None if there is none; *reads*: for reading.

        Fail, or, where *reads*, Closed or Substitute.
        """

    def inherited(self, path: str, size: int) -> Acts:
        """For a file that was open before: Closed or Substitute."""

    def looked_at(self, path: str, size: int) -> Acts:
        """For a stat(2) by path of a file of *size* bytes: Substitute, or nothing."""

    def read(self, reading: Reading) -> Acts:
        """For one read: Delay, Hang, Fail or Short."""

    def mapped(self, path: str, length: int) -> bool:
        """For a mapping, which is one read: whether a fault is due that no mapping can be given."""

    def unreached(self, what: str, count: int = 1) -> None:
        """Told of *count* more ways in which a file may be read unseen; -1 takes one back."""
