"""What a dataset delivers without a fault, and how many samples a sampler should draw. Pure.

Some facts about a stream that makes its own batches. Each worker fills batches from its own shards,
in any order, so the batches differ if there are more workers, or if a shard is skipped: all of
their rows are in the reference, but none of the batches.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison, Sample
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Batch, Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.text import pluralize


@dataclass(frozen=True)
class Expected:
    """What a dataset delivers without a fault.

    Attributes:
        by_key: Each sample of a map-style dataset; None for a stream.
        counts: How often each sample is delivered, by its digest.
        comparison: What is compared of the samples.
        shares: The samples of each worker of a stream, if they are always the same.
        has_own_files: Whether each sample of a stream has its own file.
        limit: After how many samples of each worker an endless stream is stopped.
        of_all_ranks: The samples of all ranks, if those of this rank differ from epoch to epoch.
        rows: What is expected in rows, if a stream makes its own batches, which workers decide.
        batches: The sorted rows of each batch of such a stream.
    """

    by_key: Mapping[Any, Sample] | None
    counts: Counter[str]
    comparison: Comparison = EXACT
    shares: Mapping[int, Counter[str]] = field(default_factory=dict)
    has_own_files: bool = False
    limit: int | None = None
    of_all_ranks: Counter[str] = field(default_factory=Counter)
    rows: Expected | None = None
    batches: Collection[Sequence[str]] = ()

    @classmethod
    def from_reference(cls, reference: Reference, workers: int = 0) -> Expected:
        """What a trial with so many *workers* delivers if its samples are those of *reference*."""
        if reference.kind == "map":
            counts = Counter(reference.digests.values())
            return cls(dict(reference.samples), counts, reference.comparison)
        is_divisible = not reference.undivided_samples and reference.stream_limit is None
        rows = reference.rows if is_divisible else None
        batches_by_worker = divide(reference.fault_free)
        known = batches_by_worker if len(batches_by_worker) == workers else {}
        shares = {worker: _count(each.digests for each in known[worker]) for worker in known}
        row_shares = {worker: _count(each.rows for each in known[worker]) for worker in known}
        return cls(
            None,
            Counter(reference.digests.values()),
            reference.comparison,
            shares=shares,
            has_own_files=_has_own_files(reference.fault_free, batches_by_worker),
            limit=reference.stream_limit,
            of_all_ranks=Counter(reference.undivided_samples),
            rows=cls(None, rows, shares=row_shares) if rows else None,
            batches={tuple(sorted(each)) for each in reference.parts},
        )

    @cached_property
    def owners(self) -> Mapping[str, Any]:
        """The key of each content that only one sample has."""
        samples = self.by_key or {}
        counts = Counter(sample.content for sample in samples.values())
        return {each.content: key for key, each in samples.items() if counts[each.content] == 1}

    @cached_property
    def keys_by_digest(self) -> Mapping[str, Any]:
        """A key of each digest that shows which sample it is.

        If parts of samples vary, the digest may be that of a label, which many samples share.
        """
        comparison = self.comparison
        samples = {} if comparison.in_batches or comparison.mask else self.by_key or {}
        return {sample.digest: key for key, sample in samples.items()}

    def align(self, epoch: Pass) -> tuple[Pass, Expected]:
        """*epoch* and what is expected of it, both in samples or both in rows."""
        if self.rows is None or not self._is_regrouped(epoch):
            return epoch, self
        batches = (replace(each, samples=tuple(map(Sample, each.rows))) for each in epoch.delivered)
        return replace(epoch, delivered=tuple(batches)), self.rows

    def _is_regrouped(self, epoch: Pass) -> bool:
        """Whether a stream's own batches consist of other rows."""
        others = [each for each in epoch.delivered if not self.counts.keys() >= {*each.digests}]
        has_rows = bool(others) and all(each.rows for each in epoch.delivered)
        return has_rows and not any(tuple(sorted(each.rows)) in self.batches for each in others)


