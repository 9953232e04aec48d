"""Which samples of a stream are wrong, missing or repeated. Pure.

Some facts about the samples of a stream. They have no index, and their order depends on the
workers, so they are counted. A shard that cannot be opened loses all samples that are in it, and
nobody but the dataset knows which these are. But each worker reads shards of its own: where no
fault hit a worker, all samples have to come that it gave in the run without a fault.

Some facts about a stream without an end. Each worker is ended after the same number of samples.
Which samples these are depends on the workers, and often on random numbers, so only types and
shapes can be known. But workers that give the same samples in the same order read the same shards.

Some facts about the ranks of a stream. One that is shuffled gives each rank another part of the
samples in each epoch. So a rank may have samples in the second one that it did not have in the
first; which of them come twice or never, all ranks show together.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dataloader_faults.outcomes.contract import Mismatch, Wrong
from pytest_dataloader_faults.outcomes.records import Delivery, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.text import are, counted, were

if TYPE_CHECKING:
    from pytest_dataloader_faults.outcomes.judge.samples import Tolerance


# Some facts about a stream that makes its own batches. Each worker fills batches from its own
# shards, so other batches come where there are more workers, or where a shard is left out: all of
# their rows are known, and none of the batches. A single sample has a first dimension, too, which
# may be its channels. But channels in another order do not come from several samples, and of the
# tokens of a text many are the same.


_MOSTLY = 0.9
"""This share of the rows of a reference has to be distinct."""


def taken_apart(one: Pass, reference: Reference) -> tuple[Pass, Reference]:
    """Both with rows in place of batches, if a stream's own batches were put together otherwise."""
    if not _is_regrouped(one, reference):
        return one, reference
    rows = [row for parts in reference.parts for row in parts]
    delivered = tuple(replace(each, rows=each.parts, leaves=()) for each in one.delivered)
    samples = tuple(enumerate(rows))
    return replace(one, delivered=delivered), replace(reference, samples=samples, shares=())


def _is_regrouped(one: Pass, reference: Reference) -> bool:
    has_parts = bool(reference.parts) and all(each.parts for each in one.delivered)
    if not has_parts or reference.whole or reference.stream_limit is not None:
        return False
    known = {digest for _, digest in reference.samples}
    others = [each for each in one.delivered if not known.issuperset(digests(each))]
    rows = Counter(row for parts in reference.parts for row in parts)
    same_rows = {tuple(sorted(parts)) for parts in reference.parts}
    is_reordered = any(tuple(sorted(each.parts)) in same_rows for each in others)
    return bool(others) and not is_reordered and len(rows) >= _MOSTLY * rows.total()


def digests(delivery: Delivery) -> tuple[str, ...]:
    """Of each sample; of the whole batch, where it cannot be split. An empty batch has none."""
    return (delivery.digest,) if delivery.rows is None else delivery.rows


def counts(one: Pass, reference: Reference) -> tuple[Counter[str], Counter[str]]:
    """How often each sample of a stream is in the reference, and how often it came."""
    one, reference = taken_apart(one, reference)
    came = Counter(digest for each in one.delivered for digest in digests(each))
    known = Counter(digest for _, digest in reference.samples)
    return (_part_of(Counter(reference.whole), known, came) if reference.whole else known), came


def _part_of(whole: Counter[str], known: Counter[str], came: Counter[str]) -> Counter[str]:
    """As many samples as *known* has, those of the *whole* that *came* among them."""
    others = (came - known) & (whole - known)
    absent = itertools.islice((known - came).elements(), others.total())
    return known - Counter(absent) + others


def count_missing(one: Pass, reference: Reference) -> int:
    """How many samples of *one* are missing; of a stream without an end, of those asked for."""
    one, reference = taken_apart(one, reference)
    expected = len(reference.samples)
    if reference.stream_limit is not None:
        expected = reference.stream_limit * len(_by_worker(one))
    return expected - sum(len(digests(each)) for each in one.delivered)


