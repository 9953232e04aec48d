"""The samples of a fault-free run: those of the main process, and those of each worker."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader_faults._settings import SAMPLES, Settings
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.outcomes import Outcome, Pass, Reference
from pytest_dataloader_faults.outcomes.agreement import (
    BY_FORM,
    Comparison,
    Mask,
    SampleParts,
    find_mask,
)
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.judge.expected import divide
from pytest_dataloader_faults.outcomes.reference import ENOUGH_SAMPLES, require_samples
from pytest_dataloader_faults.outcomes.refusals import FileHistory
from pytest_dataloader_faults.steps import Epoch, arm_workers

# Some facts about streams that draw. Training on a large text draws random windows of it, and each
# worker seeds its generator with its id. So n samples of the stream are n in each worker, and none
# of them need be among those that the main process draws. A stream that forgot to share its data
# among workers has as many, but each worker has the same samples, in this order or another.


_ENOUGH_SECONDS = 5.0
"""If reading the usual number of samples would take longer, fewer are checked."""
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
    known_mask = known_reference.comparison.mask
    is_seeded = known_reference.kind == "map"
    comparison = Comparison(
        seeded=seed if is_seeded else None,
        in_batches=known_reference.comparison.in_batches,
        in_workers=True,
    )
    for _ in range(_MOST_READINGS):
        passes = _passes(run_fault_free, comparison)
        if passes is None:
            return None
        first_pass, *other_passes = passes
        if all(
            Counter(_samples(other_pass)) == Counter(_samples(first_pass))
            for other_pass in other_passes
        ):
            reference = _reference(known_reference, first_pass, comparison)
            is_known = reference is not None and (comparison.in_batches or reference.has_content)
            return reference if is_known else None
        mask = _mask_of(passes)
        if not mask or mask == known_mask:
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


def _passes(
    run_fault_free: Callable[..., list[Outcome]], comparison: Comparison
) -> list[Pass] | None:
    """The passes of two trials, which are three: in one process, and in another one."""
    outcomes = [
        run_fault_free(comparison=comparison, options=options)[-1]
        for options in (_TWO_EPOCHS, _ONE_EPOCH)
    ]
    passes = [epoch for outcome in outcomes for epoch in outcome.epochs]
    is_whole = len(passes) == 3 and all(epoch.complete for epoch in passes)  # noqa: PLR2004  # see above
    is_same = all(epoch.drawn == passes[0].drawn for epoch in passes)
    return passes if is_whole and is_same else None


def _samples(epoch: Pass) -> list[tuple[Any, str]]:
    """Each sample that came, by its index, or each batch that does not come apart."""
    return [(key, sample.digest) for batch in epoch.delivered for key, sample in batch.pairs]


def _mask_of(passes: Sequence[Pass]) -> Mask:
    """The parts on which *passes* do not agree; empty if they are not known."""
    first, *others = map(_parts_by_sample, passes)
    if not first or len({len(each) for each in (first, *others)}) > 1:
        return Mask()
    return functools.reduce(operator.or_, (find_mask(first, other) for other in others))


def _parts_by_sample(epoch: Pass) -> SampleParts:
    pairs = (pair for batch in epoch.delivered for pair in batch.pairs)
    return [(key, sample.parts) for key, sample in pairs if sample.parts]


def _reference(known_reference: Reference, epoch: Pass, comparison: Comparison) -> Reference | None:
    """The reference that *epoch* is; None if an index came twice, each time as another sample."""
    pairs = [pair for batch in epoch.delivered for pair in batch.pairs]
    if known_reference.kind == "iterable":
        pairs = [(place, sample) for place, (_, sample) in enumerate(pairs)]
    digests = [(key, sample.digest) for key, sample in pairs]
    if len(dict(digests)) < len(set(digests)):
        return None
    return replace(
        known_reference,
        samples=tuple(pairs),
        comparison=comparison,
        unstable_index=None,
        unstable_part="",
    )


class ReferenceStore:
    """The references of the dataset, by comparison.

    The first one may have fewer samples than *settings* say; the others then have as many.
    *history*: what is known of files.
    """

    def __init__(
        self,
        make_dataset: DatasetFactory,
        settings: Settings,
        history: FileHistory,
    ) -> None:
        self._make_dataset, self._settings, self._history = make_dataset, settings, history
        self._seconds = _ENOUGH_SECONDS if settings.samples == SAMPLES else None
        self._batch_size: int | None = None
        self._by_comparison: dict[Comparison, Reference] = {}

    @property
    def samples(self) -> int | None:
        """About how many samples are checked; None for all."""
        return self._settings.samples

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a reference shows that samples draw numbers from the global generators."""
        return any(each.draws_random_numbers for each in self._by_comparison.values())

    def limit(self, samples: int | None) -> None:
        """Check this many *samples*, and not fewer."""
        self._settings, self._seconds = replace(self._settings, samples=samples), None

    def __contains__(self, comparison: Comparison) -> bool:
        return comparison in self._by_comparison

    def adapt(self, comparison: Comparison) -> Comparison:
        """The closest comparison, no closer than *comparison*, by which two reads agree.

        Its reference is known then.
        """
        reference = self._take(comparison, adapts_comparison=True, seconds=self._seconds)
        self._by_comparison[reference.comparison] = reference
        self.limit(reference.limit)  # From now on the same for all.
        self._batch_size = reference.batch_size
        return reference.comparison

    def get(self, comparison: Comparison) -> Reference:
        """The reference for *comparison*."""
        if comparison not in self._by_comparison:
            self._by_comparison[comparison] = self._take(comparison)
        return self._by_comparison[comparison]

    @functools.cached_property
    def without_seeds(self) -> Comparison:
        """The comparison of samples whose random numbers are not seeded."""
        return self.adapt(BY_FORM)

    def compare_batches(self, comparison: Comparison) -> None:
        """Read everything in batches from now on: one of them could not be split into samples."""
        reference = self._take(comparison)
        require_samples(reference, self._settings.contract)
        self._by_comparison[comparison] = reference

    def _take(self, comparison: Comparison, **arguments: Any) -> Reference:
        # Random samples that are read again differ from their batch, whatever made that.
        known = (each for each in self._by_comparison.values() if each.unstable_index is None)
        if any(each.comparison.in_batches for each in known):
            comparison = replace(comparison, in_batches=True)
        facts: dict[str, Any] = {"history": self._history, "batch_size": self._batch_size}
        facts |= {"comparison": comparison, **arguments}
        return take_reference(self._make_dataset, self._settings, **facts)
