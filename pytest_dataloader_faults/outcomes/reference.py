"""The samples of a fault-free run, and the ways to compare samples with them. Pure."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison, Sample
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.records import Outcome

ENOUGH_SAMPLES = 8
"""Fewer random samples can be equal by accident."""
_DISTINCT_SHARE = 0.9
"""The share of the rows of own batches that must be distinct."""


@dataclass(frozen=True)
class Reference:
    """The samples of a dataset without faults, read one by one in one process.

    Attributes:
        kind: ``"map"`` or ``"iterable"``.
        samples: By index, or by the tuple of its indices if a batch is compared as one sample; by
            place in a stream.
        unstable: What is wrong if a sample differed between two reads, whatever is compared; or "".
        varying: In how many samples each part differed, by its path.
        second_pass_count: How many samples a stream returned in a second pass, if fewer.
        comparison: How samples are compared, as in an outcome.
        limit: About how many samples were requested; None for all.
        total: How many samples there are to draw.
        readable: The same, or the length of the dataset if the loader has a custom sampler.
        batch_size: How many samples a batch may have; None if all samples are checked.
        stream_limit: After how many samples an endless stream was stopped; None if it ended.
        fault_free: A trial of one epoch without a fault, in which nothing was wrong; None if there
            is none.
        draws: What the sampler drew for each batch, pickled and in base64; empty for a stream.
        is_whole: Whether each epoch has each of these samples exactly once; a sampler may draw some
            at random.
        members: The reference of each member of a group of jobs, if this is that of the group.
        parts: The digests of the rows of each batch, for a stream that makes its own batches.
            Two reads agree if they have the same rows, in whichever batches.
        is_of_worker: Whether a worker has read the samples, because no other process could.
        is_of_all_workers: Whether all workers have read them, because one worker alone could not.
        undivided_samples: The digests that all members of a group return together of a stream; the
            part of each may differ from epoch to epoch. Empty if this reference is complete.
        lacks_workers: Whether the loader has ``num_workers=0``, torch's default.
        displaced: What may be at an index, or in a batch, if the dataset lacks a file of an earlier
            sample: samples of later indices, with the random numbers of these.
    """

    kind: str
    samples: tuple[tuple[Any, Sample], ...]
    unstable: str = ""
    varying: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    second_pass_count: int | None = None
    comparison: Comparison = EXACT
    limit: int | None = None
    total: int | None = None
    readable: int | None = field(default=None, compare=False)
    batch_size: int | None = field(default=None, compare=False)
    stream_limit: int | None = None
    fault_free: Outcome | None = field(default=None, repr=False, compare=False)
    draws: tuple[str, ...] = field(default=(), repr=False, compare=False)
    is_whole: bool = field(default=True, compare=False)
    members: tuple[Reference, ...] = field(default=(), repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)
    is_of_worker: bool = field(default=False, compare=False)
    is_of_all_workers: bool = field(default=False, compare=False)
    undivided_samples: tuple[str, ...] = field(default=(), repr=False, compare=False)
    lacks_workers: bool = field(default=False, compare=False)
    displaced: tuple[tuple[Any, Any], ...] = field(default=(), repr=False, compare=False)

    @functools.cached_property
    def digests(self) -> Mapping[Any, str]:
        """The digest of each sample, by its index."""
        return {name: sample.digest for name, sample in self.samples}

    @property
    def rows(self) -> Counter[str] | None:
        """The rows of a stream's own batches; None if they may not be samples."""
        return count_rows(self.parts)

    @property
    def sample_count(self) -> int:
        """How many samples it has, those in batches included."""
        return sum(len(key) if isinstance(key, tuple) else 1 for key, _ in self.samples)

    @property
    def nondeterministic_count(self) -> int:
        """How many samples were different when they were read again, in the same part."""
        return max((count for _, count in self.varying), default=0)

    @property
    def has_content(self) -> bool:
        """Whether any content of its samples is compared, as far as their parts are recorded."""
        compared = self.comparison.reduce
        return any(part.digest for _, sample in self.samples for part in compared(sample.parts))

    @property
    def stream_count(self) -> int | None:
        """How many samples a stream has; None if it is endless, and for a map-style dataset."""
        has_end = self.kind == "iterable" and self.stream_limit is None
        return len(self.samples) if has_end else None

    def mixes(self, indices: Iterable[Any]) -> bool:
        """Whether the samples with these *indices* differ in their shapes, as far as recorded."""
        names = set(indices)
        samples = (sample for name, sample in self.samples if name in names)
        forms = (tuple(part.form for part in sample.parts) for sample in samples if sample.parts)
        return len(set(forms)) > 1


def count_rows(batches: Sequence[Sequence[str]]) -> Counter[str] | None:
    """How often each row is in a stream's own *batches*, by its digest; None if few are distinct.

    A single sample has a first dimension as well, which may be its channels. But reordered channels
    do not come from several samples, and many tokens of a text are the same.
    """
    rows = Counter(itertools.chain.from_iterable(batches))
    return rows if all(batches) and 0 < _DISTINCT_SHARE * rows.total() <= len(rows) else None


def describe_unstable(index: Any, change: str, contract: Contract) -> str:
    """The error if a sample differs between two reads under every comparison of *contract*."""
    text = f"sample {index!r} was different when it was read a second time in the same process"
    text += f": {change}" if change else ""
    if contract.key:
        return f"{text}. The contract's key must return the same for both"
    return (
        f"{text}. Not even the types are the same, so a wrong sample could not be recognized."
        " Declare what counts as the same sample: Contract(key=...)"
    )


def require_samples(reference: Reference, contract: Contract) -> None:
    """Reject a contract about single samples if batches cannot be split into samples."""
    if (contract.may_skip or contract.may_substitute) and reference.comparison.in_batches:
        message = (
            f"contract={contract!r}: the batches cannot be split into samples, so the battery"
            " cannot see which samples are missing or replaced. Declare how to split them:"
            " Contract(split=...)"
        )
        raise InvalidArgumentError(message)
