"""The samples that workers deliver without a fault, if the main process does not read the same."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.agreement import Comparison, Mask, Sample, find_mask
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.reference import ENOUGH_SAMPLES, divide
from pytest_dataloader_faults.steps import Epoch, TrialOptions, arm_workers

# Some facts about streams that draw. Training on a large text draws random windows of it, and each
# worker seeds its generator with its id. So n samples of the stream are n in each worker, and none
# of them need be among those that the main process draws. A stream that forgot to share its data
# among workers has as many, but each worker has the same samples, in this order or another.


_MOST_SHARED, _LEAST_NEW = 3 / 4, 1 / 4
"""The part of its samples that a worker may share with another one, and that must be its own."""


def count_own_samples(fault_free: Outcome, reference: Reference) -> int | None:
    """How many samples each worker delivers, if they are random and its own; or else None.

    One worker may do as the main process does.
    """
    known = Counter(reference.digests.values())
    count, shares = known.total(), list(map(Counter, digests_by_worker(fault_free).values()))
    if not shares[1:] or {each.total() for each in shares} != {count}:
        return None
    files, *other_files = (each.files.keys() for each in fault_free.workers)
    if len(files) >= count and all(files == each for each in other_files):
        return None
    if reference.comparison.by_form:  # Their content is not known.
        return count
    pairs = itertools.combinations(shares, 2)
    others = [each for each in shares if each != known]
    new = (sum(each[key] for key in each.keys() - known.keys()) for each in others)
    is_shared = any((a & b).total() > count * _MOST_SHARED for a, b in pairs)
    is_repeated = len(others) < len(shares) - 1 or any(each <= count * _LEAST_NEW for each in new)
    return None if is_shared or is_repeated else count


def digests_by_worker(outcome: Outcome) -> dict[int, list[str]]:
    """The digests of the samples that each worker of a stream delivered; empty if unknown."""
    return {
        worker: [digest for batch in batches for digest in batch.digests]
        for worker, batches in divide(outcome).items()
    }


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
    reference = replace(known_reference, samples=tuple(pairs), comparison=comparison)
    is_unique = len(dict(digests)) == len(set(digests))
    return reference if is_unique and (comparison.in_batches or reference.has_content) else None


_MIN_SECONDS, _EPOCHS = 10.0, 20
_MIN_SECONDS_KNOWN_HANG, _EPOCHS_KNOWN_HANG = 2.0, 3
"""Seconds at least, and how many times as long as an epoch without a fault."""


class Deadlines:
    """How long the trials of one dataset may take, if its *settings* leave that open."""

    def __init__(self, settings: Settings) -> None:
        self._is_set = settings.deadline is not None
        self.most = settings.longest_epoch
        self._longest: float | None = None

    def record_epoch(self, seconds: float) -> None:
        """An epoch without a fault took *seconds*."""
        self._longest = max(seconds, self._longest or 0.0)

    @property
    def for_trial(self) -> float:
        """The deadline of a trial."""
        if self._is_set or self._longest is None:
            return self.most
        return min(self.most, max(_MIN_SECONDS, math.ceil(_EPOCHS * self._longest)))

    @property
    def for_look(self) -> float:
        """The shorter deadline of a trial that probably hangs where an earlier one did."""
        enough = math.ceil(_EPOCHS_KNOWN_HANG * (self._longest or 0.0))
        return min(self.for_trial, max(_MIN_SECONDS_KNOWN_HANG, enough))
