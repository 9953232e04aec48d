"""Which samples are wrong, missing, repeated or substitutes, and which of them may be. Pure.

Some facts about whom a fault hits. A read that fails belongs to the sample that was being made. A
file that is shorter, damaged or closed stays so: the next samples read from it, too, without
another firing. And where several samples are made at once, or the list of firings was cut off, it
is not known whose it was. In those cases any sample may have been hit.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.contract import (
    Compared,
    Contract,
    Finding,
    Mismatch,
    Verdict,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge import streams
from pytest_dataloader_faults.outcomes.records import (
    MANY,
    ZEROS,
    Delivery,
    FaultFacts,
    Firing,
    Leaves,
    Pass,
    TrialFacts,
)
from pytest_dataloader_faults.outcomes.reference import Reference, comparable, difference
from pytest_dataloader_faults.outcomes.text import are, counted, listed

_SHOWN = 5
_ANY_NUMBER = 1 << 62


class _AllIndices(Container[Any]):
    """Every index."""

    def __contains__(self, _index: object) -> bool:
        return True


@dataclass(frozen=True)
class Tolerance:
    """What may be missing or different in an epoch.

    Attributes:
        missing: Indices of samples that may be missing.
        lost: How many operations failed. A stream that has a file for each sample may miss as many.
        content: Whether samples may have other content, which was read from damaged files.
        substituted: Indices of samples that another one, or a dummy, may have come for.
        unlike: Of these: where a dummy need not be the same for several samples.
        replaced: How many samples of a stream may have come in place of others.
        workers: How many workers there were.
        hit_workers: Those of a stream whose samples may be missing.
    """

    missing: Container[Any] = ()
    lost: int = 0
    content: bool = False
    substituted: Container[Any] = ()
    unlike: Container[Any] = ()
    replaced: int = 0
    workers: int = 0
    hit_workers: Container[int | None] = ()


NOTHING = Tolerance()


def _tolerance(outcome: TrialFacts, contract: Contract, number: int) -> Tolerance:
    content = may_be_damaged(outcome, contract)
    hit, count = _hit(outcome, number)
    may = Tolerance(content=content)
    if contract.may_skip:
        workers = len({each.worker for each in outcome.workers})
        hit_workers = _hit_workers(outcome, number)
        may = replace(may, missing=hit, lost=count, workers=workers, hit_workers=hit_workers)
    if contract.may_substitute:
        unlike = _hit_by_errors(outcome, number)
        may = replace(may, substituted=hit, unlike=unlike, replaced=count)
    return may


def _hit(outcome: TrialFacts, number: int) -> tuple[Container[Any], int]:
    """The samples that faults may have hit in epoch *number*, and how many at most."""
    if _lasting(outcome.faults):
        return _AllIndices(), _ANY_NUMBER
    hits = _firings_in(number, outcome.faults)
    unlisted = sum(each.fired - len(each.firings) for each in outcome.faults)
    is_unknown = unlisted or any(one.sample is None for one in hits)
    samples = _AllIndices() if is_unknown else {one.sample for one in hits}
    return samples, len(hits) + unlisted


def _lasting(facts: Iterable[FaultFacts]) -> list[Firing]:
    """Occurrences after which a file stays as it then is."""
    lasting = (each for each in facts if Effect.LASTING in each.fault.effects)
    return [one for each in lasting for one in each.firings]


def _firings_in(number: int, facts: Iterable[FaultFacts]) -> list[Firing]:
    """Occurrences in epoch *number*, in one that is not known, or while the dataset was made."""
    return [one for each in facts for one in each.firings if one.epoch in (None, 0, number)]


def _hit_workers(outcome: TrialFacts, number: int) -> Container[int | None]:
    """The workers that faults may have hit; what hits the loader's own process hits all."""
    hits = (*_lasting(outcome.faults), *_firings_in(number, outcome.faults))
    found = {each.worker for each in hits}
    return _AllIndices() if None in found else found


