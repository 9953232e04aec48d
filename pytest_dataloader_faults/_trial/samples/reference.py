"""The reference: the samples that a dataset returns without faults [in the disposable process]."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_everything
from pytest_dataloader_faults._settings.jobs import ReferenceJob
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import (
    choose_size,
    count_samples,
    limit_samples,
)
from pytest_dataloader_faults._trial.samples import draws
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.draws import Draw, Name
from pytest_dataloader_faults._trial.samples.in_worker import take_in_worker
from pytest_dataloader_faults._trial.samples.reader import (
    BACKWARD,
    FORWARD,
    OTHER_SEED,
    PATIENCE,
    BatchReading,
    Reader,
    Reading,
    SamplesAlone,
    Way,
    time_samples,
)
from pytest_dataloader_faults._trial.samples.readings import (
    adapt,
    agree,
    are_equal,
    build_reference,
    have_same_rows,
    record,
    rows_in,
)
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.agreement import spread
from pytest_dataloader_faults.outcomes.text import pluralize

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

CALLS_USER_CODE = True

_READINGS = 2
"""Each sample is read twice, which shows whether it is the same again."""
_TIMED = 8
"""The number of samples that show how long one takes."""
_MOST_SAMPLES, _SHARE_OF_DEADLINE = 10_000, 1 / 3
"""When an endless stream is left: after this many samples, or this time."""
_SHARE_FOR_CHILD = 1 / 8
"""The part of a deadline that a child may take which does not survive its fork."""
_LEAST = 1e-9
"""Seconds for a sample, whatever the clock says."""
_SHARE_FOR_BATCHES = 1 / 2
"""The part of a deadline that whole batches of slow samples may take."""
_FEW_SAMPLES, _FEW_BATCHES = 64, 4
"""How many samples of such a stream each worker returns: this many, in whole batches."""


def take_reference(loader: DataLoader[Any], job: ReferenceJob) -> Reference:
    """The samples of the dataset, read one by one here, or else in a worker."""
    try:
        return _take_here(loader, job)
    except UnusableDatasetError as error:
        if error.__cause__ is None or not loader.num_workers:  # The user's code raised nothing.
            raise
        reference = take_in_worker(loader, functools.partial(_take_here, loader, job))
        if reference is None:
            raise
        return reference


def _take_here(loader: DataLoader[Any], job: ReferenceJob) -> Reference:
    """What the dataset returns in this process.

    Each sample gets its fingerprint before the next is made. So a dataset that returns the same
    buffer each time cannot hide that in its own reference.
    """
    comparer = SampleComparer(job.comparison, job.settings.contract)
    patience = min(PATIENCE, job.deadline * _SHARE_FOR_CHILD)
    reader = Reader(loader, comparer, job.displaced, patience)
    name = type(reader.dataset).__name__
    if loaders.kind_of(reader.dataset) == "iterable":
        with loaders.report_dataset_errors(f"iterating {name}"):
            return _reference_in_order(reader, job)
    with loaders.report_dataset_errors(f"comparing samples of {name}"):
        seed_everything(job.settings.seed)
        if job.batches is not None:
            return _reference_by_index(reader, _draws_of_batches(reader, job.batches), job)
        limit, first_draws, batch_size = _limit(reader, job)
        outer = loaders.outer_loader(loader)
        total, readable = count_samples(loader, outer), loaders.count_readable(loader, outer)
        if limit is not None:
            limit_samples(loader, outer, limit, batch_size=batch_size)
            seed_everything(job.settings.seed)
        # Some samplers can be iterated only once.
        drawn = list(draws.draws_of(loader)) or first_draws
        if not any(each.names for each in drawn):
            raise loaders.EmptyDatasetError(loaders.empty_message(reader.dataset))
        is_whole = not job.settings.ranks or draws.draws_the_same_again(loader, drawn)
        reference = _reference_by_index(reader, drawn, job)
        reference = replace(reference, limit=limit, is_whole=is_whole, draws=draws.pack(drawn))
        return replace(reference, batch_size=batch_size, total=total, readable=readable)


def _draws_of_batches(reader: Reader, batches: Sequence[tuple[int, ...]]) -> list[Draw]:
    batched = bool(reader.loader._auto_collation)
    requested = (list(each) if batched else each[0] for each in batches)
    return [Draw.of(each, reader.dataset, batched=batched) for each in requested]


def _limit(reader: Reader, job: ReferenceJob) -> tuple[int | None, list[Draw], int | None]:
    """About how many samples to check: fewer than *job* requests if they take long.

    And what the sampler drew to find that out, and how many samples a batch may have: as many as
    the loader has chosen, if there is time for that.
    """
    requested = job.settings.samples
    if requested is None or job.seconds is None:
        return requested, [], job.batch_size
    first_draws = list(itertools.islice(draws.draws_of(reader.loader), 1))
    sample_draws = [part for draw in first_draws for part in draw.split()][:_TIMED]
    took = time_samples(reader, sample_draws)
    seconds = _READINGS * max(_LEAST, statistics.median(took or [0]))
    limit = requested
    # Halved instead of computed, because the time of samples varies.
    while limit > 1 and limit * seconds > job.seconds:
        limit //= 2
    longest = job.deadline * _SHARE_FOR_BATCHES if limit < requested else job.seconds
    affordable, possible = (each / seconds for each in (job.seconds, longest))
    limit, batch_size = choose_size(reader.loader, limit, affordable, possible)
    return limit, first_draws, batch_size


# Some facts about samples and their batches. A sample is read in a batch, and in a child process in
# a batch of its own, in the reverse order: what is random may depend on what was read before. The
# child has the dataset as it was before the first read, as a worker has: a dataset may change the
# samples that it keeps. If both are not equal, although each of them is the same again, the samples
# of a batch depend on each other, as with padding, and batches are compared as wholes. But a
# dataset may also return the same buffer for each sample, which only a copy of each shows. And if
# no sample draws random numbers, or differs under another seed, trials need no seeds.


def _reference_by_index(reader: Reader, drawn: Sequence[Draw], job: ReferenceJob) -> Reference:
    requested = [each for each in drawn if each.names]
    samples: dict[Name, Draw] = {}
    for sample_draw in (part for draw in requested for part in draw.split()):
        samples.setdefault(sample_draw.names[0], sample_draw)
    with SamplesAlone(reader, list(samples.values())) as alone:
        began = time.monotonic()
        batched = list(map(reader.read_batch, requested))
        alone.seconds = time.monotonic() - began
        try:
            return _reference_of_samples(reader, job, requested, batched, alone)
        except loaders.CollateError:  # Of one sample: it may need as many as a batch has.
            if all(len(each.names) == 1 for each in requested):
                raise
    return _reference_of_batches(reader, requested, job)


def _reference_of_samples(
    reader: Reader,
    job: ReferenceJob,
    requested: Sequence[Draw],
    batched: Sequence[BatchReading],
    alone: SamplesAlone,
) -> Reference:
    comparer = reader.comparer
    readings = repeats = _read_first(reader, job, batched, alone)
    if comparer.comparison.is_loose or not agree(comparer, readings, batched):
        repeats = _read_alone(alone, batched, FORWARD)
        _adapt(reader, job, "map", readings, repeats)
    if not agree(comparer, readings, batched):
        copied = [reader.read_batch(each, copies=True) for each in requested]
        if not agree(comparer, readings, copied):
            _adapt(reader, job, "map", rows_in(batched), rows_in(copied))
        batched = copied
    are_split = agree(comparer, readings, batched) and not comparer.comparison.in_batches
    varies = comparer.comparison.is_loose
    if job.adapts_comparison and varies and not reader.draws_random_numbers:
        comparer.comparison = replace(comparer.comparison, seeded=None)  # Seeds have no effect.
    reference = _build_reference(reader, "map", readings, repeats)
    if are_split:
        return reference
    whole_batches, _ = _read_whole_batches(reader, requested, job)
    names = (each.name for each in whole_batches)
    samples = tuple(zip(names, record(whole_batches, comparer), strict=True))
    return replace(reference, samples=samples, parts=(), comparison=comparer.comparison)


def _read_first(
    reader: Reader, job: ReferenceJob, batched: Sequence[BatchReading], alone: SamplesAlone
) -> list[Reading]:
    """Each sample alone; without seeds if no sample needs them."""
    comparer = reader.comparer
    if not job.adapts_comparison or comparer.comparison.seeded is None:
        return _read_alone(alone, batched)
    readings = _read_alone(alone, batched, OTHER_SEED)
    first = readings if agree(comparer, readings, batched) else _read_alone(alone, batched)
    if not reader.draws_random_numbers and are_equal(comparer, readings, first):
        comparer.comparison = replace(comparer.comparison, seeded=None)
    return first


def _read_alone(
    alone: SamplesAlone, batched: Sequence[BatchReading], way: Way = BACKWARD
) -> list[Reading]:
    """Each sample alone, or else those of the batches.

    What the dataset has open may not survive a fork: that is the business of the workers.
    """
    try:
        return alone.read(way)
    except loaders.CollateError:
        raise
    except UnusableDatasetError:
        if not all(each.rows for each in batched):
            raise
        return list({each.name: each for each in rows_in(batched)}.values())


def _reference_of_batches(
    reader: Reader, requested: Sequence[Draw], job: ReferenceJob
) -> Reference:
    """Of batches as wholes, since no sample can be collated alone."""
    readings, repeats = _read_whole_batches(reader, requested, job)
    if job.adapts_comparison and not reader.draws_random_numbers:
        reader.comparer.comparison = replace(reader.comparer.comparison, seeded=None)
    return _build_reference(reader, "map", readings, repeats)


def _read_whole_batches(
    reader: Reader, requested: Sequence[Draw], job: ReferenceJob
) -> tuple[list[Reading], list[Reading]]:
    """Two readings of whole batches, which are compared as closely as both agree."""
    comparer = reader.comparer
    comparer.comparison = replace(comparer.comparison, in_batches=True)
    readings = list(map(reader.read_whole_batch, requested))
    repeats = list(map(reader.read_whole_batch, requested[::-1]))[::-1]
    _adapt(reader, job, "map", readings, repeats)
    parts = [(each.name, each.row.parts) for each in (*readings, *repeats)]
    mask = spread(comparer.comparison.mask, parts)
    comparer.comparison = replace(comparer.comparison, mask=mask)
    return readings, repeats


def _adapt(
    reader: Reader,
    job: ReferenceJob,
    kind: str,
    readings: Sequence[Reading],
    repeats: Sequence[Reading],
) -> None:
    """Compare as closely as both readings agree, if *job* allows that."""
    if job.adapts_comparison and reader.comparer.contract.key is None:
        reader.comparer.comparison = adapt(reader.comparer, kind, readings, repeats)


def _build_reference(
    reader: Reader, kind: str, readings: Sequence[Reading], repeats: Sequence[Reading]
) -> Reference:
    reference = build_reference(reader.comparer, kind, readings, repeats)
    draws_random_numbers, lost = reader.draws_random_numbers, reader.lost
    return replace(reference, draws_random_numbers=draws_random_numbers, lost=lost)


def _reference_in_order(reader: Reader, job: ReferenceJob) -> Reference:
    readings, limit = _read_stream(reader, job.deadline)
    if not readings:
        raise loaders.EmptyDatasetError(loaders.empty_message(reader.dataset))
    seed_everything(job.settings.seed + 1)  # A stream may draw by the seed of its worker.
    repeats = list(itertools.islice(reader.read_stream(), limit))
    comparison = replace(reader.comparer.comparison, seeded=None)
    if limit is not None:
        comparison = replace(comparison, limit=limit, by_form=True)
    reader.comparer.comparison = comparison
    is_regrouped = have_same_rows(readings, repeats)
    if not is_regrouped:
        _adapt(reader, job, "iterable", readings, repeats)
    reference = replace(_build_reference(reader, "iterable", readings, repeats), stream_limit=limit)
    if is_regrouped:
        return reference
    if len(repeats) < len(readings):
        return replace(reference, unstable_index=None, second_pass_count=len(repeats))
    if len(repeats) == len(readings):
        return reference
    part = f"the stream returned {pluralize(len(readings), 'sample')}, then {len(repeats)}"
    return replace(reference, unstable_index=len(readings), unstable_part=part)


def _read_stream(reader: Reader, deadline: float) -> tuple[list[Reading], int | None]:
    """The samples of a stream, and None; of one that does not end the first, and how many."""
    limit, size = reader.comparer.comparison.limit, reader.loader.batch_size or 1
    kept_count = size * max(_FEW_BATCHES, _FEW_SAMPLES // size)
    until = time.monotonic() + deadline * _SHARE_OF_DEADLINE
    readings: list[Reading] = []
    for reading in reader.read_stream():
        readings.append(reading)
        if len(readings) == limit:
            break
        is_long = len(readings) >= _MOST_SAMPLES or time.monotonic() > until
        if limit is None and is_long and len(readings) >= kept_count:
            return readings[:kept_count], kept_count
    return readings, limit
