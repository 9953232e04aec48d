"""Whether a pass delivered the samples that it should have. Pure.

There is one rule for all datasets: a pass delivers what the dataset delivers without a fault. A
sample of a map-style dataset has a key, its index, so it is compared with the sample of that key. A
batch that cannot be split counts as one sample; its key is the tuple of its indices. The samples of
a stream have no keys, and their order depends on the workers, so they are counted.

A contract may allow more, but only for what a fault has hit.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.agreement import ZEROS, Sample, difference
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.records import Batch, Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference, by_worker, in_rows
from pytest_dataloader_faults.outcomes.text import is_or_are, join_some, pluralize, was_or_were
from pytest_dataloader_faults.wire import Firing

# Some facts about a stream that makes its own batches. Each worker fills batches from its own
# shards, in any order, so the batches differ if there are more workers, or if a shard is skipped:
# all of their rows are in the reference, but none of the batches.


_SHOWN, _RANGE = 5, 3
"""How many samples are named; from how many on a range is named by its first and last sample."""
STOPS_EARLY = Cause(
    "ends the epoch early with a StopIteration",
    "A StopIteration that escapes from __getitem__ or collate_fn ends the loop silently, like the"
    " end of the data. It usually comes from next() on an exhausted iterator: pass next() a"
    " default, or catch the StopIteration and raise another error. If the loader has its own"
    " __iter__, make sure that it lets errors through",
    fix="pass next() a default, or raise another error",
)


# Some facts about what a fault hits. A failed read belongs to the sample that was being made. A
# truncated, damaged or closed file stays that way, so the next samples are read from it as well,
# without another firing. If several samples are made at once, or not all firings are listed, the
# sample is unknown. Then any may have been hit.


_UNLIMITED = 1 << 62


class _Everything(Container[Any]):
    """A container of all keys, or of all workers."""

    def __contains__(self, _item: object) -> bool:
        return True


@dataclass(frozen=True)
class Allowed:
    """What may be wrong with the samples of one pass.

    Attributes:
        missing: The keys of samples that may be left out.
        losses: How many samples of a stream may be left out, if each has its own file.
        workers: The workers of a stream that may have left out samples.
        replaced: The keys of samples that may be replaced by another sample, or by a placeholder.
        unread: The keys of samples for which nothing was read: each may have its own placeholder.
        replacements: How many samples of a stream may be replaced.
        damage: Whether samples may consist of damaged bytes.
        other_order: Whether samples may be delivered under other keys.
    """

    missing: Container[Any] = ()
    losses: int = 0
    workers: Container[int | None] = ()
    replaced: Container[Any] = ()
    unread: Container[Any] = ()
    replacements: int = 0
    damage: bool = False
    other_order: bool = False

    def permits(self, key: Any, *, is_known: bool, is_certain: bool) -> bool:
        """Whether the sample with this *key* may have other content.

        *is_known*: whether it may be another sample's content, or a placeholder. *is_certain*:
        whether it can be nothing else.
        """
        if key in self.replaced and (is_known or key in self.unread):
            return True
        return self.damage and not is_certain


NOTHING = Allowed()


def allowed_in(epoch: int, outcome: Outcome, reference: Reference, contract: Contract) -> Allowed:
    """What *contract* allows in this *epoch*, from 1, of *outcome*."""
    fired = [each for each in outcome.faults if each.fired]
    lasting = [each for each in fired if Effect.LASTING in each.fault.effects]
    firings = [firing for each in fired for firing in each.firings if _may_be_in(firing, epoch)]
    unlisted = sum(each.fired - len(each.firings) for each in fired)
    hit: Container[Any] = {firing.sample for firing in firings}
    if lasting or unlisted or None in hit:
        hit = _Everything()
    count = _UNLIMITED if lasting else len(firings) + unlisted
    lasting_firings = (firing for each in lasting for firing in each.firings)
    workers: Container[Any] = {firing.worker for firing in (*firings, *lasting_firings)}
    without_data = (
        each
        for each in fired
        if each.fault.errno or (isinstance(each.fault, TruncatedFile) and not each.fault.keep)
    )
    unread = {
        firing.sample
        for each in without_data
        for firing in each.firings
        if _may_be_in(firing, epoch)
    }
    # Other workers read other shards.
    is_other = len({each.worker for each in outcome.workers}) != len(reference.batches_by_worker)
    reorders = any(Effect.ORDER in each.fault.effects for each in fired)
    skips, substitutes = contract.may_skip, contract.may_substitute
    return Allowed(
        missing=hit if skips else (),
        losses=count if skips else 0,
        workers=(_Everything() if is_other or None in workers else workers) if skips else (),
        replaced=hit if substitutes else (),
        unread=unread if substitutes else (),
        replacements=count if substitutes else 0,
        damage=may_be_damaged(outcome, contract),
        other_order=contract.may_reorder and reorders,
    )


def may_be_damaged(outcome: Outcome, contract: Contract) -> bool:
    """Whether samples of *outcome* may consist of bytes that a fault has damaged."""
    return outcome.has_fired(CorruptedFile) and not contract.detects_corruption


def _may_be_in(firing: Firing, epoch: int) -> bool:
    """Whether *firing* was in that epoch, in an unknown one, or while the dataset was created."""
    return firing.epoch in (None, 0, epoch)


def align(outcome: Outcome, reference: Reference) -> tuple[Outcome, Reference]:
    """*outcome* and *reference*, both in rows if workers fill a stream's own batches otherwise.

    Not if a batch has the rows of a known one in another order, unless ranks divide the stream.
    """
    passes = (each for job in outcome.jobs for each in job.passes)
    batches = [batch for each in passes for batch in each.delivered]
    others = [each for each in batches if not reference.counts.keys() >= {*each.digests}]
    whole, *members = (each.in_rows for each in (reference, *reference.members))
    has_rows = None not in members and all(each.rows for each in batches)
    if whole is None or not (others and has_rows):
        return outcome, reference
    known = {tuple(sorted(each)) for each in reference.parts if not outcome.ranks}
    if any(tuple(sorted(each.rows)) in known for each in others):
        return outcome, reference
    return in_rows(outcome), replace(whole, members=tuple(filter(None, members)))


# The rule


def find_mismatch(epoch: Pass, expected: Reference, allowed: Allowed = NOTHING) -> Finding | None:
    """The first difference of *epoch* that is not *allowed*; None if there is none."""
    if expected.by_key is not None:
        mismatches = _compare_by_key(epoch, expected, expected.by_key, allowed)
        return next(itertools.chain(mismatches, _find_missing(epoch)), None)
    return next(_compare_counts(epoch, expected, allowed), None)


def count_missing(epoch: Pass, expected: Reference) -> int:
    """How many samples of *epoch* are missing; for an endless stream, of those requested."""
    if expected.by_key is not None:
        split = (each for each in epoch.delivered if not each.is_whole)
        return sum(len(each.keys or ()) - len(each.samples) for each in split)
    limit = expected.comparison.limit
    due = expected.counts.total() if limit is None else limit * len(by_worker(epoch.delivered))
    return due - epoch.sample_count


def count_replaced(epoch: Pass, expected: Reference) -> int:
    """How many samples of *epoch* were replaced by others."""
    if expected.by_key is None:
        delivered = _count(epoch.delivered)
        return (delivered - _count_due(expected, delivered)).total()
    pairs = (pair for batch in epoch.delivered for pair in batch.pairs)
    return sum(expected.by_key.get(key, each).digest != each.digest for key, each in pairs)


def has_unknown_sample(epoch: Pass, expected: Reference) -> bool:
    """Whether *epoch* has a sample under any key that should be under none.

    A batch of a map-style dataset that cannot be split, as by its padding, shows none.
    """
    is_map = expected.by_key is not None
    split = (each for each in epoch.delivered if not (is_map and each.is_whole))
    return not _count(split).keys() <= expected.counts.keys()


def _mismatch(wrong: Wrong, sentence: str) -> Finding:
    return Finding(Verdict.CORRUPTED, sentence, wrong=wrong)


# Some facts about telling a substitute from damage. Damaged bytes do not turn one image into
# another sample's image, or two images into the same. But they may well produce another sample's
# label, length or mask. So only the large parts of a sample count, all of them together, and only
# if the samples of the reference differ in them.


def _compare_by_key(
    epoch: Pass, expected: Reference, samples: Mapping[Any, Sample], allowed: Allowed
) -> Iterator[Finding]:
    repeated = _find_repeated_content(epoch, samples)
    for place, batch in enumerate(epoch.delivered):
        if not (batch.is_complete or expected.comparison.in_batches):
            yield from _compare_partial(place, batch, samples, allowed)
        for key, sample in batch.pairs:
            right = samples.get(key)  # A sampler of the user's may draw others.
            if right is None or right.digest == sample.digest:
                continue
            finding = None
            if sample.content not in ("", right.content):
                finding = _find_substitute(key, place, sample.content, expected, repeated)
            is_known = finding is not None or sample.digest in expected.counts
            if allowed.permits(key, is_known=is_known, is_certain=finding is not None):
                continue
            finding = finding or _describe_wrong_sample(key, place, sample, right, expected)
            if finding.wrong is Wrong.SUBSTITUTED and _is_reordered(epoch, samples):
                if allowed.other_order:
                    return
                text = "every sample was delivered, but some under the wrong index"
                finding = _mismatch(Wrong.REORDERED, f"{finding.sentence}; {text}")
            yield finding


def _find_substitute(
    key: Any, place: int, content: str, expected: Reference, repeated: Mapping[str, Sequence[Any]]
) -> Finding | None:
    """Whose *content* a sample certainly has; None if it may have been read from its own file."""
    if content in expected.owners:
        return _substituted(key, place, expected.owners[content])
    if keys := repeated.get(content):
        zeros = " (all zeros)" if content.startswith(ZEROS) else ""
        sentence = f"{_name_samples(keys)} are identical{zeros}, but differ in the reference"
        return _mismatch(Wrong.IDENTICAL, sentence)
    return None


def _describe_wrong_sample(
    key: Any, place: int, sample: Sample, right: Sample, expected: Reference
) -> Finding:
    if sample.digest in expected.keys_by_digest:
        return _substituted(key, place, expected.keys_by_digest[sample.digest])
    parts = (tuple(expected.comparison.reduce(each.parts)) for each in (right, sample))
    change = difference(*parts) or "it differs from the reference"
    return _mismatch(Wrong.DIFFERS, f"{_name(key, place)} is wrong: {change}")


def _substituted(key: Any, place: int, owner: Any) -> Finding:
    sentence = f"{_name(key, place)} is wrong: it has the content of sample {owner!r}"
    return _mismatch(Wrong.SUBSTITUTED, sentence)


def _find_repeated_content(epoch: Pass, samples: Mapping[Any, Sample]) -> Mapping[str, list[Any]]:
    """The samples with the same wrong content, by that content, if they should differ."""
    keys: defaultdict[str, list[Any]] = defaultdict(list)
    for key, sample in (pair for batch in epoch.delivered for pair in batch.pairs):
        if key in samples and sample.content not in ("", samples[key].content):
            keys[sample.content].append(key)
    return {
        content: each
        for content, each in keys.items()
        if len({samples[key].content for key in each}) > 1
    }


def _is_reordered(epoch: Pass, samples: Mapping[Any, Sample]) -> bool:
    """Whether each sample was delivered as often as it was requested, under any key."""
    requested = (samples.get(key) for keys in epoch.drawn for key in keys)
    return Counter(each and each.digest for each in requested) == _count(epoch.delivered)


def _compare_partial(
    place: int, batch: Batch, samples: Mapping[Any, Sample], allowed: Allowed
) -> Iterator[Finding]:
    """What is wrong with a *batch* that has fewer samples than requested, or more, in any order."""
    requested = list(batch.keys or ())
    sentence = f"batch {place} does not contain the requested samples {requested}"
    if batch.is_whole:
        names = join_some(requested, _SHOWN)
        text = f"batch {place} differs from the reference as a whole (samples {names})"
        yield _mismatch(Wrong.DIFFERS, text)
    absent = sorted(requested, key=lambda key: key in allowed.missing)
    for number, sample in enumerate(batch.samples):
        owners = (key for key in absent if key in samples and samples[key].digest == sample.digest)
        owner = next(owners, absent[-1] if allowed.damage and absent else None)
        if owner is None:
            text = f"sample {number} of batch {place} is none of the requested {requested}"
            yield _mismatch(Wrong.DIFFERS, text)
            return
        absent.remove(owner)
    if missing := [key for key in requested if key in absent and key not in allowed.missing]:
        yield _mismatch(Wrong.MISSING, f"{sentence}: {missing} {is_or_are(len(missing))} missing")


def _find_missing(epoch: Pass) -> Iterator[Finding]:
    """Batches that never came, although the epoch reached its end."""
    requested = Counter(key for keys in epoch.drawn for key in keys)
    received = Counter(key for batch in epoch.delivered for key in batch.keys or ())
    missing = list((requested - received).elements())
    if epoch.complete and missing:
        count, batches = len(missing), pluralize(len(epoch.drawn), "batch")
        delivered = len(epoch.delivered)
        ended = f"only {delivered} of {batches} {was_or_were(delivered)} delivered"
        names = join_some(missing, _SHOWN)
        loss = f"{pluralize(count, 'sample')} {is_or_are(count)} missing ({names})"
        yield Finding(Verdict.CORRUPTED, f"{ended}: {loss}", STOPS_EARLY)


# Some facts about the samples of a stream. A shard that cannot be opened loses all its samples, and
# only the dataset knows which ones these are. But each worker reads its own shards, so a worker
# that no fault hit must deliver all samples that it delivered in the fault-free run.


def _compare_counts(epoch: Pass, expected: Reference, allowed: Allowed) -> Iterator[Finding]:
    if expected.comparison.by_form and _is_same_in_each_worker(epoch):
        sentence = "all workers returned the same samples in the same order"
        yield _mismatch(Wrong.SAME_IN_EACH_WORKER, sentence)
    delivered = _count(epoch.delivered)
    due = _count_due(expected, delivered)
    extra = delivered - due
    unknown = [number for digest, number in extra.items() if digest not in due]
    wrong, repeated = sum(unknown), extra.total() - sum(unknown)
    if repeated > allowed.replacements:
        samples = f"{pluralize(repeated, 'sample')} {was_or_were(repeated)}"
        sentence = f"{samples} delivered more often than in the reference"
        yield _mismatch(Wrong.REPEATED, sentence)
    is_replaced = wrong + repeated <= allowed.replacements
    is_placeholder = is_replaced and (allowed.unread or 1 not in unknown)
    if wrong and not (allowed.damage or is_placeholder):
        match = "it matches" if wrong == 1 else "they match"
        sentence = f"{pluralize(wrong, 'sample')} {is_or_are(wrong)} wrong"
        yield _mismatch(Wrong.DIFFERS, f"{sentence}: {match} no sample of the reference")
    if epoch.complete and expected.comparison.limit is None:
        yield from _find_losses(due.total() - delivered.total(), epoch, expected, allowed)
    elif epoch.complete:
        yield from _find_early_ends(epoch, expected, allowed)


def _count_due(expected: Reference, delivered: Counter[str]) -> Counter[str]:
    """How often each sample is expected if these are *delivered*.

    Those of an endless stream may come any number of times. A shuffled stream that ranks divide
    gives each of them another part in each epoch: only all ranks together show which samples are
    repeated or missing.
    """
    due = expected.counts
    if expected.comparison.limit is not None:
        return Counter({digest: delivered[digest] for digest in due})
    moved = (delivered - due) & (Counter(expected.undivided_samples) - due)
    absent = itertools.islice((due - delivered).elements(), moved.total())
    return due - Counter(absent) + moved


def _find_losses(
    lost: int, epoch: Pass, expected: Reference, allowed: Allowed
) -> Iterator[Finding]:
    total = pluralize(expected.counts.total(), "sample")
    sentence = f"{lost} of {total} {is_or_are(lost)} missing"
    if lost > 0 and not allowed.losses:
        yield _mismatch(Wrong.MISSING, sentence)
    elif lost > allowed.losses and expected.has_own_files:
        yield _mismatch(Wrong.MISSING, f"{sentence}, but faults hit only {allowed.losses}")
    elif lost > 0:
        delivered = by_worker(epoch.delivered)
        for worker, batches in expected.batches_by_worker.items():
            share, ours = _count(batches), _count(delivered[worker])
            missing, extra = share - ours, ours - share
            if worker not in allowed.workers and missing and not extra:
                samples = pluralize(missing.total(), "sample")
                loss = f"{samples} of worker {worker} {is_or_are(missing.total())} missing"
                yield _mismatch(Wrong.MISSING, f"{loss}, although no fault hit that worker")


# Some facts about streams that are random or endless. Each worker of an endless one is stopped
# after the same number of samples. Which samples these are depends on the workers, and often on
# random numbers, so only types and shapes are known. But workers that return the same samples in
# the same order read the same shards, or draw the same numbers.


def _is_same_in_each_worker(epoch: Pass) -> bool:
    exact = [[batch.digest for batch in batches] for batches in by_worker(epoch.delivered).values()]
    first, *others = exact or [[]]
    return bool(others) and all(each == first for each in others) and len(set(first)) > 1


def _find_early_ends(epoch: Pass, expected: Reference, allowed: Allowed) -> Iterator[Finding]:
    for worker, batches in (by_worker(epoch.delivered) or {0: []}).items():
        count = sum(len(each.samples) for each in batches)
        if count < (expected.comparison.limit or 0) and worker not in allowed.workers:
            sentence = f"the stream of worker {worker} ended after {pluralize(count, 'sample')}"
            yield _mismatch(Wrong.MISSING, sentence)


def _count(batches: Iterable[Batch]) -> Counter[str]:
    """How often each sample is in *batches*."""
    return Counter(digest for batch in batches for digest in batch.digests)


def _name(key: Any, place: int) -> str:
    return f"batch {place}" if isinstance(key, tuple) else f"sample {key!r} (batch {place})"


def _name_samples(keys: Sequence[Any]) -> str:
    """Name the samples with these *keys*, two or more; consecutive ones as a range."""
    numbers = sorted(key for key in keys if isinstance(key, int))
    if len(numbers) == len(keys) >= _RANGE:
        begin, end = numbers[0], numbers[-1]
        if numbers == list(range(begin, end + 1)):
            return f"samples {begin} to {end}"
    others = len(keys) - _SHOWN
    names = [*map(repr, keys[:_SHOWN]), *([f"{others} more"] if others > 0 else [])]
    return f"samples {', '.join(names[:-1])} and {names[-1]}"
