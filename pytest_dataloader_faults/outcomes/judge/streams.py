"""Which samples of a stream are wrong, missing or repeated. Pure.

Some facts about the samples of a stream. They have no index, and their order depends on the
workers, so they are counted. A shard that cannot be opened loses all its samples, and only the
dataset knows which ones these are. But each worker reads its own shards, so a worker that no fault
hit must deliver all samples that it delivered in the fault-free run.

Some facts about endless streams. Each worker is stopped after the same number of samples. Which
samples these are depends on the workers, and often on random numbers, so only types and shapes are
known. But workers that return the same samples in the same order read the same shards.

Some facts about a stream that several jobs divide. If it is shuffled, each job has a different part
of the samples in each epoch. So a job may have samples in the second epoch that it did not have in
the first; only all jobs together show which samples are repeated or missing.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.contract import Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.judge.tolerance import Tolerance
from pytest_dataloader_faults.outcomes.records import Batch, Pass
from pytest_dataloader_faults.outcomes.reference import Reference, Share
from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize, was_or_were

# Some facts about a stream that makes its own batches. Each worker fills batches from its own
# shards, so the batches differ if there are more workers, or if a shard is skipped: all of their
# rows are in the reference, but none of the batches. A single sample has a first dimension as well,
# which may be its channels. But reordered channels do not come from several samples, and many
# tokens of a text are the same.


_DISTINCT_SHARE = 0.9
"""The share of the rows of a reference that must be distinct."""


def split_batches(epoch: Pass, reference: Reference) -> tuple[Pass, Reference]:
    """Both with rows instead of batches, if a stream's own batches were composed differently."""
    if not _is_regrouped(epoch, reference):
        return epoch, reference
    rows = [row for parts in reference.parts for row in parts]
    delivered = tuple(
        replace(each, samples=tuple(map(Sample, each.rows))) for each in epoch.delivered
    )
    samples = tuple(enumerate(map(Sample, rows)))
    shares = tuple(map(_share_of_rows, reference.shares))
    return replace(epoch, delivered=delivered), replace(reference, samples=samples, shares=shares)


def _share_of_rows(share: Share) -> Share:
    """*share* in rows. The number of files is unknown, because a batch uses several."""
    return replace(share, samples=share.parts, files=0)


def _is_regrouped(epoch: Pass, reference: Reference) -> bool:
    has_parts = bool(reference.parts) and all(each.rows for each in epoch.delivered)
    if not has_parts or reference.undivided_samples or reference.stream_limit is not None:
        return False
    expected = set(reference.digests.values())
    regrouped = [each for each in epoch.delivered if not expected.issuperset(each.digests)]
    rows = Counter(row for parts in reference.parts for row in parts)
    same_rows = {tuple(sorted(parts)) for parts in reference.parts}
    is_reordered = any(tuple(sorted(each.rows)) in same_rows for each in regrouped)
    return bool(regrouped) and not is_reordered and len(rows) >= _DISTINCT_SHARE * rows.total()


def count_delivered(batches: Iterable[Batch]) -> int:
    """How many samples *batches* have; one that cannot be split counts as one."""
    return sum(len(each.samples) for each in batches)


def count_samples(epoch: Pass, reference: Reference) -> tuple[Counter[str], Counter[str]]:
    """How often each sample of a stream is in the reference, and how often it was delivered."""
    epoch, reference = split_batches(epoch, reference)
    delivered = Counter(digest for each in epoch.delivered for digest in each.digests)
    expected = Counter(reference.digests.values())
    if reference.undivided_samples:
        expected = _own_part(Counter(reference.undivided_samples), expected, delivered)
    return expected, delivered


def _own_part(whole: Counter[str], part: Counter[str], delivered: Counter[str]) -> Counter[str]:
    """As many samples as *part* has, including those of the *whole* that were *delivered*."""
    moved = (delivered - part) & (whole - part)
    absent = itertools.islice((part - delivered).elements(), moved.total())
    return part - Counter(absent) + moved


def count_missing(epoch: Pass, reference: Reference) -> int:
    """How many samples of *epoch* are missing; for an endless stream, of those requested."""
    epoch, reference = split_batches(epoch, reference)
    expected = len(reference.samples)
    if reference.stream_limit is not None:
        expected = reference.stream_limit * len(_batches_by_worker(epoch))
    return expected - count_delivered(epoch.delivered)


