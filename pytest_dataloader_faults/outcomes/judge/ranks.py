"""What the ranks of one trial show together, and no single one does. Pure.

Some facts about who is to blame. A rank that waits for another one, in a collective, ends when that
one does: gloo raises where a connection is closed. So an error of a rank may be a consequence of
another's end, and says nothing about its own dataset. The first error decides.

Some facts about ``DistributedSampler``. It gives each rank as many samples as the others: it adds
some of the first samples once more, or with ``drop_last`` leaves some of the last ones out; fewer
than there are ranks, in both cases.
"""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dataloader_faults.outcomes.contract import (
    Cause,
    Compared,
    Contract,
    Finding,
    Verdict,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge.streams import digests
from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Reason
from pytest_dataloader_faults.outcomes.text import counted, listed

CAUSES: dict[Wrong | None, Cause] = {
    Wrong.UNEVEN: Cause("gives ranks different numbers of batches"),
    Wrong.EPOCHS_APART: Cause("has ranks in different epochs at a time"),
    Wrong.ON_SEVERAL_RANKS: Cause("gives several ranks the same samples"),
    Wrong.ON_NO_RANK: Cause("gives some samples to no rank"),
    Wrong.LENGTH_OF_ALL: Cause("counts the samples of all ranks in its length"),
    Wrong.SAME_ORDER: Cause("shuffles each epoch alike"),
}
_SHOWN = 5
_GOOD = (Verdict.SURVIVED, Verdict.FAILED_CLEANLY, Verdict.NOT_EXERCISED)
_GRAVEST = (Verdict.HUNG, Verdict.CRASHED)
_MAY_SKIP = (
    ". Contract(may_skip=True) allows a rank to leave samples out, and DDP does not: the ranks have"
    " to agree on the number of batches"
)


def reference_of(number: int, outcome: TrialFacts, reference: Reference) -> Reference:
    """What rank *number* gives when nothing is wrong.

    Where only the whole is known of a stream, each rank may have any part of it.
    """
    if reference.ranks:
        own = reference.ranks[number]
        is_stream = own.stream_count is not None and _is_of_content(own)
        return (
            replace(own, whole=tuple(each for _, each in reference.samples)) if is_stream else own
        )
    if reference.kind == "map":
        return reference
    rows = itertools.chain(*map(_rows, outcome.ranks[number].passes[:1]))
    return replace(reference, samples=tuple(enumerate(rows)), shares=())


def judged(
    outcome: TrialFacts, found: Sequence[Finding], reference: Reference, contract: Contract
) -> Finding:
    """The verdict on all ranks of *outcome*; *found*: what each of them shows alone."""
    main = outcome.rank or 0
    own = [_of_rank(number, each) for number, each in enumerate(found)]
    if own[main].verdict in _GRAVEST:
        return own[main]._replace(sentence=own[main].sentence + _had_finished(main, outcome))
    order = [main, *(number for number in range(len(own)) if number != main)]
    blamed = (own[number] for number in order if not _is_consequence(outcome.ranks[number]))
    return (
        _waits(outcome, reference, contract)
        or next((each for each in blamed if each.verdict not in _GOOD), None)
        or _apart(outcome)
        or next(_wrong_lengths(outcome, reference), None)
        or _coverage(outcome, reference)
        or _of_all(own[main], outcome, reference)
    )


def _of_all(found: Finding, outcome: TrialFacts, reference: Reference) -> Finding:
    """The verdict *found* on the rank that decides, said of all."""
    if found.verdict is Verdict.SURVIVED and not outcome.schedule:
        every = counted(len(outcome.ranks), "rank")
        had = counted(len(outcome.passes[0].delivered), "batch")
        together = "each sample once together" if _Known.of(reference) else "no wrong sample"
        return found._replace(sentence=f"{every} had {had} each, and {together}")
    return found._replace(sentence=found.sentence + _stopped(outcome))


def _of_rank(number: int, found: Finding) -> Finding:
    return found._replace(sentence=f"rank {number}: {found.sentence}")


def _is_consequence(one: TrialFacts) -> bool:
    return one.absence is not None or one.has_lost_rank


def _waits(outcome: TrialFacts, reference: Reference, contract: Contract) -> Finding | None:
    """A rank that waits for one which has no more batches."""
    for number, each in enumerate(outcome.ranks):
        if each.absence is None or each.absence.reason is not Reason.FINISHED:
            continue
        absent = each.absence.rank or 0
        place = _place(each.absence.step, outcome)
        left = _left_out(absent, outcome, reference)
        had = f"rank {absent} had {counted(_batches(outcome.ranks[absent]), 'batch')}"
        advice = _MAY_SKIP if left and contract.may_skip else ""
        sentence = f"rank {number} waits in {place}; {had}{left}{advice}"
        return Finding(Verdict.HUNG, sentence, Wrong.UNEVEN)
    return None


def _place(step: Any, outcome: TrialFacts) -> str:
    return (
        f"batch {step.batch} of epoch {step.epoch}" if outcome.epochs > 1 else f"batch {step.batch}"
    )


def _batches(one: TrialFacts) -> int:
    return len(one.passes[-1].delivered) if one.passes else 0


def _left_out(number: int, outcome: TrialFacts, reference: Reference) -> str:
    """How many samples the rank *number* left out after a fault, as the rest of a sentence."""
    one = outcome.ranks[number]
    if not one.fired or not one.passes:
        return ""
    last = one.passes[-1]
    if one.kind == "map":
        asked = sum(map(len, last.drawn))
    else:
        asked = len(reference_of(number, outcome, reference).samples)
    count = asked - _count(last)
    kinds = (each.fault for each in one.faults if each.fired)
    names = dict.fromkeys(errno.errorcode.get(each.errno, type(each).__name__) for each in kinds)
    return f", and left {counted(count, 'sample')} out after {listed(names)}" if count > 0 else ""


def _apart(outcome: TrialFacts) -> Finding | None:
    steps = next((each.apart for each in outcome.ranks if each.apart), ())
    if not steps:
        return None
    told = [
        f"rank {number} was in batch {each.batch} of epoch {each.epoch}"
        for number, each in enumerate(steps)
    ]
    sentence = f"{' when '.join(told)}: one step had batches of two epochs"
    return Finding(Verdict.CORRUPTED, sentence, Wrong.EPOCHS_APART)


def _wrong_lengths(outcome: TrialFacts, reference: Reference) -> Iterator[Finding]:
    """A rank whose length is that of all ranks together."""
    passes = [each.passes[0] for each in outcome.ranks if each.passes]
    total = sum(_count(each) for each in passes)
    for number, one in enumerate(passes):
        if outcome.kind == "map":
            came, said, what = len(one.drawn), one.batches or 0, "batch"
            is_wrong = reference.drawn is not None and came < said
        else:
            came, said, what = _count(one), one.length or 0, "sample"
            is_wrong = came < said == total
        if one.complete and is_wrong:
            has = f"the length of rank {number} is {counted(said, what)}, and it has {came}"
            sentence = f"{has}: the length counts what all ranks have together"
            yield Finding(Verdict.CORRUPTED, sentence, Wrong.LENGTH_OF_ALL)


def _count(one: Pass) -> int:
    return sum(1 for _ in _rows(one))


def _rows(one: Pass) -> Iterator[str]:
    """The digest of each sample that came."""
    return (digest for each in one.delivered for digest in digests(each))


class _Known(NamedTuple):
    """The samples that all ranks have to give together.

    Attributes:
        counts: How often each is there, by its digest, or by its index.
        names: What each is called.
        is_cut: Whether there may be others, which were not looked at.
    """

    counts: Counter[Any]
    names: Mapping[Any, Any]
    is_cut: bool

    @classmethod
    def of(cls, reference: Reference) -> _Known | None:
        """Those of *reference*; None of a stream whose samples cannot be told apart."""
        is_map, asked = reference.kind == "map", reference.asked
        pairs = reference.samples[:asked]
        if not reference.is_whole or not (is_map or _is_of_content(reference)):
            return None
        if not _is_of_content(reference):
            indices = (each for each, _ in reference.batches[:asked])
            names = [name for name, _ in pairs] or list(itertools.chain(*indices))
            pairs = tuple((each, each) for each in names)
        limit = reference.limit
        is_cut = is_map and reference.total is None and limit is not None and len(pairs) >= limit
        names_by_key = {key: name for name, key in reversed(pairs)}
        return cls(Counter(key for _, key in pairs), names_by_key, is_cut)

    def keys_of(self, one: Pass, reference: Reference) -> Iterator[Any]:
        """The same of what came in *one*."""
        return _rows(one) if _is_of_content(reference) else _indices(one)

    def told(self, keys: Sequence[Any]) -> str:
        """How many of the samples *keys* are, and which, as a sentence begins."""
        names = [self.names[each] for each in keys]
        if all(isinstance(each, int) for each in names):
            names.sort()
        shown = listed(names, _SHOWN)
        all_of = counted(self.counts.total(), "sample")
        return f"{len(keys)} of {all_of} ({shown}) come"


def _is_of_content(reference: Reference) -> bool:
    """Whether a sample is the same in each rank, whatever its index is there.

    Random ones are seeded by their index, which differs where the author divides the samples.
    """
    comparison = reference.comparison
    return (
        comparison.what is Compared.BYTES and comparison.seeded is None and bool(reference.samples)
    )


def _indices(one: Pass) -> Iterator[Any]:
    return (index for each in one.delivered for index in each.indices or ())


def _coverage(outcome: TrialFacts, reference: Reference) -> Finding | None:
    """Samples that come on several ranks or on none, in an epoch without a fault."""
    epochs = list(zip(*(each.passes for each in outcome.ranks), strict=False))
    is_whole = all(one.complete for epoch in epochs for one in epoch)
    if any(each.fired for each in outcome.ranks) or not is_whole:
        return None
    known = _Known.of(reference)
    if known is None:
        count = reference.stream_count if not outcome.drop_last else None
        found = (_same_in_each(each) or _wrong_count(each, count) for each in epochs)
        return next(filter(None, found), None)
    found = (_of_epoch(each, known, outcome, reference) for each in epochs)
    return next(filter(None, found), None)


def _of_epoch(
    epoch: Sequence[Pass], known: _Known, outcome: TrialFacts, reference: Reference
) -> Finding | None:
    came = [Counter(known.keys_of(one, reference)) for one in epoch]
    total, expected = sum(came, Counter[Any]()), known.counts
    repeated = [each for each in expected if total[each] > expected[each]]
    missing = [each for each in expected if total[each] < expected[each]]
    padding = -expected.total() % len(epoch) if outcome.kind == "map" else 0
    if len(repeated) > padding:
        ranks = [number for number, each in enumerate(came) if each[repeated[0]]]
        more = f", and {len(missing)} on none" if missing else ""
        sentence = f"{known.told(repeated)} more than once, on {_named(ranks)}{more}"
        return Finding(Verdict.CORRUPTED, sentence, Wrong.ON_SEVERAL_RANKS)
    if len(missing) > _may_be_dropped(epoch, outcome) and not known.is_cut:
        return Finding(Verdict.CORRUPTED, f"{known.told(missing)} on no rank", Wrong.ON_NO_RANK)
    return None


def _may_be_dropped(epoch: Sequence[Pass], outcome: TrialFacts) -> int:
    """How many samples all loaders together may leave out, since they fill no batch.

    Of a stream each worker makes batches of its own.
    """
    if not outcome.drop_last:
        return 0
    batches = [each for one in epoch for each in one.delivered]
    size = max((len(each.indices or each.rows or ()) for each in batches), default=1)
    if outcome.kind == "map":
        return len(epoch) * size - 1
    return len(epoch) * max(1, len({each.worker for each in batches})) * (size - 1)


def _same_in_each(epoch: Sequence[Pass]) -> Finding | None:
    """Random samples that several ranks have in common, batch by batch."""
    batches = [tuple(sorted(each.digest for each in one.delivered)) for one in epoch]
    if len(batches[0]) < 2 or len(set(batches)) > 1:  # noqa: PLR2004  # one may be so by accident
        return None
    sentence = "each rank has the same random samples, bit by bit"
    return Finding(Verdict.CORRUPTED, sentence, Wrong.ON_SEVERAL_RANKS)


def _wrong_count(epoch: Sequence[Pass], count: int | None) -> Finding | None:
    """Random samples, more or fewer than the *count* that a stream has, if that is known."""
    came = sum(map(_count, epoch))
    if count is None or came == count:
        return None
    kind = Wrong.ON_SEVERAL_RANKS if came > count else Wrong.ON_NO_RANK
    told = f"all ranks together have {counted(came, 'sample')}, and the only rank has {count}"
    return Finding(Verdict.CORRUPTED, told, kind)


def _had_finished(main: int, outcome: TrialFacts) -> str:
    """What other ranks had done while *main* hung or died."""
    told = [
        f"rank {number} had ended its epoch, with {counted(_batches(each), 'batch')}"
        for number, each in enumerate(outcome.ranks)
        if number != main and each.passes and each.passes[-1].complete
    ]
    return "".join(f"; {each}" for each in told)


def _stopped(outcome: TrialFacts) -> str:
    """Which ranks stopped since the one that failed did."""
    numbers = [number for number, each in enumerate(outcome.ranks) if _is_consequence(each)]
    return f"; {_named(numbers)} stopped then, in time" if numbers else ""


def _named(numbers: Sequence[int]) -> str:
    """One or more ranks, by their *numbers*."""
    *first, last = map(str, numbers)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
