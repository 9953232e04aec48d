"""Which samples are wrong, missing, repeated or substitutes. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pytest_dataloader_faults.outcomes.agreement import MANY, ZEROS, Leaf
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.judge import streams
from pytest_dataloader_faults.outcomes.judge.tolerance import NOTHING, Tolerance, tolerance_for
from pytest_dataloader_faults.outcomes.records import (
    Batch,
    Pass,
    TrialFacts,
)
from pytest_dataloader_faults.outcomes.reference import Reference, difference
from pytest_dataloader_faults.outcomes.text import is_or_are, join_some, pluralize, was_or_were

Parts: TypeAlias = tuple[Leaf, ...]
_SHOWN = 5
STOPS_EARLY = Cause(
    "ends the epoch early with a StopIteration",
    "A StopIteration that escapes from __getitem__ or collate_fn ends the loop silently, like the"
    " end of the data. It usually comes from next() on an exhausted iterator: pass next() a"
    " default, or catch the StopIteration and raise another error. If the loader has its own"
    " __iter__, make sure that it lets errors through",
    overrides=True,
    fix="pass next() a default, or raise another error",
)


def find_corruption(
    outcome: TrialFacts, reference: Reference, contract: Contract
) -> Finding | None:
    """The first sample under the faults that violates the contract."""
    for number, epoch in enumerate(outcome.epochs, start=1):
        may = tolerance_for(outcome, contract, number)
        if wrong := find_mismatch(epoch, reference, may):
            where = f"in epoch {number}, " if len(outcome.epochs) > 1 else ""
            suffix = " before it" if epoch.exception else ""
            sentence = f"{where}{wrong.sentence}, and no exception was raised{suffix}"
            return replace(wrong, sentence=sentence)
    return None


def find_mismatch(epoch: Pass, reference: Reference, may: Tolerance = NOTHING) -> Finding | None:
    """The first difference of *epoch* from the reference that is not tolerated, or None."""
    if reference.kind == "iterable":
        return next(streams.find_mismatches(epoch, reference, may), None)
    mismatch = _find_wrong_batch(epoch, reference, may) or _find_missing(epoch)
    if mismatch and mismatch.wrong is Wrong.SUBSTITUTED and _is_reordered(epoch, reference):
        if may.reordered:
            return None
        sentence = (
            f"{mismatch.sentence}; every sample was delivered, but some under the wrong index"
        )
        return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.REORDERED)
    return mismatch


def _is_reordered(epoch: Pass, reference: Reference) -> bool:
    """Whether each sample was delivered as often as it was requested, under any index."""
    requested = Counter(
        reference.digests.get(index) for indices in epoch.drawn for index in indices
    )
    delivered = Counter(digest for each in epoch.delivered for digest in each.digests)
    return requested == delivered


def count_skipped(outcome: TrialFacts, reference: Reference) -> int:
    """How many samples are missing in complete epochs."""
    return sum(_count_skipped_in(epoch, reference) for epoch in outcome.epochs if epoch.complete)


def count_substituted(outcome: TrialFacts, reference: Reference) -> int:
    """How many samples were replaced by others."""
    if reference.kind == "iterable":
        epochs = (streams.count_samples(epoch, reference) for epoch in outcome.epochs)
        return sum(sum((delivered - expected).values()) for expected, delivered in epochs)
    samples = reference.digests
    pairs = (pair for batch in outcome.delivered for pair in batch.pairs)
    return sum(samples.get(key, sample.digest) != sample.digest for key, sample in pairs)


def _count_skipped_in(epoch: Pass, reference: Reference) -> int:
    if reference.kind == "iterable":
        return streams.count_missing(epoch, reference)
    split = [each for each in epoch.delivered if not each.is_whole]
    return sum(len(each.keys or ()) - len(each.samples) for each in split)


def _find_wrong_batch(epoch: Pass, reference: Reference, may: Tolerance) -> Finding | None:
    samples, batches = reference.digests, dict(reference.batches)
    substitutes = Substitutes.among(epoch, reference)
    for place, delivery in enumerate(epoch.delivered):
        if not delivery.is_whole and samples:
            if wrong := _find_wrong_row(place, delivery, reference, may, substitutes):
                return wrong
        elif samples or not (may.content or _is_right_batch(delivery, batches)):
            sentence = (
                f"batch {place} does not contain the requested samples {list(delivery.keys or ())}"
                if delivery.is_whole
                else f"batch {place} is wrong: it differs from the reference"
            )
            return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.DIFFERS)
    return None


def _is_right_batch(delivery: Batch, batches: Mapping[tuple[Any, ...], tuple[str, ...]]) -> bool:
    """Whether a whole batch is that of the reference, if that has it."""
    delivered = delivery.digests
    return batches.get(delivery.keys or (), delivered) == delivered


def _find_missing(epoch: Pass) -> Finding | None:
    if not epoch.complete:
        return None
    requested = Counter(index for indices in epoch.drawn for index in indices)
    received = Counter(index for each in epoch.delivered for index in each.keys or ())
    missing = list((requested - received).elements())
    if not missing:
        return None
    count, batches = len(missing), pluralize(len(epoch.drawn), "batch")
    delivered = len(epoch.delivered)
    ended = f"only {delivered} of {batches} {was_or_were(delivered)} delivered"
    loss = f"{pluralize(count, 'sample')} {is_or_are(count)} missing ({join_some(missing, _SHOWN)})"
    return Finding(Verdict.CORRUPTED, f"{ended}: {loss}", STOPS_EARLY)


def _find_wrong_row(
    place: int,
    delivery: Batch,
    reference: Reference,
    may: Tolerance,
    substitutes: Substitutes,
) -> Finding | None:
    samples = reference.digests
    if not delivery.is_complete:
        return _find_lost_row(place, delivery, samples, may)
    for index, (digest, recorded_parts) in delivery.pairs:
        if samples.get(index, digest) == digest:
            continue
        parts = tuple(reference.comparison.reduce(recorded_parts))
        instead = substitutes.describe(index, place, parts)
        is_known = instead is not None or digest in substitutes.digests
        if not _is_allowed(index, may, is_substitute=instead is not None, is_known=is_known):
            return instead or _describe_wrong_sample(index, place, digest, parts, reference)
    return None


def _is_allowed(index: Any, may: Tolerance, *, is_substitute: bool, is_known: bool) -> bool:
    """Whether the sample *index* may have different content.

    *is_substitute*: the content is certainly another sample's, or a placeholder. *is_known*: it may
    be one.
    """
    if index in may.substituted and (is_known or index in may.unlike):
        return True
    return may.content and not is_substitute


def _find_lost_row(
    place: int, delivery: Batch, samples: Mapping[Any, str], may: Tolerance
) -> Finding | None:
    """The mismatch of a batch with fewer samples than requested, in any order."""
    indices = list(delivery.keys or ())
    remaining = sorted(indices, key=lambda index: index in may.missing)
    for at, digest in enumerate(delivery.digests):
        owner = next((index for index in remaining if samples.get(index) == digest), None)
        if owner is None and not (may.content and remaining):
            sentence = f"sample {at} of batch {place} is none of the requested {indices}"
            return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.DIFFERS)
        remaining.remove(remaining[-1] if owner is None else owner)
    lost = [index for index in remaining if index not in may.missing]
    if not lost:
        return None
    missing = sorted(lost, key=indices.index)
    are_missing = f"{missing} {is_or_are(len(missing))} missing"
    sentence = f"batch {place} does not contain the requested samples {indices}: {are_missing}"
    return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.MISSING)


def _describe_wrong_sample(
    index: Any, place: int, digest: str, parts: Parts, reference: Reference
) -> Finding:
    owners = {digest: index for index, digest in reference.digests.items()}
    # If parts vary, the compared rest may be a label, which many samples share.
    if digest in owners and not reference.comparison.mask:
        return substitution(index, place, owners[digest])
    expected = reference.comparison.reduce(dict(reference.samples)[index].parts)
    change = difference(tuple(expected), parts) or "it differs from the reference"
    return Finding(
        Verdict.CORRUPTED, f"{_sample_at(index, place)} is wrong: {change}", wrong=Wrong.DIFFERS
    )


# Some facts about telling a substitute from damage. Damaged bytes do not turn one image into
# another sample's image, or two images into the same. But they may well produce another sample's
# label, length or mask. So only the large parts of a sample count, all of them together, and only
# if the samples of the reference differ in them.


_ROW = 3
"""This many consecutive samples are named by the first and the last one."""
_DIGEST = 24
"""The length of digests. Anything shorter is the value itself."""
_SHAPE = re.compile(r"\(([\d, ]*)\)")


@dataclass(frozen=True)
class Substitutes:
    """What identifies a substitute in one epoch.

    Attributes:
        digests: The digests of all samples in the reference.
        expected: The large parts of each sample in the reference.
        owners: The sample that has these large parts, if only one has them.
        repeated: The samples that were delivered with the same large parts, but differ in the
            reference.
    """

    digests: Collection[str] = ()
    expected: Mapping[Any, Parts] = field(default_factory=dict)
    owners: Mapping[Parts, Any] = field(default_factory=dict)
    repeated: Mapping[Parts, list[Any]] = field(default_factory=dict)

    @classmethod
    def among(cls, epoch: Pass, reference: Reference) -> Substitutes:
        """The substitutes in the map-style *epoch*; none if the content was not compared."""
        digests = frozenset(reference.digests.values())
        if reference.comparison.by_form:
            return cls(digests)
        compared = reference.comparison.reduce
        expected = {
            index: _large_parts(compared(sample.parts)) for index, sample in reference.samples
        }
        counts = Counter(expected.values())
        owners = {parts: index for index, parts in expected.items() if counts[parts] == 1}
        indices_by_parts: dict[Parts, list[Any]] = defaultdict(list)
        for index, parts in _large_parts_by_index(epoch, reference):
            if parts != expected.get(index):
                indices_by_parts[parts].append(index)
        repeated = {
            parts: indices
            for parts, indices in indices_by_parts.items()
            if len({expected.get(index) for index in indices}) > 1
        }
        return cls(digests, expected, owners, repeated)

    def describe(self, index: Any, place: int, leaves: Parts) -> Finding | None:
        """The substitute for the sample *index* of the batch at *place*.

        None if the content may have been read from the sample's own file.
        """
        parts = _large_parts(leaves)
        if not parts or parts == self.expected.get(index):
            return None
        if parts in self.owners:
            return substitution(index, place, self.owners[parts])
        indices = self.repeated.get(parts, [])
        if len(indices) < 2:  # noqa: PLR2004  # this sample and another one
            return None
        identical = (
            "identical (all zeros)" if all(each[2] == ZEROS for each in parts) else "identical"
        )
        return Finding(
            Verdict.CORRUPTED,
            f"{_name_samples(indices)} are {identical}, but differ in the reference",
            wrong=Wrong.IDENTICAL,
        )


def substitution(index: Any, place: int, owner: Any) -> Finding:
    """The sample *index* of the batch at *place* has the content of the sample *owner*."""
    sentence = f"{_sample_at(index, place)} is wrong: it has the content of sample {owner!r}"
    return Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.SUBSTITUTED)


def _sample_at(index: Any, place: int) -> str:
    return f"sample {index!r} (batch {place})"


def _name_samples(indices: list[Any]) -> str:
    """Name the samples with these *indices*, two or more; consecutive ones as a range."""
    if all(isinstance(each, int) for each in indices):
        lowest, highest = min(indices), max(indices)
        if len(indices) >= _ROW and sorted(indices) == list(range(lowest, highest + 1)):
            return f"samples {lowest} to {highest}"
    examples, omitted = indices[:_SHOWN], len(indices) - _SHOWN
    texts = [*map(repr, examples), *([f"{omitted} more"] if omitted > 0 else [])]
    return f"samples {', '.join(texts[:-1])} and {texts[-1]}"


def _large_parts(leaves: Iterable[Leaf]) -> Parts:
    """The *leaves* that are too large to be the same by accident."""
    return tuple(each for each in leaves if is_large(*each[1:]))


def is_large(form: str, digest: str) -> bool:
    """Whether a part of this *form* and *digest* is too large to be the same by accident."""
    if len(digest) < _DIGEST and digest != ZEROS:
        return False
    shape = _SHAPE.search(form)
    return shape is None or math.prod(map(int, re.findall(r"\d+", shape[1]))) >= MANY


def _large_parts_by_index(epoch: Pass, reference: Reference) -> Iterator[tuple[Any, Parts]]:
    """The index and the large parts of each sample in batches without missing samples."""
    compared = reference.comparison.reduce
    for key, sample in (pair for batch in epoch.delivered for pair in batch.pairs):
        if key is not None and sample.parts:
            yield key, _large_parts(compared(sample.parts))
