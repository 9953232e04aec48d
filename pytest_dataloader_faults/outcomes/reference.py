"""The samples of a fault-free run, and the ways to compare samples with them. Pure."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison, Sample
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.records import Batch, Outcome

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
        varying: In how many samples each part differed, by its path.
        second_pass_count: How many samples a stream returned in a second pass, if fewer.
        comparison: How samples are compared, as in an outcome.
        limit: About how many samples were requested; None for all.
        total: How many samples there are to draw.
        readable: The same, or the length of the dataset if the loader has a custom sampler.
        batch_size: How many samples a batch may have; None if all samples are checked.
        fault_free: A trial of one epoch without a fault, in which nothing was wrong; None if there
            is none.
        draws: What the sampler drew for each batch, pickled; empty for a stream.
        is_whole: Whether each epoch has each of these samples exactly once; a sampler may draw some
            at random.
        members: The reference of each member of a group of jobs, if this is that of the group.
        parts: The digests of the rows of each batch, for a stream that makes its own batches.
            Two reads agree if they have the same rows, in whichever batches.
        workers: How many workers have read the samples, because no other process could; if one
            worker alone could not, all of them.
        undivided_samples: The digests that all members of a group return together of a stream; the
            part of each may differ from epoch to epoch. Empty if this reference is complete.
        lacks_workers: Whether the loader has ``num_workers=0``, torch's default.
        imports: How many seconds it took to import each package that pytest had not imported.
        displaced: What may be at an index if the dataset lacks a file of an earlier sample: samples
            of later indices, with the random numbers of these.
    """

    kind: str
    samples: tuple[tuple[Any, Sample], ...]
    varying: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    second_pass_count: int | None = None
    comparison: Comparison = EXACT
    limit: int | None = None
    total: int | None = None
    readable: int | None = field(default=None, compare=False)
    batch_size: int | None = field(default=None, compare=False)
    fault_free: Outcome | None = field(default=None, repr=False, compare=False)
    draws: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    is_whole: bool = field(default=True, compare=False)
    members: tuple[Reference, ...] = field(default=(), repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)
    workers: int = field(default=0, compare=False)
    undivided_samples: tuple[str, ...] = field(default=(), repr=False, compare=False)
    lacks_workers: bool = field(default=False, compare=False)
    imports: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    displaced: tuple[tuple[Any, Any], ...] = field(default=(), repr=False, compare=False)

    @functools.cached_property
    def digests(self) -> Mapping[Any, str]:
        """The digest of each sample, by its index."""
        return {name: sample.digest for name, sample in self.samples}

    @functools.cached_property
    def by_key(self) -> Mapping[Any, Sample] | None:
        """Each sample of a map-style dataset, or each batch; None for a stream."""
        return dict(self.samples) if self.kind == "map" else None

    @functools.cached_property
    def counts(self) -> Counter[str]:
        """How often each sample is delivered, by its digest."""
        return Counter(self.digests.values())

    @functools.cached_property
    def owners(self) -> Mapping[str, Any]:
        """The index of each content that only one sample has."""
        samples = self.by_key or {}
        counts = Counter(sample.content for sample in samples.values())
        return {each.content: key for key, each in samples.items() if counts[each.content] == 1}

    @functools.cached_property
    def keys_by_digest(self) -> Mapping[str, Any]:
        """An index of each digest that shows which sample it is.

        If parts of samples vary, the digest may be that of a label, which many samples share.
        """
        comparison = self.comparison
        samples = {} if comparison.in_batches or comparison.mask else self.by_key or {}
        return {sample.digest: key for key, sample in samples.items()}

    @functools.cached_property
    def batches_by_worker(self) -> Mapping[int, Sequence[Batch]]:
        """The batches of each worker of a stream without a fault; empty if they are not known."""
        return divide(self.fault_free)

    @property
    def has_own_files(self) -> bool:
        """Whether each worker of a stream used as many files as it made samples."""
        if self.fault_free is None or not self.batches_by_worker:
            return False
        files = {each.worker: len(each.files) for each in self.fault_free.workers}
        return all(
            files.get(worker, 0) == sum(len(each.samples) for each in batches)
            for worker, batches in self.batches_by_worker.items()
        )

    @functools.cached_property
    def in_rows(self) -> Reference | None:
        """This reference of rows; None unless a stream makes its own batches, of distinct rows."""
        is_divisible = not self.undivided_samples and self.comparison.limit is None
        if not is_divisible or count_rows(self.parts) is None:
            return None
        rows = enumerate(map(Sample, itertools.chain(*self.parts)))
        fault_free = self.fault_free
        if fault_free is not None:  # It is not known which files the rows come from.
            workers = tuple(replace(each, files={}) for each in fault_free.workers)
            fault_free = replace(in_rows(fault_free), processes=workers)
        return replace(self, samples=tuple(rows), parts=(), fault_free=fault_free)

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
        has_end = self.kind == "iterable" and self.comparison.limit is None
        return len(self.samples) if has_end else None


def divide(fault_free: Outcome | None) -> Mapping[int, Sequence[Batch]]:
    """The batches of each worker of a stream in *fault_free*; empty if they are not known."""
    if fault_free is None:
        return {}
    if any(batch.worker is None or batch.is_whole for batch in fault_free.delivered):
        return {}
    numbers = (each.worker for each in fault_free.workers if each.worker is not None)
    return {**{each: [] for each in numbers}, **by_worker(fault_free.delivered)}


def by_worker(batches: Iterable[Batch]) -> dict[Any, list[Batch]]:
    """The *batches* of each worker, in order."""
    divided: defaultdict[Any, list[Batch]] = defaultdict(list)
    for batch in batches:
        divided[batch.worker].append(batch)
    return divided


def in_rows(outcome: Outcome) -> Outcome:
    """*outcome*, with the rows of a stream's own batches as samples."""
    passes = tuple(
        replace(
            each,
            delivered=tuple(
                replace(batch, samples=tuple(map(Sample, batch.rows))) for batch in each.delivered
            ),
        )
        for each in outcome.passes
    )
    return replace(outcome, passes=passes, ranks=tuple(map(in_rows, outcome.ranks)))


def count_rows(batches: Sequence[Sequence[str]]) -> Counter[str] | None:
    """How often each row is in a stream's own *batches*, by its digest; None if few are distinct.

    A single sample has a first dimension as well, which may be its channels. But reordered channels
    do not come from several samples, and many tokens of a text are the same.
    """
    rows = Counter(itertools.chain.from_iterable(batches))
    return rows if all(batches) and 0 < _DISTINCT_SHARE * rows.total() <= len(rows) else None


def require_samples(reference: Reference, contract: Contract) -> None:
    """Reject a contract about single samples if batches cannot be split into samples."""
    if (contract.may_skip or contract.may_substitute) and reference.comparison.in_batches:
        message = (
            f"contract={contract!r}: the batches cannot be split into samples, so the battery"
            " cannot see which samples are missing or replaced. Declare how to split them:"
            " Contract(split=...)"
        )
        raise InvalidArgumentError(message)
