"""What can be said of a dataset, and what its author promises of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ("Contract", "Verdict")


class Verdict(str, Enum):
    """What a trial shows about a dataset."""

    SURVIVED = "survived"
    """The fault fired, and every sample came, and was right."""
    FAILED_CLEANLY = "failed_cleanly"
    """A clear error came in time, nothing wrong came before it, nothing was left behind, and the
    same dataset object works again once the fault is gone."""
    HUNG = "hung"
    """Neither an error nor an end before the deadline."""
    CORRUPTED = "corrupted"
    """A wrong, missing or repeated sample, and no error."""
    LEAKED = "leaked"
    """Descriptors or processes were left behind."""
    FAILED_UNCLEARLY = "failed_unclearly"
    """An error came that hides its cause."""
    POISONED = "poisoned"
    """Still broken after the fault is gone."""
    CRASHED = "crashed"
    """The process that drives the loader died."""
    NOT_EXERCISED = "not_exercised"
    """The fault never fired, so nothing was shown. Never a pass."""

    def __str__(self) -> str:
        """The value."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What a dataset's author promises, where it is not the ordinary: survive or fail cleanly.

    Attributes:
        survives: It must not fail at all.
        names_file: Each error must name the file concerned.

    """

    survives: bool = False
    names_file: bool = False