def _hit_by_errors(outcome: TrialFacts, number: int) -> set[Any]:
    """The samples for which nothing was read; None stands for those of a stream."""
    gave_nothing = (
        each
        for each in outcome.faults
        if each.fault.errno or (isinstance(each.fault, TruncatedFile) and not each.fault.keep)
    )
    return {one.sample for one in _firings_in(number, gave_nothing)}


def may_be_damaged(outcome: TrialFacts, contract: Contract) -> bool:
    """Whether samples may have other content, since bytes of files were damaged."""
    damaged = any(isinstance(each.fault, CorruptedFile) for each in outcome.faults if each.fired)
    return damaged and not contract.detects_corruption


def corruption(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    """The first sample under the faults that is not as it has to be."""
    for number, one in enumerate(outcome.passes, start=1):
        may = _tolerance(outcome, contract, number)
        if wrong := first_mismatch(one, reference, may):
            where = f"in epoch {number}, " if len(outcome.passes) > 1 else ""
            before = " before it" if one.exception else ""
            sentence = f"{where}{wrong.sentence}, and no exception was raised{before}"
            return Finding(Verdict.CORRUPTED, sentence, wrong.kind)
    return None


def first_mismatch(one: Pass, reference: Reference, may: Tolerance = NOTHING) -> Mismatch | None:
    """What is not as it should be in the batches of *one*, or None."""
    if reference.kind == "iterable":
        return next(streams.mismatches(one, reference, may), None)
    found = _wrong_batch(one, reference, may) or _missing(one)
    if found and found.kind is Wrong.SUBSTITUTED and _is_reordered(one, reference):
        sentence = f"{found.sentence}; every sample came, but some for the indices of others"
        return Mismatch(Wrong.REORDERED, sentence)
    return found


def _is_reordered(one: Pass, reference: Reference) -> bool:
    """Whether each sample came as often as it was asked for, whatever its index."""
    asked = Counter(reference.digests.get(index) for indices in one.drawn for index in indices)
    came = Counter(digest for each in one.delivered for digest in each.rows or ())
    return asked == came


def count_skipped(outcome: TrialFacts, reference: Reference) -> int:
    """How many samples are missing in the epochs that came to their end."""
    return sum(_skipped_in(one, reference) for one in outcome.passes if one.complete)


def count_substituted(outcome: TrialFacts, reference: Reference) -> int:
    """How many samples came in place of others."""
    if reference.kind == "iterable":
        epochs = (streams.counts(one, reference) for one in outcome.passes)
        return sum(sum((came - known).values()) for known, came in epochs)
    samples = reference.digests
    pairs = (
        pair
        for each in outcome.delivered
        if len(each.indices or ()) == len(each.rows or ())
        for pair in zip(each.indices or (), each.rows or (), strict=True)
    )
    return sum(samples[index] != digest for index, digest in pairs)


def _skipped_in(one: Pass, reference: Reference) -> int:
    if reference.kind == "iterable":
        return streams.count_missing(one, reference)
    split = [each for each in one.delivered if each.rows is not None]
    return sum(len(each.indices or ()) - len(each.rows or ()) for each in split)


def _wrong_batch(one: Pass, reference: Reference, may: Tolerance) -> Mismatch | None:
    samples, batches = reference.digests, dict(reference.batches)
    substitutes = Substitutes.among(one, reference)
    for place, delivery in enumerate(one.delivered):
        indices = delivery.indices or ()
        if delivery.rows is not None and samples:
            if wrong := _wrong_rows(place, delivery, reference, may, substitutes):
                return wrong
        elif samples or (batches[indices] != delivery.digest and not may.content):
            what = (
                f"batch {place} does not hold the samples {list(indices)} that were asked for"
                if delivery.rows is None
                else f"batch {place} is wrong: it differs from the reference"
            )
            return Mismatch(Wrong.DIFFERS, what)
    return None


def _missing(one: Pass) -> Mismatch | None:
    if not one.complete:
        return None
    asked = Counter(index for indices in one.drawn for index in indices)
    came = Counter(index for each in one.delivered for index in each.indices or ())
    missing = list((asked - came).elements())
    if not missing:
        return None
    count, batches = len(missing), counted(len(one.drawn), "batch")
    ended = f"the loop ended after {len(one.delivered)} of {batches}"
    told = f"{counted(count, 'sample')} {are(count)} missing ({listed(missing, _SHOWN)})"
    return Mismatch(Wrong.CUT_SHORT, f"{ended}: {told}")


def _wrong_rows(
    place: int,
    delivery: Delivery,
    reference: Reference,
    may: Tolerance,
    substitutes: Substitutes,
) -> Mismatch | None:
    indices, rows, samples = delivery.indices or (), delivery.rows or (), reference.digests
    if len(rows) != len(indices):
        return _too_few(place, delivery, samples, may)
    for at, (index, digest) in enumerate(zip(indices, rows, strict=True)):
        if samples[index] == digest:
            continue
        came = delivery.leaves[at] if at < len(delivery.leaves) else ()
        came = comparable(came, reference.comparison.varying)
        instead = substitutes.describe(index, place, came)
        is_known = instead is not None or digest in substitutes.digests
        if not _is_allowed(index, may, is_substitute=instead is not None, is_known=is_known):
            return instead or _instead(index, place, digest, came, reference)
    return None


def _is_allowed(index: Any, may: Tolerance, *, is_substitute: bool, is_known: bool) -> bool:
    """Whether another content may come for the sample *index*.

    *is_substitute*: it is certainly another sample's, or a dummy. *is_known*: it may be.
    """
    if index in may.substituted and (is_known or index in may.unlike):
        return True
    return may.content and not is_substitute


def _too_few(
    place: int, delivery: Delivery, samples: Mapping[Any, str], may: Tolerance
) -> Mismatch | None:
    """Of a batch that has fewer samples than were asked for, in whatever order."""
    indices = list(delivery.indices or ())
    left = sorted(indices, key=lambda index: index in may.missing)
    for at, digest in enumerate(delivery.rows or ()):
        found = next((index for index in left if samples[index] == digest), None)
        if found is None and not (may.content and left):
            sentence = f"sample {at} of batch {place} is none of {indices}, which were asked for"
            return Mismatch(Wrong.UNKNOWN, sentence)
        left.remove(left[-1] if found is None else found)
    lost = [index for index in left if index not in may.missing]
    if not lost:
        return None
    asked = f"batch {place} does not hold the samples {indices} that were asked for"
    sentence = f"{asked}: {sorted(lost, key=indices.index)} are missing"
    return Mismatch(Wrong.MISSING, sentence)


def _instead(index: Any, place: int, digest: str, came: Leaves, reference: Reference) -> Mismatch:
    owners = {digest: index for index, digest in reference.samples}
    # Where parts are left out, what is left may be a label, which many samples have.
    if digest in owners and not reference.comparison.varying:
        return substituted(index, place, owners[digest])
    expected = dict(reference.leaves).get(index, ())
    how = difference(expected, came) or "it differs from the reference"
    return Mismatch(Wrong.DIFFERS, f"{_sample_at(index, place)} is wrong: {how}")


# Some facts about telling a substitute from damage. Damaged bytes do not make the picture of
# another sample, and they do not make two pictures the same. But they may well make another
# sample's label, length or mask. So only the large parts of a sample count, all of them together,
# and only where the samples of the reference differ in them.


_ROW = 3
"""So many samples are told by the first and the last one, if they lie side by side."""
_DIGEST = 24
"""Digests have this length. What is shorter is the value itself."""
_SHAPE = re.compile(r"\(([\d, ]*)\)")


@dataclass(frozen=True)
class Substitutes:
    """What can be recognised as a substitute in one epoch.

    Attributes:
        digests: Those of all samples in the reference.
        expected: The large parts of each sample in the reference.
        owners: Which sample has these large parts, if one has them and no other.
        repeated: Large parts that came for several samples, which differ in the reference.
    """

    digests: Collection[str] = ()
    expected: Mapping[Any, Leaves] = field(default_factory=dict)
    owners: Mapping[Leaves, Any] = field(default_factory=dict)
    repeated: Mapping[Leaves, list[Any]] = field(default_factory=dict)

    @classmethod
    def among(cls, one: Pass, reference: Reference) -> Substitutes:
        """Those in the map-style epoch *one*; none where less than the content was compared."""
        digests = frozenset(digest for _, digest in reference.samples)
        if reference.comparison.what is not Compared.BYTES:
            return cls(digests)
        expected = {index: _large_parts(parts) for index, parts in reference.leaves}
        counts = Counter(expected.values())
        owners = {parts: index for index, parts in expected.items() if counts[parts] == 1}
        came: dict[Leaves, list[Any]] = defaultdict(list)
        for index, parts in _came(one, reference):
            if parts != expected.get(index):
                came[parts].append(index)
        repeated = {
            parts: indices
            for parts, indices in came.items()
            if len({expected.get(index) for index in indices}) > 1
        }
        return cls(digests, expected, owners, repeated)

    def describe(self, index: Any, place: int, came: Leaves) -> Mismatch | None:
        """What came in place of the sample *index* of the batch at *place*.

        None where it may be what was read.
        """
        parts = _large_parts(came)
        if not parts or parts == self.expected.get(index):
            return None
        if parts in self.owners:
            return substituted(index, place, self.owners[parts])
        alike = self.repeated.get(parts, [])
        if len(alike) < 2:  # noqa: PLR2004  # it and another one
            return None
        what = "alike, all zeros" if all(each[2] == ZEROS for each in parts) else "alike"
        return Mismatch(Wrong.ALIKE, f"{_named(alike)} came {what}; in the reference they differ")


def substituted(index: Any, place: int, owner: Any) -> Mismatch:
    """The sample *index* of the batch at *place* has the content of the sample *owner*."""
    sentence = f"{_sample_at(index, place)} is wrong: it has the content of sample {owner!r}"
    return Mismatch(Wrong.SUBSTITUTED, sentence)


def _sample_at(index: Any, place: int) -> str:
    return f"sample {index!r} (batch {place})"


def _named(indices: list[Any]) -> str:
    """Samples by their *indices*, at least two: many in a row by the first and the last one."""
    if all(isinstance(each, int) for each in indices):
        least, most = min(indices), max(indices)
        if len(indices) >= _ROW and sorted(indices) == list(range(least, most + 1)):
            return f"samples {least} to {most}"
    shown, more = indices[:_SHOWN], len(indices) - _SHOWN
    texts = [*map(repr, shown), *([f"{more} more"] if more > 0 else [])]
    return f"samples {', '.join(texts[:-1])} and {texts[-1]}"


def _large_parts(leaves: Leaves) -> Leaves:
    """Those of *leaves* that do not become the same by accident."""
    return tuple(each for each in leaves if is_large(*each[1:]))


def is_large(form: str, digest: str) -> bool:
    """Whether parts of this *form* and *digest* do not become the same by accident."""
    if len(digest) < _DIGEST and digest != ZEROS:
        return False
    shape = _SHAPE.search(form)
    return shape is None or math.prod(map(int, re.findall(r"\d+", shape[1]))) >= MANY


def _came(one: Pass, reference: Reference) -> Iterator[tuple[Any, Leaves]]:
    """The large parts of each sample that came whole, by its index."""
    levels = reference.comparison.varying
    for delivery in one.delivered:
        if delivery.indices and len(delivery.indices) == len(delivery.leaves):
            parts = (_large_parts(comparable(each, levels)) for each in delivery.leaves)
            yield from zip(delivery.indices, parts, strict=True)
