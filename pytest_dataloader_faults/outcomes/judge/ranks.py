"""What the ranks of one trial show together, but no single rank does. Pure."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge.rules import count_drawn
from pytest_dataloader_faults.outcomes.records import Outcome, Pass
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Absence, EpochsApart, FolderShared, Reason
from pytest_dataloader_faults.outcomes.text import join_some, pluralize, was_or_were

# Some facts about consequences. A rank that waits for another one in a collective stops when that
# one does, because gloo raises an error when a connection is closed. So a rank's error may be a
# consequence of another rank's end, and say nothing about its own dataset. The first error decides.
#
# Some facts about ``DistributedSampler``. It gives all ranks the same number of samples: it repeats
# some of the first samples or, with ``drop_last``, drops some of the last ones; in both cases fewer
# than there are ranks.


UNEVEN = Cause(
    "ranks get different numbers of batches", fix="yield the same number of batches on every rank"
)
EPOCHS_APART = Cause(
    "lets ranks drift into different epochs", fix="yield the same number of batches on every rank"
)
ON_SEVERAL_RANKS = Cause(
    "returns the same samples to several ranks", fix="split the samples by rank and by worker"
)
ON_NO_RANK = Cause("returns some samples to no rank", fix="split the samples by rank and by worker")
LENGTH_OF_ALL = Cause(
    "counts the samples of all ranks in its length", fix="return the length of the rank's own part"
)
DISTURBS_RANKS = Cause(
    "prepares the same files on several ranks at once",
    "Let rank 0 download, extract and convert, and let the others wait: if rank == 0:"
    " prepare(), then torch.distributed.barrier(). Or hold a file lock while you check and"
    " prepare, or write to a temporary name and rename it with os.replace() once it is complete. If"
    " each rank writes its own samples, add the rank to the name of the file",
    fix="prepare files on rank 0, and call barrier() on all ranks before they read",
)
_ABSENCE_REASONS = {
    Reason.FINISHED: "which had run out of batches",
    Reason.FAILED: "which had stopped with an error",
    Reason.GONE: "whose process had exited",
}
_SHOWN = 5
_DISTURBED = (Verdict.CORRUPTED, Verdict.FAILS_WITHOUT_FAULT, Verdict.HUNG)
_DECISIVE = (Verdict.HUNG, Verdict.CRASHED)
_MAY_SKIP = (
    ". Contract(may_skip=True) allows a rank to skip samples, but DDP does not: all ranks must"
    " agree on the number of batches"
)


def describe_absence(rank: Outcome) -> str:
    """Why *rank* waited for another one, as a line of evidence; "" if it did not."""
    absent = next(iter(rank.of(Absence)), None)
    if absent is None:
        return ""
    batches = pluralize(len(rank.delivered), "batch")
    missing = "a rank" if absent.rank is None else f"rank {absent.rank}"
    return f"delivered {batches}, then waited for {missing}, {_ABSENCE_REASONS[absent.reason]}"


def reference_for(number: int, outcome: Outcome, reference: Reference) -> Reference:
    """The reference of rank *number*.

    If only the complete stream is known, each rank may have any part of it.
    """
    if reference.members:
        own = reference.members[number]
        if own.stream_count is None or not is_of_content(own):
            return own
        return replace(own, undivided_samples=tuple(reference.digests.values()))
    if reference.kind == "map":
        return reference
    rows = itertools.chain(*map(_list_rows, outcome.ranks[number].epochs[:1]))
    return replace(reference, samples=tuple(enumerate(map(Sample, rows))), fault_free=None)


def judge_together(
    outcome: Outcome, findings: Sequence[Finding], reference: Reference, contract: Contract
) -> Finding:
    """The verdict on all ranks of *outcome*; *findings*: what each rank shows by itself."""
    by_rank = [
        replace(each, sentence=f"rank {number}: {each.sentence}")
        for number, each in enumerate(findings)
    ]
    finding = _judge_ranks(outcome, by_rank, reference, contract)
    is_shared = any(rank.of(FolderShared) for rank in outcome.ranks)
    is_disturbed = is_shared and finding.verdict in _DISTURBED
    # One rank lacks a file that others have, without a fault: another one may not have written it.
    errors = {rank.exception.type if rank.exception else "" for rank in outcome.ranks}
    has_failed = finding.verdict is Verdict.FAILS_WITHOUT_FAULT
    is_early = has_failed and errors >= {"FileNotFoundError", ""}
    return replace(finding, cause=DISTURBS_RANKS) if is_disturbed or is_early else finding


def _judge_ranks(
    outcome: Outcome, by_rank: Sequence[Finding], reference: Reference, contract: Contract
) -> Finding:
    main = outcome.request.rank or 0
    decisive = by_rank[main]
    if decisive.verdict in _DECISIVE:
        sentence = decisive.sentence + _describe_finished(main, outcome)
        return replace(decisive, sentence=sentence)
    order = [main, *(number for number in range(len(by_rank)) if number != main)]
    ranks = outcome.ranks
    causes = (by_rank[each] for each in order if not _is_consequence(ranks[each], outcome))
    return (
        _find_waiting_rank(outcome, reference, contract)
        or _find_epochs_apart(outcome)
        or next((each for each in causes if each.verdict.fails), None)
        or next(_find_wrong_lengths(outcome, reference), None)
        or _find_uneven_coverage(outcome, reference)
        or _describe_all(decisive, outcome, reference)
    )


def _describe_all(finding: Finding, outcome: Outcome, reference: Reference) -> Finding:
    """The *finding* on the rank that decides, as a sentence about all ranks."""
    if finding.verdict is Verdict.SURVIVED and not outcome.schedule:
        ranks = pluralize(len(outcome.ranks), "rank")
        batches = pluralize(len(outcome.epochs[0].delivered), "batch")
        is_known = _Samples.of(reference) is not None
        samples = "together delivered every sample" if is_known else "no sample was wrong"
        return replace(finding, sentence=f"{ranks} delivered {batches} each, and {samples}")
    return replace(finding, sentence=finding.sentence + _describe_stopped(outcome))


def _is_consequence(rank: Outcome, outcome: Outcome) -> bool:
    """Whether *rank* failed because another one did: that of *outcome*, if it is by a fault."""
    is_after_fault = bool(outcome.fired) and outcome.exception is not None and not rank.schedule
    gave_up = is_after_fault and rank.exception is not None and not rank.delivered
    return gave_up or bool(rank.of(Absence)) or rank.has_lost_rank


def _find_waiting_rank(
    outcome: Outcome, reference: Reference, contract: Contract
) -> Finding | None:
    """A rank that waits for another one that has run out of batches."""
    for number, rank in enumerate(outcome.ranks):
        absence = next((each for each in rank.of(Absence) if each.reason is Reason.FINISHED), None)
        if absence is None:
            continue
        absent = absence.rank or 0
        place = f"batch {absence.position.batch}"
        if outcome.request.epochs > 1:
            place += f" of epoch {absence.position.epoch}"
        skipped = _describe_skipped(absent, outcome, reference)
        count = pluralize(_count_batches(outcome.ranks[absent]), "batch")
        advice = _MAY_SKIP if skipped and contract.may_skip else ""
        sentence = f"rank {number} was waiting in {place}, but rank {absent} had only {count}"
        return Finding(Verdict.HUNG, f"{sentence}{skipped}{advice}", UNEVEN)
    return None


def _count_batches(rank: Outcome) -> int:
    return len(rank.epochs[-1].delivered) if rank.epochs else 0


def _describe_skipped(number: int, outcome: Outcome, reference: Reference) -> str:
    """How many samples the rank *number* skipped after a fault, as the end of a sentence."""
    rank = outcome.ranks[number]
    if not rank.fired or not rank.epochs:
        return ""
    epoch = rank.epochs[-1]
    if rank.kind == "map":
        requested = sum(map(len, epoch.drawn))
    else:
        requested = len(reference_for(number, outcome, reference).samples)
    count = requested - epoch.sample_count
    names = dict.fromkeys(
        errno.errorcode.get(each.errno, type(each).__name__) for each in rank.fired_faults
    )
    return (
        f", and skipped {pluralize(count, 'sample')} after {join_some(names)}" if count > 0 else ""
    )


def _find_epochs_apart(outcome: Outcome) -> Finding | None:
    apart = next((each for rank in outcome.ranks for each in rank.of(EpochsApart)), None)
    if apart is None:
        return None
    places = [
        f"rank {number} was in batch {position.batch} of epoch {position.epoch}"
        for number, position in enumerate(apart.positions)
    ]
    sentence = f"{' when '.join(places)}: one training step mixed batches of two epochs"
    return Finding(Verdict.CORRUPTED, sentence, EPOCHS_APART)


def _find_wrong_lengths(outcome: Outcome, reference: Reference) -> Iterator[Finding]:
    """A rank whose length counts all ranks together."""
    passes = [each.epochs[0] for each in outcome.ranks if each.epochs]
    total = sum(each.sample_count for each in passes)
    has_length = count_drawn(reference.fault_free) is not None
    for number, epoch in enumerate(passes):
        if outcome.kind == "map":
            delivered, length, noun = len(epoch.drawn), epoch.batches or 0, "batch"
            is_wrong = has_length and delivered < length
        else:
            delivered, length, noun = epoch.sample_count, epoch.length or 0, "sample"
            is_wrong = delivered < length == total
        if epoch.complete and is_wrong:
            sentence = (
                f"the length of rank {number} is {pluralize(length, noun)}, but it delivered"
                f" {delivered}: the length counts all ranks together"
            )
            yield Finding(Verdict.CORRUPTED, sentence, LENGTH_OF_ALL)


def _list_rows(epoch: Pass) -> Iterator[str]:
    """The digest of each delivered sample."""
    return (digest for each in epoch.delivered for digest in each.digests)


class _Samples(NamedTuple):
    """The samples that all ranks must deliver together.

    Attributes:
        counts: How often each sample is there, by its digest or its index.
        names: The name of each sample.
        by_content: Whether a sample is known by its digest.
        is_cut: Whether there may be other samples, which were not checked.
    """

    counts: Counter[Any]
    names: Mapping[Any, Any]
    by_content: bool
    is_cut: bool

    @classmethod
    def of(cls, reference: Reference) -> _Samples | None:
        """The samples of *reference*; None for a stream whose samples cannot be distinguished."""
        is_map, by_content = reference.kind == "map", is_of_content(reference)
        if not reference.is_whole or not (is_map or by_content):
            return None
        pairs = tuple(reference.digests.items())
        if not by_content:
            keys = (key if isinstance(key, tuple) else (key,) for key, _ in pairs)
            pairs = tuple((each, each) for each in itertools.chain(*keys))
        limit = reference.limit
        is_cut = is_map and reference.total is None and limit is not None and len(pairs) >= limit
        names = {key: name for name, key in reversed(pairs)}
        return cls(Counter(key for _, key in pairs), names, by_content, is_cut)

    def count_in(self, *epochs: Pass) -> Counter[Any]:
        """How often each sample was delivered in *epochs*."""
        if self.by_content:
            return Counter(itertools.chain(*map(_list_rows, epochs)))
        batches = (each for epoch in epochs for each in epoch.delivered)
        return Counter(index for each in batches for index in each.keys or ())

    def describe(self, keys: Sequence[Any]) -> str:
        """How many samples *keys* are, and which, as the start of a sentence."""
        names = [self.names[each] for each in keys]
        if all(isinstance(each, int) for each in names):
            names.sort()
        examples = join_some(names, _SHOWN)
        all_of = pluralize(self.counts.total(), "sample")
        return f"{len(keys)} of {all_of} ({examples}) {was_or_were(len(keys))} delivered"


def is_of_content(reference: Reference) -> bool:
    """Whether a sample is the same in each rank, under any index, and its content identifies it.

    Random samples are seeded by their index, which differs if the author divides the samples. Or
    only a part of them is compared, such as a label, which many samples may have.
    """
    comparison = reference.comparison
    if comparison.by_form or comparison.in_batches or comparison.seeded is not None:
        return False
    identifies = len(set(reference.digests.values())) == len(reference.samples)
    is_partial = bool(comparison.mask) and reference.kind == "map"
    return bool(reference.samples) and (identifies or not is_partial)


def _find_uneven_coverage(outcome: Outcome, reference: Reference) -> Finding | None:
    """Samples that are on several ranks or on none, in an epoch whose faults spare all samples.

    Another order of a folder is such a fault, and the cause of what it shows.
    """
    epochs = list(zip(*(each.epochs for each in outcome.ranks), strict=False))
    is_whole = all(rank_epoch.complete for epoch in epochs for rank_epoch in epoch)
    fired = [fault for rank in outcome.ranks for fault in rank.fired_faults]
    if any(fault.effects != Effect.ORDER for fault in fired) or not is_whole:
        return None
    expected = _Samples.of(reference)
    count = reference.stream_count if not outcome.loader.drop_last else None
    for epoch in epochs:
        if expected is None:
            finding = _check_random_epoch(epoch, count)
        else:
            finding = _check_epoch(epoch, expected, outcome)
        if finding is not None:
            return replace(finding, cause=None) if fired else finding
    return None


def _check_epoch(epoch: Sequence[Pass], samples: _Samples, outcome: Outcome) -> Finding | None:
    counts, expected = [samples.count_in(each) for each in epoch], samples.counts
    total = sum(counts, Counter[Any]())
    repeated = [each for each in expected if total[each] > expected[each]]
    missing = [each for each in expected if total[each] < expected[each]]
    is_map = outcome.kind == "map"
    padding = -expected.total() % len(epoch) if is_map else 0
    may_fill = is_map and not missing and _fills_last_round(epoch, samples)
    if len(repeated) > padding and not may_fill:
        ranks = [number for number, each in enumerate(counts) if each[repeated[0]]]
        lost = f"{len(missing)} {was_or_were(len(missing))} delivered on no rank"
        sentence = f"{samples.describe(repeated)} more than once, on {_name_ranks(ranks)}"
        sentence += f", and {lost}" if missing else ""
        return Finding(Verdict.CORRUPTED, sentence, ON_SEVERAL_RANKS)
    if len(missing) > _count_droppable(epoch, outcome) and not samples.is_cut:
        return Finding(Verdict.CORRUPTED, f"{samples.describe(missing)} on no rank", ON_NO_RANK)
    return None


def _fills_last_round(epoch: Sequence[Pass], samples: _Samples) -> bool:
    """Whether samples are repeated only so that each rank has a last batch, of the same size.

    Batch samplers may do so: Accelerate's does, by its default ``even_batches``.
    """
    before_last = [replace(each, delivered=each.delivered[:-1]) for each in epoch]
    is_even = len({len(each.delivered) for each in epoch}) == 1
    return is_even and samples.count_in(*before_last) <= samples.counts


def _count_droppable(epoch: Sequence[Pass], outcome: Outcome) -> int:
    """How many samples all loaders together may drop, because they do not fill a batch.

    Each worker of a stream makes its own batches.
    """
    if not outcome.loader.drop_last:
        return 0
    batches = [each for rank_epoch in epoch for each in rank_epoch.delivered]
    size = max((len(each.keys or each.samples) for each in batches), default=1)
    if outcome.kind == "map":
        return len(epoch) * size - 1
    return len(epoch) * max(1, len({each.worker for each in batches})) * (size - 1)


def _check_random_epoch(epoch: Sequence[Pass], count: int | None) -> Finding | None:
    """What is wrong with random samples, of which the stream has *count*, if that is known."""
    batches = [tuple(sorted(each.digest for each in rank_epoch.delivered)) for rank_epoch in epoch]
    if len(batches[0]) > 1 and len(set(batches)) == 1:  # A single batch may be an accident.
        sentence = "all ranks delivered identical random samples, bit for bit"
        return Finding(Verdict.CORRUPTED, sentence, ON_SEVERAL_RANKS)
    delivered = sum(each.sample_count for each in epoch)
    if count is None or delivered == count:
        return None
    cause = ON_SEVERAL_RANKS if delivered > count else ON_NO_RANK
    together = f"all ranks together delivered {pluralize(delivered, 'sample')}"
    return Finding(Verdict.CORRUPTED, f"{together}, but a single rank delivers {count}", cause)


def _describe_finished(main: int, outcome: Outcome) -> str:
    """Which other ranks had finished while *main* hung or died."""
    finished = [
        f"rank {number} had finished its epoch, with {pluralize(_count_batches(rank), 'batch')}"
        for number, rank in enumerate(outcome.ranks)
        if number != main and rank.epochs and rank.epochs[-1].complete
    ]
    return "".join(f"; {each}" for each in finished)


def _describe_stopped(outcome: Outcome) -> str:
    """Which ranks stopped because of the one that failed."""
    numbers = [
        number for number, each in enumerate(outcome.ranks) if _is_consequence(each, outcome)
    ]
    return f"; {_name_ranks(numbers)} then stopped in time" if numbers else ""


def _name_ranks(numbers: Sequence[int]) -> str:
    """Name one or more ranks by their *numbers*."""
    *initial, final = map(str, numbers)
    return f"ranks {', '.join(initial)} and {final}" if initial else f"rank {final}"
