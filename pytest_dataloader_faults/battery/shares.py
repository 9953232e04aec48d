"""The samples of a fault-free run: those of the main process, and those of each worker."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.agreement import (
    Comparison,
    Mask,
    Sample,
    find_mask,
)
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.judge.expected import divide
from pytest_dataloader_faults.outcomes.reference import ENOUGH_SAMPLES
from pytest_dataloader_faults.steps import Epoch, arm_workers

# Some facts about streams that draw. Training on a large text draws random windows of it, and each
# worker seeds its generator with its id. So n samples of the stream are n in each worker, and none
# of them need be among those that the main process draws. A stream that forgot to share its data
# among workers has as many, but each worker has the same samples, in this order or another.


_MOST_SHARED = 3 / 4
"""Workers that draw from few samples draw some of the same; two that read all share each."""


_TIMES, _LEAST_BYTES = 4, 8_000_000
"""A retry reads the same again, and a worker that starts reads modules."""


def most_bytes_of(fault_free: Outcome | None) -> int | None:
    """How many bytes a pass may read before it reads the same again and again.

    *fault_free*: a pass without a fault. None if that does not say it.
    """
    if fault_free is None or fault_free.unobserved:
        return None
    files = [counts for worker in fault_free.workers for counts in worker.files.values()]
    return max(_LEAST_BYTES, _TIMES * sum(each.bytes for each in files))


def count_own_samples(fault_free: Outcome, reference: Reference) -> int | None:
    """How many samples each worker delivers, if they are random and its own; or else None."""
    count = len(reference.samples)
    workers = [
        [row for batch in batches for row in batch.digests]
        for batches in divide(fault_free).values()
    ]
    if not workers[1:] or {len(each) for each in workers} != {count}:
        return None
    files, *other_files = (each.files.keys() for each in fault_free.workers)
    if len(files) >= count and all(files == each for each in other_files):
        return None
    is_of_form = reference.comparison.by_form
    contents = [] if is_of_form else list(map(Counter, workers))
    if _repeat_the_reference(contents, Counter(reference.digests.values())):
        return None
    pairs = itertools.combinations(contents, 2)
    return None if any((a & b).total() > count * _MOST_SHARED for a, b in pairs) else count


def _repeat_the_reference(workers: Sequence[Counter[str]], known_digests: Counter[str]) -> bool:
    """Whether a worker has no sample of its own, beyond one that does as the main process does.

    If the reference has samples several times, they are drawn from few, and a worker that draws for
    itself has as many different ones.
    """
    repeating = [each for each in workers if not each.keys() - known_digests.keys()]
    if len(known_digests) < known_digests.total():
        repeating = [each for each in repeating if len(each) <= len(known_digests) * _MOST_SHARED]
    twins = sum(each == known_digests for each in repeating)
    return len(repeating) > min(1, twins)


def are_equal(run: Outcome, other_run: Outcome) -> bool:
    """Whether each worker delivered the same samples in both runs."""
    return _group_by_worker(run) == _group_by_worker(other_run)


def _group_by_worker(outcome: Outcome) -> dict[int | None, list[str]]:
    digests_by_worker: defaultdict[int | None, list[str]] = defaultdict(list)
    for delivery in outcome.delivered:
        digests_by_worker[delivery.worker] += delivery.digests
    return digests_by_worker


# Some facts about datasets that seed themselves. Such a dataset seeds a generator once in each
# worker, or keeps one that each worker has a copy of. So a sample depends on how many samples the
# worker has made before, and the main process never reads the same twice. But an epoch of workers
# is the same again if its order is the same and each worker is new. A trial with faults can have
# both. The samples are no longer known if a trial has other workers or another order, or if the
# dataset tries again after an error and draws once more.


_ONE_EPOCH = TrialOptions(processes=arm_workers(Epoch()))
_TWO_EPOCHS = TrialOptions(processes=arm_workers(Epoch(), Epoch()))
_MOST_READINGS = 2


def take_worker_epoch(
    known_reference: Reference,
    contract: Contract,
    seed: int,
    run_fault_free: Callable[..., list[Outcome]],
) -> Reference | None:
    """The samples of an epoch of workers; None if no trial needs them, or none repeats them.

    *known_reference*: what the main process has read. *seed*: of the random samples.
    *run_fault_free*: runs a trial without a fault.
    """
    if not _is_needed(contract, known_reference):
        return None
    comparison = Comparison(
        seeded=seed if known_reference.kind == "map" else None,
        in_batches=known_reference.comparison.in_batches,
        in_workers=True,
    )
    for _ in range(_MOST_READINGS):
        first, *others = _read_passes(run_fault_free, comparison)
        digests, *other_digests = (
            Counter((key, sample.digest) for key, sample in each) for each in (first, *others)
        )
        if others and all(each == digests for each in other_digests):
            return _reference(known_reference, first, comparison)
        parts, *other_parts = (
            [(key, sample.parts) for key, sample in each if sample.parts]
            for each in (first, *others)
        )
        is_known = bool(parts) and all(len(each) == len(parts) for each in other_parts)
        masks = [find_mask(parts, each) for each in other_parts if is_known]
        mask = functools.reduce(operator.or_, masks, Mask())
        if not mask or mask == known_reference.comparison.mask:
            return None
        comparison = replace(comparison, mask=mask)
    return None


def _is_needed(contract: Contract, reference: Reference) -> bool:
    """Whether content of samples is not compared, and each epoch can have the same order.

    An error must not change later samples: one that the contract allows to leave out, or to
    replace, draws no random numbers. And if few samples vary, epochs may agree by accident.
    """
    may_shift = contract.may_skip or contract.may_substitute
    is_asked = contract.key is None and not may_shift
    is_in_order = reference.kind == "iterable" or bool(reference.draws)
    is_certain = reference.nondeterministic_count >= min(ENOUGH_SAMPLES, len(reference.samples))
    has_end = reference.comparison.limit is None
    return reference.comparison.is_loose and is_asked and is_in_order and is_certain and has_end


_Samples: TypeAlias = Sequence[tuple[Any, Sample]]
"""The samples of a pass by their keys, or batches that cannot be split."""


def _read_passes(
    run_fault_free: Callable[..., list[Outcome]], comparison: Comparison
) -> list[_Samples]:
    """The passes of two trials, which are three: in one process, and in another one.

    None of them has samples if one was not finished, or if their samplers drew something else.
    """
    outcomes = [
        run_fault_free(comparison=comparison, options=options)[-1]
        for options in (_TWO_EPOCHS, _ONE_EPOCH)
    ]
    passes = [epoch for outcome in outcomes for epoch in outcome.epochs]
    is_whole = len(passes) == 3 and all(epoch.complete for epoch in passes)  # noqa: PLR2004  # see above
    if not is_whole or any(epoch.drawn != passes[0].drawn for epoch in passes):
        return [()]
    return [[pair for batch in epoch.delivered for pair in batch.pairs] for epoch in passes]


def _reference(
    known_reference: Reference, samples: _Samples, comparison: Comparison
) -> Reference | None:
    """The reference that the *samples* of an epoch are.

    None if an index came twice, each time as another sample, or if no content is compared.
    """
    is_stream = known_reference.kind == "iterable"
    pairs = list(enumerate(sample for _, sample in samples)) if is_stream else list(samples)
    digests = [(key, sample.digest) for key, sample in pairs]
    reference = replace(
        known_reference,
        samples=tuple(pairs),
        comparison=comparison,
        unstable_index=None,
        unstable_part="",
    )
    is_unique = len(dict(digests)) == len(set(digests))
    return reference if is_unique and (comparison.in_batches or reference.has_content) else None