def find_mismatches(epoch: Pass, reference: Reference, may: Tolerance) -> Iterator[Finding]:
    """The differences that are not tolerated, the most severe first."""
    if reference.stream_limit is not None:
        yield from _find_endless_mismatches(epoch, reference, may)
        return
    epoch, reference = split_batches(epoch, reference)
    expected, delivered = count_samples(epoch, reference)
    extra, missing = delivered - expected, expected - delivered
    repeated = sum(count for digest, count in extra.items() if digest in expected)
    if repeated > may.replaced:
        samples = f"{pluralize(repeated, 'sample')} {was_or_were(repeated)}"
        yield Finding(
            Verdict.CORRUPTED,
            f"{samples} delivered more often than in the reference",
            wrong=Wrong.REPEATED,
        )
    unknown = extra.total() - repeated
    singles = sum(count == 1 for digest, count in extra.items() if digest not in expected)
    is_placeholder = unknown + repeated <= may.replaced and (may.unlike or not singles)
    if unknown and not (may.content or is_placeholder):
        match = "it matches" if unknown == 1 else "they match"
        wrong = f"{pluralize(unknown, 'sample')} {is_or_are(unknown)} wrong"
        yield Finding(
            Verdict.CORRUPTED, f"{wrong}: {match} no sample of the reference", wrong=Wrong.DIFFERS
        )
    if epoch.complete:
        yield from _find_losses(epoch, reference, may, missing.total() - unknown - repeated)


def _find_losses(epoch: Pass, reference: Reference, may: Tolerance, lost: int) -> Iterator[Finding]:
    sentence = f"{lost} of {pluralize(len(reference.samples), 'sample')} {is_or_are(lost)} missing"
    has_shards = not all(each.files == len(each.samples) for each in reference.shares)
    if lost > 0 and not may.lost:
        yield Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.MISSING)
    elif lost > may.lost and reference.shares and not has_shards:
        yield Finding(
            Verdict.CORRUPTED, f"{sentence}, but faults hit only {may.lost}", wrong=Wrong.MISSING
        )
    elif lost > 0:
        yield from _find_unhit_losses(epoch, reference, may)


def _find_unhit_losses(epoch: Pass, reference: Reference, may: Tolerance) -> Iterator[Finding]:
    """Missing samples of workers that no fault hit, if each worker has its own shards."""
    if len(reference.shares) != may.workers:
        return
    batches_by_worker = _batches_by_worker(epoch)
    for share in reference.shares:
        expected = Counter(share.samples)
        delivered = Counter(
            digest for each in batches_by_worker[share.worker] for digest in each.digests
        )
        missing, extra = expected - delivered, delivered - expected
        if share.worker not in may.hit_workers and missing and not extra:
            count = missing.total()
            loss = (
                f"{pluralize(count, 'sample')} of worker {share.worker} {is_or_are(count)} missing"
            )
            yield Finding(
                Verdict.CORRUPTED, f"{loss}, although no fault hit that worker", wrong=Wrong.MISSING
            )


def _batches_by_worker(epoch: Pass) -> dict[int | None, list[Batch]]:
    batches = defaultdict(list)
    for batch in epoch.delivered:
        batches[batch.worker].append(batch)
    return batches


def _find_endless_mismatches(
    epoch: Pass, reference: Reference, may: Tolerance
) -> Iterator[Finding]:
    expected = set(reference.digests.values())
    batches_by_worker = _batches_by_worker(epoch)
    exact = [tuple(each.digest for each in batches) for batches in batches_by_worker.values()]
    if len(exact) > 1 and len(set(exact)) == 1 and len(set(exact[0])) > 1:
        yield Finding(
            Verdict.CORRUPTED,
            "all workers returned the same samples in the same order",
            wrong=Wrong.SAME_IN_EACH_WORKER,
        )
    unknown = sum(digest not in expected for each in epoch.delivered for digest in each.digests)
    if unknown and not may.content:
        wrong = f"{pluralize(unknown, 'sample')} {is_or_are(unknown)} wrong"
        reason = "no sample of the reference has the same types and shapes"
        yield Finding(Verdict.CORRUPTED, f"{wrong}: {reason}", wrong=Wrong.DIFFERS)
    for worker in (batches_by_worker or {0: []}) if epoch.complete else ():
        count = count_delivered(batches_by_worker[worker])
        if count < (reference.stream_limit or 0) and worker not in may.hit_workers:
            sentence = f"the stream of worker {worker} ended after {pluralize(count, 'sample')}"
            yield Finding(Verdict.CORRUPTED, sentence, wrong=Wrong.MISSING)