def divide(fault_free: Outcome | None) -> Mapping[int, Sequence[Batch]]:
    """The batches of each worker of a stream in *fault_free*; empty if they are not known."""
    if fault_free is None:
        return {}
    batches: dict[int, list[Batch]] = {
        each.worker: [] for each in fault_free.workers if each.worker is not None
    }
    for batch in fault_free.delivered:
        if batch.worker is None or batch.is_whole:
            return {}
        batches.setdefault(batch.worker, []).append(batch)
    return batches


def _count(digests: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(itertools.chain.from_iterable(digests))


def _has_own_files(
    fault_free: Outcome | None, batches_by_worker: Mapping[int, Sequence[Batch]]
) -> bool:
    """Whether each worker used as many files as it made samples."""
    files = {each.worker: len(each.files) for each in fault_free.workers} if fault_free else {}
    return bool(batches_by_worker) and all(
        files.get(worker, 0) == sum(len(each.samples) for each in batches)
        for worker, batches in batches_by_worker.items()
    )


# Some facts about samplers that keep their position. A loader calls ``iter(sampler)`` for each
# epoch. A sampler that returns itself, or a generator that is the sampler, continues where it was.
# That has no effect as long as each epoch is completed. But after a ``break`` or an error, the next
# epoch has only the rest: the loop receives every sample that was drawn, and nothing shows which
# were not.
#
# Some facts about samplers whose number of samples varies. Such a sampler usually has no length, or
# one that no epoch reaches. So its length counts only if the fault-free run drew exactly as many
# batches. A sampler that packs samples into batches differently may need fewer batches for the same
# number of samples. So both numbers must be too small.


USED_UP = Cause(
    "returns fewer samples in the second epoch",
    fix="create iterators and generators in __iter__",
)
CONTINUES = Cause(
    "resumes where an interrupted epoch stopped",
    fix="start over in every call of __iter__",
)
SAMPLER_CONTINUES = CONTINUES._replace(
    advice="The sampler kept its position from the previous epoch, which was not finished. Start"
    " over in every call of its __iter__: write it as a generator function, and keep no iterator or"
    " position on self",
)


def find_shortfall(outcome: Outcome, reference: Reference) -> Finding | None:
    """The first complete epoch whose sampler drew too few samples."""
    if outcome.kind != "map":
        return None
    for number, epoch in enumerate(outcome.epochs, start=1):
        if shortfall := _describe_shortfall(epoch, reference):
            previous = _unfinished_epoch(outcome.epochs[: number - 1])
            sentence = (
                f"in epoch {number}{_describe_previous(previous)}, the sampler drew {shortfall}"
            )
            cause = SAMPLER_CONTINUES if epoch.drawn and previous else USED_UP
            return Finding(Verdict.CORRUPTED, sentence, cause)
    return None


def count_drawn(fault_free: Outcome | None) -> int | None:
    """How many samples the sampler drew in *fault_free*, if in as many batches as it promised."""
    if fault_free is None:
        return None
    (epoch,) = fault_free.epochs
    has_length = fault_free.kind == "map" and len(epoch.drawn) == epoch.batches
    return sum(map(len, epoch.drawn)) if has_length else None


def _describe_shortfall(epoch: Pass, reference: Reference) -> str:
    """What was drawn in *epoch*, if that is too little; otherwise empty."""
    if not epoch.complete:
        return ""
    if not epoch.drawn:
        return "no indices, so no samples were delivered" if reference.samples else ""
    drawn, expected = sum(map(len, epoch.drawn)), count_drawn(reference.fault_free) or 0
    if drawn >= expected or len(epoch.drawn) >= (epoch.batches or 0):
        return ""
    promised = pluralize(epoch.batches or 0, "batch")
    batches = f"{len(epoch.drawn)} of the {promised} that its length promises"
    return f"{drawn} of the {pluralize(expected, 'sample')} of an epoch, in {batches}"


def _unfinished_epoch(epochs: Sequence[Pass]) -> Pass | None:
    """The last of the *epochs*, if it was not completed."""
    return epochs[-1] if epochs and not epochs[-1].complete else None


def _describe_previous(epoch: Pass | None) -> str:
    if epoch is None:
        return ""
    return f", after one that {'ended with an error' if epoch.exception else 'was left early'}"