def mismatches(one: Pass, reference: Reference, may: Tolerance) -> Iterator[Mismatch]:
    """What is not as it should be, the gravest first."""
    if reference.stream_limit is not None:
        yield from _in_endless(one, reference, may)
        return
    one, reference = taken_apart(one, reference)
    known, came = counts(one, reference)
    extra, missing = came - known, known - came
    repeated = sum(count for digest, count in extra.items() if digest in known)
    if repeated > may.replaced:
        told = f"{counted(repeated, 'sample')} {were(repeated)}"
        sentence = f"{told} delivered more often than in the reference"
        yield Mismatch(Wrong.REPEATED, sentence)
    unknown = extra.total() - repeated
    alone = sum(count == 1 for digest, count in extra.items() if digest not in known)
    is_dummy = unknown + repeated <= may.replaced and (may.unlike or not alone)
    if unknown and not (may.content or is_dummy):
        told = f"{counted(unknown, 'sample')} {are(unknown)} wrong"
        sentence = f"{told}: they match no sample of the reference"
        if unknown == 1:
            sentence = f"{told}: it matches no sample of the reference"
        yield Mismatch(Wrong.UNKNOWN, sentence)
    if one.complete:
        yield from _losses(one, reference, may, missing.total() - unknown - repeated)


def _losses(one: Pass, reference: Reference, may: Tolerance, lost: int) -> Iterator[Mismatch]:
    sentence = f"{lost} of {counted(len(reference.samples), 'sample')} {are(lost)} missing"
    has_shards = not all(each.files == len(each.samples) for each in reference.shares)
    if lost > 0 and not may.lost:
        yield Mismatch(Wrong.MISSING, sentence)
    elif lost > may.lost and reference.shares and not has_shards:
        yield Mismatch(Wrong.MISSING, f"{sentence}, but faults hit only {may.lost}")
    elif lost > 0:
        yield from _losses_of_others(one, reference, may)


def _losses_of_others(one: Pass, reference: Reference, may: Tolerance) -> Iterator[Mismatch]:
    """Samples missing of workers that no fault hit, if each has shards of its own."""
    if len(reference.shares) != may.workers:
        return
    came = _by_worker(one)
    for share in reference.shares:
        owed = Counter(share.samples)
        own = Counter(digest for each in came[share.worker] for digest in digests(each))
        if share.worker not in may.hit_workers and owed - own and not own - owed:
            lost = (owed - own).total()
            told = f"{counted(lost, 'sample')} of worker {share.worker} {are(lost)} missing"
            sentence = f"{told}, which no fault hit"
            yield Mismatch(Wrong.MISSING, sentence)


def _by_worker(one: Pass) -> dict[int | None, list[Delivery]]:
    found = defaultdict(list)
    for each in one.delivered:
        found[each.worker].append(each)
    return found


def _in_endless(one: Pass, reference: Reference, may: Tolerance) -> Iterator[Mismatch]:
    known = {digest for _, digest in reference.samples}
    came = _by_worker(one)
    exact = [tuple(each.digest for each in batches) for batches in came.values()]
    if len(exact) > 1 and len(set(exact)) == 1 and len(set(exact[0])) > 1:
        yield Mismatch(
            Wrong.SAME_IN_EACH_WORKER, "each worker gave the same samples in the same order"
        )
    unknown = sum(digest not in known for each in one.delivered for digest in digests(each))
    if unknown and not may.content:
        told = f"{counted(unknown, 'sample')} {are(unknown)} wrong"
        sentence = f"{told}: no sample of the reference has such types and shapes"
        yield Mismatch(Wrong.UNKNOWN, sentence)
    for worker in (came or {0: []}) if one.complete else ():
        count = sum(len(digests(each)) for each in came[worker])
        if count < (reference.stream_limit or 0) and worker not in may.hit_workers:
            sentence = f"the stream of worker {worker} ended after {counted(count, 'sample')}"
            yield Mismatch(Wrong.MISSING, sentence)
