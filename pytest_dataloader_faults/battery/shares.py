"""What each worker gave of a dataset in a run without a fault."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._settings.jobs import ONE_EPOCH, TrialOptions
from pytest_dataloader_faults.outcomes import Delivery, Outcome, Pass, Reference
from pytest_dataloader_faults.outcomes.contract import Compared, Comparison
from pytest_dataloader_faults.outcomes.judge.streams import digests
from pytest_dataloader_faults.outcomes.reference import (
    Leaf,
    Levels,
    Reading,
    Share,
    comparable,
    find_varying,
    merged,
)

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.baseline import Baseline

# Some facts about streams that draw. Training on a large text draws random windows of it, and each
# worker seeds its generator with its id. So n samples of the stream are n in each worker, and none
# of them need be among those that the main process draws. A stream that forgot to share its data
# among workers gives as many, but each worker gives the same samples, in this order or another.


_MOST_SHARED = 3 / 4
"""Workers that draw from few samples draw some of the same; two that read all share each."""


def shares_of(fault_free: Outcome) -> tuple[Share, ...]:
    """What each worker gave of a stream, where that is known."""
    workers = fault_free.workers
    files = {each.worker: len(each.files) for each in workers if each.worker is not None}
    came: dict[int, list[str]] = {worker: [] for worker in files}
    for each in fault_free.delivered:
        if each.worker is None or each.rows is None or fault_free.kind == "map":
            return ()
        came.setdefault(each.worker, []).extend(each.rows)
    return tuple(Share(each, tuple(came[each]), files.get(each, 0)) for each in sorted(came))


def drawn_in(fault_free: Outcome) -> int | None:
    """How many samples its sampler drew, if it drew as many batches as its length says."""
    (one,) = fault_free.passes
    has_length = fault_free.kind == "map" and len(one.drawn) == one.batches
    return sum(map(len, one.drawn)) if has_length else None


_TIMES, _LEAST_BYTES = 4, 8_000_000
"""A retry reads the same again, and a worker that starts reads modules."""


def most_bytes_of(fault_free: Outcome | None) -> int | None:
    """How many bytes a pass may read before it reads the same again and again.

    *fault_free*: a pass without a fault. None if that does not say it.
    """
    if fault_free is None or fault_free.engine != "kernel" or fault_free.unobserved:
        return None
    files = [counts for worker in fault_free.workers for counts in worker.files.values()]
    return max(_LEAST_BYTES, _TIMES * sum(each.bytes for each in files))


def count_own_samples(fault_free: Outcome, reference: Reference) -> int | None:
    """How many samples each worker gives, if they are random and its own; or else None."""
    shares, count = shares_of(fault_free), len(reference.samples)
    if not shares[1:] or {len(each.samples) for each in shares} != {count}:
        return None
    files, *others = (each.files.keys() for each in fault_free.workers)
    if len(files) >= count and all(files == each for each in others):
        return None
    is_of_content = reference.comparison.is_of_content
    contents = [Counter(each.samples) for each in shares] if is_of_content else []
    if _repeat_the_reference(contents, Counter(digest for _, digest in reference.samples)):
        return None
    pairs = itertools.combinations(contents, 2)
    return None if any((a & b).total() > count * _MOST_SHARED for a, b in pairs) else count


def _repeat_the_reference(workers: Sequence[Counter[str]], known: Counter[str]) -> bool:
    """Whether a worker has no sample of its own, beyond one that does as the main process does.

    If the reference has samples several times, they are drawn from few, and a worker that draws for
    itself has as many different ones.
    """
    repeating = [each for each in workers if not each.keys() - known.keys()]
    if len(known) < known.total():
        repeating = [each for each in repeating if len(each) <= len(known) * _MOST_SHARED]
    twins = sum(each == known for each in repeating)
    return len(repeating) > min(1, twins)


def are_alike(one: Outcome, other: Outcome) -> bool:
    """Whether each worker gave the same samples in both."""
    return _by_worker(one) == _by_worker(other)


def _by_worker(outcome: Outcome) -> dict[int | None, list[str]]:
    found: defaultdict[int | None, list[str]] = defaultdict(list)
    for each in outcome.delivered:
        found[each.worker] += digests(each)
    return found


# Some facts about datasets that seed themselves. Such a dataset seeds a generator once in each
# worker, or keeps one that each worker has a copy of. So a sample depends on how many samples the
# worker has made before, and the main process never reads the same twice. But an epoch of workers
# is the same again if its order is the same and each worker is new. A trial with faults can have
# both. The samples are no longer known if a trial has other workers or another order, or if the
# dataset tries again after an error and draws once more.


_IN_ORDER = replace(ONE_EPOCH, same_order=True)
"""An epoch that has the order of each other epoch of the same seed."""
_TWO_IN_ORDER = TrialOptions(epochs=2, same_order=True)
_MOST_READINGS = 2


@dataclass(frozen=True)
class WorkerEpoch:
    """The samples of an epoch of workers. Plain data.

    Attributes:
        reference: The samples; None if two epochs do not agree on them.
        drawn: What the sampler drew.
    """

    reference: Reference | None = None
    drawn: tuple[tuple[Any, ...], ...] = ()

    def is_comparable(self, outcome: Outcome) -> bool:
        """Whether each pass of *outcome* has the order of this epoch, as far as it came."""
        passes = (*outcome.passes, *([outcome.recovery] if outcome.recovery else []))
        return all(one.drawn == self.drawn[: len(one.drawn)] for one in passes)


def take_worker_epoch(baseline: Baseline) -> WorkerEpoch:
    """The epoch of workers, if the dataset of *baseline* needs it and repeats it."""
    if not _is_needed(baseline):
        return WorkerEpoch()
    seed = baseline.settings.seed if baseline.reference.kind == "map" else None
    comparison = Comparison(Compared.BYTES, seed, in_workers=True)
    for _ in range(_MOST_READINGS):
        passes = _passes(baseline, comparison)
        if passes is None:
            return WorkerEpoch()
        first, *others = passes
        if all(Counter(_samples(one)) == Counter(_samples(first)) for one in others):
            found = _reference(baseline.reference, first, comparison)
            is_known = found is not None and (found.has_content or bool(found.batches))
            return WorkerEpoch(found, first.drawn) if is_known else WorkerEpoch()
        levels = _varying(passes)
        if not levels or levels == baseline.comparison.varying:
            return WorkerEpoch()
        comparison = replace(comparison, varying=levels)
    return WorkerEpoch()


def _is_needed(baseline: Baseline) -> bool:
    """Whether content of samples is not compared, and an error cannot change later samples.

    A sample that the contract allows to leave out, or to replace, draws no random numbers.
    """
    contract, found = baseline.contract, baseline.comparison
    may_shift = contract.may_skip or contract.may_substitute
    is_loose = bool(found.varying) or not found.is_of_content
    is_asked = contract.compare is None and not may_shift
    return is_loose and is_asked and found.limit is None and not baseline.unusable_reason


def _passes(baseline: Baseline, comparison: Comparison) -> list[Pass] | None:
    """The passes of two trials, which are three: in one process, and in another one."""
    outcomes = [
        baseline.run_fault_free(comparison=comparison, options=options)[-1]
        for options in (_TWO_IN_ORDER, _IN_ORDER)
    ]
    passes = [one for outcome in outcomes for one in outcome.passes]
    is_whole = len(passes) == 3 and all(one.complete for one in passes)  # noqa: PLR2004  # see above
    is_same = all(one.drawn == passes[0].drawn for one in passes)
    return passes if is_whole and is_same else None


def _samples(one: Pass) -> list[tuple[Any, str]]:
    """Each sample that came, by its index, or each batch that does not come apart."""
    return list(itertools.chain(*map(_samples_of, one.delivered)))


def _samples_of(batch: Delivery) -> list[tuple[Any, str]]:
    if batch.rows is None:
        return [(batch.indices, batch.digest)]
    names = [None] * len(batch.rows) if batch.indices is None else batch.indices
    return list(zip(names, batch.rows, strict=False))


def _varying(passes: Sequence[Pass]) -> Levels:
    """The parts on which *passes* do not agree; empty if they are not known."""
    first, *others = map(_reading, passes)
    if not all(first) or len({len(each) for each in (first, *others)}) > 1:
        return ()
    found: Levels = ()
    for each in others:
        levels = tuple((part.path, part.compared) for part in find_varying(first, each))
        found = merged(found, levels)
    return found


def _reading(one: Pass) -> Reading:
    return [
        (name, [Leaf(*part) for part in parts])
        for each in one.delivered
        for (name, _), parts in zip(_samples_of(each), each.leaves, strict=False)
    ]


def _reference(known: Reference, one: Pass, comparison: Comparison) -> Reference | None:
    """The reference that *one* is; None if an index came twice, each time as another sample."""
    samples = _samples(one)
    if known.kind == "iterable":
        samples = [(place, digest) for place, (_, digest) in enumerate(samples)]
    if len(dict(samples)) < len(set(samples)):
        return None
    is_whole = any(each.rows is None for each in one.delivered)
    reported = itertools.chain(*(each.leaves for each in one.delivered))
    leaves = (
        (name, comparable(parts, comparison.varying))
        for (name, _), parts in zip(samples, reported, strict=False)
    )
    return replace(
        known,
        samples=() if is_whole else tuple(samples),
        batches=tuple(samples) if is_whole else (),
        leaves=() if is_whole else tuple(leaves),
        comparison=comparison,
        unstable_index=None,
        unstable_part="",
        pickled_samples=(),
        asked=None,
    )
