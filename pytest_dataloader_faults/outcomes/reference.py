"""What a dataset gives when nothing is wrong, and the ways to compare samples with it. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.contract import EXACT, Comparison, Contract
from pytest_dataloader_faults.outcomes.records import ZEROS, Leaves

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts


@dataclass(frozen=True)
class Share:
    """What one worker gave of a stream in the run without a fault.

    Attributes:
        worker: Its id.
        samples: The digest of each sample.
        files: How many data files it opened or read.
    """

    worker: int
    samples: tuple[str, ...]
    files: int


@dataclass(frozen=True)
class Reference:
    """What a dataset gives when nothing is wrong, taken sample by sample in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: A digest per index (map) or in order (iterable); empty if batches cannot be split.
        batches: A digest per tuple of indices, where batches do not come apart into samples.
        unstable_index: The index of a sample that was not the same twice, or None.
        unstable_part: What was different in that sample, for people.
        leaves: What the first samples are made of, by the same indices.
        nondeterministic_count: How many samples had other bytes in a second reading.
        draws_random_numbers: Whether samples draw numbers of torch's, NumPy's or Python's global
            generator; not asked where these are seeded.
        second_pass_count: How many samples a stream gave in a second pass, if fewer.
        pickled_samples: The samples, pickled and in base64, for the author's own ``compare``.
        comparison: What of samples is compared, as in an outcome.
        limit: About how many samples were asked for; None for all.
        total: How many samples there are to draw, as in a pass.
        stream_limit: After how many samples a stream was left that did not end; None if it did.
        shares: What each worker gave of a stream in the run without a fault, if that is known.
        drawn: How many samples the sampler drew in the run without a fault, if it drew as many
            batches as its length says.
        duration: Seconds from the start of its process to its end.
        asked: How many of the samples were asked for at first; the others were added later.
        is_whole: Whether each epoch has these samples, each of them once; a sampler may draw some
            at random.
        ranks: What each rank gives, if there are several.
        whole: What all ranks give together of a stream, by digest; each may have another part of it
            in another epoch. Empty where this is the whole.
    """

    kind: str
    samples: tuple[tuple[Any, str], ...]
    batches: tuple[tuple[tuple[Any, ...], str], ...] = ()
    unstable_index: Any = None
    unstable_part: str = ""
    leaves: tuple[tuple[Any, Leaves], ...] = ()
    nondeterministic_count: int = field(default=0, compare=False)
    draws_random_numbers: bool = False
    second_pass_count: int | None = None
    pickled_samples: tuple[tuple[Any, str], ...] = field(default=(), repr=False)
    comparison: Comparison = EXACT
    limit: int | None = None
    total: int | None = None
    stream_limit: int | None = None
    shares: tuple[Share, ...] = field(default=(), compare=False)
    drawn: int | None = field(default=None, compare=False)
    duration: float = field(default=0.0, compare=False)
    asked: int | None = field(default=None, compare=False)
    is_whole: bool = field(default=True, compare=False)
    ranks: tuple[Reference, ...] = field(default=(), repr=False, compare=False)
    whole: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @functools.cached_property
    def digests(self) -> Mapping[Any, str]:
        """The digest of each sample, by its index."""
        return dict(self.samples)

    @property
    def stream_count(self) -> int | None:
        """How many samples a stream has; None of one without an end, and of indices."""
        has_end = self.kind == "iterable" and self.stream_limit is None
        return len(self.samples) if has_end else None

    def unknown_batches(self, outcome: TrialFacts) -> list[tuple[Any, ...]]:
        """The batches of *outcome* that this reference does not know; samplers may draw others."""
        if self.kind == "iterable":
            return []
        samples, batches = self.digests, dict(self.batches)
        passes = [*outcome.passes, *([outcome.recovery] if outcome.recovery else [])]
        passes = [each for each in passes if not is_resized(each, outcome, self)]
        asked = dict.fromkeys(each.indices or () for one in passes for each in one.delivered)
        if samples:
            return [indices for indices in asked if not samples.keys() >= set(indices)]
        return [indices for indices in asked if indices not in batches]

    def merged_with(self, other: Reference) -> Reference:
        """This and what *other* knows."""
        names = ("samples", "batches", "leaves", "pickled_samples")
        asked = len(self.samples or self.batches) if self.asked is None else self.asked
        return replace(
            self,
            asked=asked,
            **{name: getattr(self, name) + getattr(other, name) for name in names},
        )


def is_resized(one: Pass, outcome: TrialFacts, reference: Reference) -> bool:
    """Whether the dataset of *one* was made under faults, or after them, and has another length."""
    is_known = one.length is not None and reference.total is not None
    return outcome.from_start and is_known and one.length != reference.total


def nondeterminism_message(reference: Reference, contract: Contract) -> str:
    """What to say where no comparison of *contract* finds a sample to be the same twice."""
    index = reference.unstable_index
    what = f"sample {index!r} was different when it was read a second time in the same process"
    if reference.unstable_part:
        what += f": {reference.unstable_part}"
    if contract.deterministic:
        return (
            f"the contract promises deterministic=True, but {what}. Seed samples by their index,"
            " turn augmentation off in the test, or leave deterministic out"
        )
    if contract.compare:
        return f"{what}. The contract's compare has to say that the two are the same"
    return (
        f"{what}. Not even types are the same, so a wrong sample could not be told. Say what is"
        " the same: Contract(compare=...)"
    )


def require_samples(reference: Reference, contract: Contract) -> None:
    """What is missing or replaced can be seen only where batches come apart into samples."""
    if (contract.may_skip or contract.may_substitute) and not reference.samples:
        message = (
            f"contract={contract!r}: the batches cannot be taken apart into samples, so the battery"
            " cannot see which are missing or replaced. Say how: Contract(split=...)"
        )
        raise InvalidArgumentError(message)


def difference(expected: Leaves, came: Leaves) -> str:
    """The first part of a sample that differs from the reference; empty if none is known."""
    if not expected or not came:
        return ""
    known = {path: (form, digest) for path, form, digest in expected}
    for path, form, digest in came:
        if path not in known:
            return f"it has {path}, which is not in the reference"
        if known[path] != (form, digest if known[path][1] else ""):
            return _differs(path, known[path], (form, digest))
    there = {path for path, _, _ in came}
    absent = next((path for path in known if path not in there), None)
    return "" if absent is None else f"{absent} is missing"


_LONG = 24
"""Digests have this length. What is shorter is the value itself."""


def _differs(path: str, expected: tuple[str, str], came: tuple[str, str]) -> str:
    if expected[0] != came[0]:
        return f"{path or 'it'} is {came[0]} instead of {expected[0]}"
    part = f"{path} ({came[0]})" if path else came[0]
    if came[1] == ZEROS:
        return f"{part} is all zeros, unlike in the reference"
    if expected[1] != ZEROS and max(len(expected[1]), len(came[1])) < _LONG:
        return f"{path or 'it'} is {came[1]} instead of {expected[1]}"
    return f"{part} differs from the reference"
