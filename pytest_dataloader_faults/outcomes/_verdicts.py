"""What can be said of a dataset, and what its author promises of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

from pytest_dataloader_faults._arguments import FLAG, Checked, optional
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes._text import code_of


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Contract(Checked):
    """What a dataset's author promises, where it is not the ordinary: survive or fail cleanly.

    Attributes:
        survives: It must not fail at all.
        names_file: Each error must name the file concerned.
        may_skip: Samples that a fault hit may be missing, without an error. Those, and no others.
        detects_corruption: Damaged bytes must give an error, and never a sample. Without that
            promise, content that is damaged on the disk is not blamed on the dataset.
        deterministic: False where samples are random. Then random numbers are seeded by the sample,
            or, where that makes no two alike, only types and shapes are compared.
        compare: ``compare(a, b) -> bool`` says whether two samples are the same, in place of their
            bytes. It gets them as they are in a batch of one.

    """

    survives: bool = False
    names_file: bool = False
    may_skip: bool = False
    detects_corruption: bool = False
    deterministic: bool = True
    compare: Callable[[Any, Any], Any] | None = None

    _rules: ClassVar = {
        "survives": FLAG,
        "names_file": FLAG,
        "may_skip": FLAG,
        "detects_corruption": FLAG,
        "deterministic": FLAG,
        "compare": optional(callable, "a function or None"),
    }

    @classmethod
    def given(cls, contract: Contract | None) -> Contract:
        """*contract*, or the ordinary one for None."""
        if contract is not None and not isinstance(contract, cls):
            message = f"contract={contract!r} must be a Contract(...), or None for the ordinary one"
            raise InvalidArgumentError(message)
        return contract or cls()

    def __repr__(self) -> str:
        """What differs from the ordinary, as code."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return code_of("Contract", {name: one for name, (one, two) in values.items() if one != two})


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence that says why, and whether the contract allows it."""

    verdict: Verdict
    sentence: str
    passed: bool
