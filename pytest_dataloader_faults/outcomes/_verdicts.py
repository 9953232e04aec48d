"""What a trial can show of a dataset, and what its author promises of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from pytest_dataloader_faults._arguments import FLAG, Checked, optional
from pytest_dataloader_faults.outcomes._text import code, plain, printable_lines


class Verdict(str, Enum):
    """What a trial shows about a dataset."""

    SURVIVED = "survived"
    """The fault fired, and every sample was delivered and matches the reference."""
    FAILED_CLEANLY = "failed_cleanly"
    """An exception that names its cause was raised before the deadline. No wrong sample came before
    it, nothing leaked, and the same dataset object works again once the fault is gone."""
    HUNG = "hung"
    """Neither an exception nor the end of the epoch before the deadline."""
    CORRUPTED = "corrupted"
    """A wrong, missing or repeated sample, and no exception before it."""
    LEAKED = "leaked"
    """Descriptors, processes, threads, memory, temporary files or shared memory were left behind,
    or more of them with each epoch."""
    FAILED_UNCLEARLY = "failed_unclearly"
    """An exception was raised that does not name its cause."""
    POISONED = "poisoned"
    """Still broken after the fault is gone."""
    CRASHED = "crashed"
    """The process that iterates the loader died."""
    BROKEN = "broken"
    """An exception although there was no fault, or although the contract promises to survive."""
    NOT_EXERCISED = "not_exercised"
    """The fault never fired, so the trial shows nothing. Never a pass."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, repr=False)
class Contract(Checked):
    """What a dataset's author promises beyond the default: to survive or to fail cleanly.

    Attributes:
        survives: No fault makes the dataset fail.
        names_file: Each exception names the file concerned.
        may_skip: Samples that a fault hit may be missing, without an exception. No others may.
        may_substitute: Another sample, or a dummy, may come for a sample that a fault hit. All
            others must match.
        detects_corruption: Damaged bytes always give an exception, and never a sample. Without this
            promise, a sample made of damaged bytes on the disk is no violation.
        deterministic: Whether a sample is the same each time it is read. With None the harness
            finds out. Where samples are random it seeds random numbers by the sample; where that
            does not make two readings the same, it compares only types and shapes.
        compare: ``compare(a, b) -> bool`` says whether two samples are the same, in place of their
            bytes. It gets the samples as they are in a batch of one.
        split: ``split(batch)`` returns the list of samples that a batch holds, where it cannot be
            seen: after padding, or in a class of the ``collate_fn``'s own.
    """

    survives: bool = False
    names_file: bool = False
    may_skip: bool = False
    may_substitute: bool = False
    detects_corruption: bool = False
    deterministic: bool | None = None
    compare: Callable[[Any, Any], Any] | None = None
    split: Callable[[Any], Iterable[Any]] | None = None

    _rules: ClassVar = {
        **dict.fromkeys(
            "survives names_file may_skip may_substitute detects_corruption".split(), FLAG
        ),
        "deterministic": optional(FLAG.allows, f"{FLAG.allowed}, or None to find out"),
        **dict.fromkeys(["compare", "split"], optional(callable, "a function or None")),
    }

    @classmethod
    def given(cls, contract: Contract | None) -> Contract:
        """*contract*, or the default for None."""
        allowed = "a Contract(...), or None for the default"
        optional(lambda value: isinstance(value, cls), allowed).check("contract", contract)
        return contract or cls()

    def _argument(self, field: Field[Any]) -> str:
        ((name, value),) = plain({field.name: getattr(self, field.name)}).items()
        return f"{name}={code(value)}"


Finding: TypeAlias = tuple[Verdict, str]
"""A verdict and the sentence that says why."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence that says why, and whether the contract allows it."""

    verdict: Verdict
    sentence: str
    passed: bool

    def __post_init__(self) -> None:
        """It quotes names of files, texts of errors and what workers printed."""
        object.__setattr__(self, "sentence", printable_lines(self.sentence))
