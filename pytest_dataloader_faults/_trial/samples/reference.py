"""The reference: the samples that a dataset returns without faults [in the disposable process]."""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    generator_states,
    read_one_by_one,
    seed_everything,
    seed_sample,
)
from pytest_dataloader_faults._settings.jobs import ReferenceJob
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import (
    count_samples,
    count_whole,
    limit_samples,
)
from pytest_dataloader_faults._trial.samples import comparer, draws
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer
from pytest_dataloader_faults._trial.samples.draws import Draw, Name, reads_whole_batches
from pytest_dataloader_faults._trial.samples.fingerprint import leaves
from pytest_dataloader_faults._trial.samples.in_worker import take_in_worker
from pytest_dataloader_faults._trial.samples.readings import Reading, adapt, build_reference
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.agreement import types_in
from pytest_dataloader_faults.outcomes.text import pluralize

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_READINGS = 2
"""Each sample is read twice, which shows whether it is the same again."""
_TIMED = 8
"""The number of samples that show how long one takes."""
_MOST_SAMPLES, _SHARE_OF_DEADLINE = 10_000, 1 / 3
"""When an endless stream is left: after this many samples, or this time."""
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
    of_samples = SampleComparer(job.comparison, job.settings.contract)
    reader = Reader(loader, of_samples, job.displaced, job.in_batches, job.adapts_comparison)
    dataset = loaders.dataset_of(loader)
    name = type(dataset).__name__
    if loaders.kind_of(dataset) == "iterable":
        with loaders.report_dataset_errors(f"iterating {name}"):
            return _reference_in_order(reader, job.deadline)
    with loaders.report_dataset_errors(f"comparing samples of {name}"):
        seed_everything(job.settings.seed)
        if job.batches is not None:
            batched = bool(loader._auto_collation)
            asked = (list(each) if batched else each[0] for each in job.batches)
            requested = [Draw.of(each, dataset, batched=batched) for each in asked]
            return _reference_by_index(reader, requested)
        limit, first_draws, whole_batches = _limit(reader, job)
        outer = loaders.outer_loader(loader)
        total, readable = count_samples(loader, outer), loaders.count_readable(loader, outer)
        if limit is not None:
            limit_samples(loader, outer, limit, whole_batches=whole_batches)
            seed_everything(job.settings.seed)
        # Some samplers can be iterated only once.
        drawn = list(draws.draws_of(loader)) or first_draws
        if not any(each.names for each in drawn):
            raise loaders.EmptyDatasetError(loaders.empty_message(dataset))
        is_whole = not job.settings.ranks or draws.draws_the_same_again(loader, drawn)
        reference = replace(_reference_by_index(reader, drawn), limit=limit, is_whole=is_whole)
        reference = replace(reference, draws=draws.pack(drawn), whole_batches=whole_batches)
        return replace(reference, total=total, readable=readable)


def _limit(reader: Reader, job: ReferenceJob) -> tuple[int | None, list[Draw], bool]:
    """About how many samples to check: fewer than *job* requests if they take long.

    And what the sampler drew to find that out, and whether there is time for batches of the size
    that the loader makes.
    """
    if job.settings.samples is None or job.seconds is None:
        return job.settings.samples, [], job.options.whole_batches
    first_draws = list(itertools.islice(draws.draws_of(reader.loader), 1))
    took = []
    for sample_draw in [part for draw in first_draws for part in draw.split()][:_TIMED]:
        began = time.monotonic()
        reader.fetch(sample_draw)
        took.append(time.monotonic() - began)
    limit = job.settings.samples
    # Halved instead of computed, because the time of samples varies.
    while took and limit > 1 and limit * _READINGS * statistics.median(took) > job.seconds:
        limit //= 2
    full_count = count_whole(reader.loader)
    longest = job.deadline * _SHARE_FOR_BATCHES
    is_slow = limit < job.settings.samples
    if is_slow and full_count * _READINGS * statistics.median(took) <= longest:
        return max(limit, full_count), first_draws, True
    return limit, first_draws, False


def _reference_by_index(reader: Reader, drawn: Sequence[Draw]) -> Reference:
    try:
        return _reference_of_samples(reader, drawn)
    except loaders.CollateError:  # Of one sample: it may need as many as a batch has.
        if not _collates_batches(reader, drawn):
            raise
    return _reference_of_batches(reader, drawn)


def _collates_batches(reader: Reader, drawn: Sequence[Draw]) -> bool:
    """Whether the loader makes a batch of the first *drawn* ones that has several samples."""
    several = next((each for each in drawn if len(each.names) > 1), None)
    with contextlib.suppress(loaders.CollateError):
        if several is not None:
            reader.batch(reader.fetch(several))
            return True
    return False


def _reference_of_batches(reader: Reader, drawn: Sequence[Draw]) -> Reference:
    """Of batches as wholes, since no sample can be collated alone."""
    draws = [each for each in drawn if each.names]
    readings, repeats = _read_twice(reader.read_whole, draws)
    reference = reader.build_reference("map", readings, repeats)
    if reference.comparison.mask or reference.comparison.by_form:
        readings = list(map(reader.read_whole, draws))
    return replace(reference, **_batch_fields(readings))


def _reference_of_samples(reader: Reader, drawn: Sequence[Draw]) -> Reference:
    samples: dict[Name, Draw] = {}
    for sample_draw in (part for draw in drawn for part in draw.split()):
        samples.setdefault(sample_draw.names[0], sample_draw)
    readings, repeats = _read_twice(reader.read, list(samples.values()))
    reference = reader.build_reference("map", readings, repeats)
    batches = [each for each in drawn if each.names and not each.is_whole]
    # If samples differ in their shapes, a collate_fn may pad those of some batches only.
    looked_at = batches if reference.mixes(samples) else batches[:1]
    if reader.in_batches or not all(_splits(reader, each, reference) for each in looked_at):
        return replace(reference, **_batch_fields(list(map(reader.read_whole, drawn))))
    return reference


def _read_twice(
    read: Callable[[Draw], Reading], draws: Sequence[Draw]
) -> tuple[list[Reading], list[Reading]]:
    """What *read* makes of each draw, twice: the second time in reverse order.

    Samples may depend on those read before, which are others in a worker.
    """
    readings = [read(each) for each in draws]
    repeats = [read(each) for each in draws[::-1]]
    return readings, repeats[::-1]


def _batch_fields(batches: Sequence[Reading]) -> dict[str, Any]:
    """The *batches* in place of samples, since they cannot be split into these."""
    digests = tuple((each.name, each.parts) for each in batches)
    empty = dict.fromkeys(("samples", "leaves", "parts"), ())
    return {**empty, "batches": digests}


def _reference_in_order(reader: Reader, deadline: float) -> Reference:
    stream = reader.dataset
    readings, limit = _read_stream(reader, deadline)
    if not readings:
        raise loaders.EmptyDatasetError(loaders.empty_message(stream))
    again = enumerate(itertools.islice(stream, limit))
    repeats = [reader.fingerprinted(*each) for each in again]
    reference = reader.build_reference("iterable", readings, repeats, limit)
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
    for numbered in enumerate(_with_rows(reader, reader.dataset)):
        readings.append(reader.fingerprinted(*numbered))
        if len(readings) == limit:
            break
        is_long = len(readings) >= _MOST_SAMPLES or time.monotonic() > until
        if limit is None and is_long and len(readings) >= kept_count:
            return readings[:kept_count], kept_count
    return readings, limit


def _with_rows(reader: Reader, stream: Any) -> Iterator[Any]:
    """The samples of *stream*, once the first has shown that batches can be split.

    Batches of an iterable differ with the workers; only their samples can be compared.
    """
    for number, sample in enumerate(stream):
        is_collated = not number and reader.loader._auto_collation
        if is_collated and not _makes_rows(reader, sample):
            message = (
                f"the batches of {type(stream).__name__} cannot be split into samples, and an"
                " iterable dataset has no indices that say what a batch should contain, so nothing"
                " can be compared. Pass batch_size=None, or define Contract(split=...)"
            )
            raise UnusableDatasetError(message)
        yield sample


def _makes_rows(reader: Reader, sample: Any) -> bool:
    """Whether a batch of one *sample* can be split."""
    try:
        return reader.comparer.split(reader.batch([sample]), 1) is not None
    except loaders.CollateError:
        with contextlib.suppress(loaders.CollateError):
            reader.batch(
                [comparer.copy_sample(sample) for _ in range(reader.loader.batch_size or 1)]
            )
            return False
        raise


def _splits(reader: Reader, draw: Draw, reference: Reference) -> bool:
    """Whether each row of a batch is equal to its sample on its own.

    A ready batch that holds fewer of these samples than requested is split as well: the judge says
    that samples are missing.
    """
    alone, names = reference.digests, draw.names
    batch = reader.batch(reader.fetch(draw))
    _require_split(reader, batch, len(names))
    if rows := reader.comparer.rows(batch, len(names)):
        return [row.digest for row in rows] == [alone[each] for each in names]
    sizes = range(len(names) - 1, 1, -1) if reader.gives_batches else ()
    fewer = next((rows for size in sizes if (rows := reader.comparer.rows(batch, size))), ())
    return bool(fewer) and {row.digest for row in fewer} <= set(alone.values())


def _require_key(reader: Reader, value: Any) -> None:
    """Refuse a function of the author's that fails on a sample that no fault has hit."""
    if (key := reader.comparer.contract.key) is not None:
        with loaders.report_dataset_errors("the contract's key"):
            key(value)


def _require_split(reader: Reader, batch: Any, count: int) -> None:
    """Refuse a function of the author's that does not take *batch* apart into *count* samples."""
    contract_split = reader.comparer.contract.split
    if contract_split is None or reader.gives_batches:
        return
    with loaders.report_dataset_errors("the contract's split"):
        samples = len(list(contract_split(batch)))
    if samples != count:
        message = (
            f"the contract's split divides a batch of {pluralize(count, 'sample')} into {samples}."
            " It must return the list of its samples"
        )
        raise UnusableDatasetError(message)


# Some facts about ``__getitems__``. If a dataset has it, torch's fetcher requests a whole batch
# from it, never calls ``__getitem__``, and passes the result to ``collate_fn``. By torch's
# documentation that is a list of samples, the same that ``__getitem__`` returns; if they differ,
# the dataset is wrong. But some datasets return a ready batch, and a ``collate_fn`` that leaves it
# as it is. A batch is not comparable with what ``__getitem__`` returns, so it is compared with
# batches of one.


def _sample_of(dataset: Any, draw: Draw) -> Any:
    """The first sample of *draw*, without faults: an error is the dataset's own."""
    (index,) = draw.indices
    with loaders.report_dataset_errors(f"{type(dataset).__name__}[{draw}]"):
        return dataset[index]


@dataclass
class Reader:
    """Reads samples of *loader*'s dataset, and makes their fingerprints.

    Attributes:
        displaced: By how much the index whose random numbers a sample gets is less than its own.
        in_batches: Whether batches are compared whole, even if these can be split.
        adapts: Whether to compare less closely if two reads disagree.
        gives_batches: Whether the dataset returns ready batches; None before the first sample.
        draws_random_numbers: Whether samples that are seeded draw numbers from the global
            generators of torch, NumPy or Python.

    """

    loader: DataLoader[Any]
    comparer: SampleComparer
    displaced: int = 0
    in_batches: bool = False
    adapts: bool = False
    gives_batches: bool | None = None
    draws_random_numbers: bool = False
    _states: dict[str, Any] | None = None

    @property
    def dataset(self) -> Any:
        """The dataset that is read."""
        return loaders.dataset_of(self.loader)

    def read(self, draw: Draw) -> Reading:
        """The one sample of *draw*."""
        return self.read_collated(draw.names[0], self.fetch(draw), is_whole=draw.is_whole)

    def read_whole(self, draw: Draw) -> Reading:
        """The batch of *draw*."""
        batch = self.batch(self.fetch(draw))
        _require_key(self, batch)
        row = self.comparer.row(batch)
        delivered = comparer.delivery(batch, draw, self.loader, self.comparer)
        digests = (delivered.digest,) if delivered.rows is None else delivered.rows
        return Reading(draw.names, row, digests)

    def fetch(self, draw: Draw) -> Any:
        """What a worker passes to ``collate_fn`` for *draw*.

        Its samples are copies: a reused buffer would otherwise be the same sample many times.
        """
        self._states = None
        if self._reads_batch(draw):
            return self._fetch_batch(draw)
        samples = map(self._sample, draw.split())
        return list(samples) if len(draw.indices) == 1 else list(map(comparer.copy_sample, samples))

    def _reads_batch(self, draw: Draw) -> bool:
        """Whether to request the batch instead of its samples."""
        if not (self.loader._auto_collation and reads_whole_batches(self.dataset)):
            return False
        if draw.is_whole or not draw.indices:
            return True
        if self.gives_batches is None:
            self.gives_batches = self._gives_batches(draw.split()[0])
        return self.gives_batches

    def _gives_batches(self, draw: Draw) -> bool:
        batch = self._fetch_batch(draw)
        if not isinstance(batch, (list, tuple)):
            return True
        dataset = self.dataset
        try:
            sample = dataset[draw.copy_for_worker().indices[0]]
        except loaders.USERS_ERRORS:  # The loader never calls __getitem__.
            return True
        return bool(batch) and _types([sample]) != _types(list(batch))

    def fingerprinted(self, place: int, sample: Any) -> Reading:
        """*sample* as a row of its own batch; as that batch, if batches cannot be split."""
        reading = self.read_collated(place, [sample])
        if self.loader._auto_collation:
            return reading
        return reading._replace(parts=self.comparer.parts(self.batch(sample)))

    def read_collated(self, name: Name, samples: Any, *, is_whole: bool = False) -> Reading:
        """A batch of one sample as a reading; *is_whole*: *samples* cannot be split."""
        is_batched, is_slice = self.loader._auto_collation, False
        alone = self.batch(samples if is_batched else samples[0])
        if is_batched and not is_whole and (parts := self.comparer.split(alone, 1)):
            alone, is_slice = parts[0], self.comparer.slices
        _require_key(self, alone)
        return Reading(name, self.comparer.row(alone, is_slice=is_slice))

    def batch(self, samples: Any) -> Any:
        """What the loader makes of *samples*."""
        advice = (
            ". A DataLoader with this collate_fn cannot make a batch of them either: pass another"
            " one, as in loader={'collate_fn': ...}, or batch_size=None"
        )
        name = type(self.dataset).__name__
        action = f"collating samples of {name}"
        with loaders.report_dataset_errors(action, advice, loaders.CollateError):
            batch = self.loader.collate_fn(samples)
        self._look_at_generators()
        return batch

    def _sample(self, draw: Draw) -> Any:
        self._seed(draw.indices)
        return _sample_of(self.dataset, draw.copy_for_worker())

    def _fetch_batch(self, draw: Draw) -> Any:
        dataset, drawn = self.dataset, draw.copy_for_worker().drawn
        with loaders.report_dataset_errors(f"{type(dataset).__name__}.__getitems__([{draw}])"):
            if self.comparer.comparison.seeded is None:
                return dataset.__getitems__(drawn)
            return read_one_by_one(dataset.__getitems__, drawn, self._seed)

    def _seed(self, indices: Sequence[Any]) -> None:
        self._look_at_generators()
        if (start := self.comparer.comparison.seeded) is not None:
            for index in indices:
                seed_sample(start, index - self.displaced if self.displaced else index)
            self._states = None if self.draws_random_numbers else generator_states()

    def build_reference(
        self,
        kind: str,
        readings: Sequence[Reading],
        repeats: Sequence[Reading],
        limit: int | None = None,
    ) -> Reference:
        """The reference that two readings make; *limit*: where an endless stream was left."""
        comparison = self.comparer.comparison
        if self.adapts and not self.draws_random_numbers:
            comparison = replace(comparison, seeded=None)
        if limit is not None:
            comparison = replace(comparison, limit=limit, by_form=True)
        self.comparer.comparison = comparison
        if self.adapts and (limit is not None or self.comparer.contract.key is None):
            self.comparer.comparison = adapt(self.comparer, kind, readings, repeats)
        reference = build_reference(self.comparer, kind, readings, repeats)
        draws = self.draws_random_numbers
        return replace(reference, draws_random_numbers=draws, stream_limit=limit)

    def _look_at_generators(self) -> None:
        """Find out whether the last sample has drawn numbers."""
        if self._states is not None:
            self.draws_random_numbers |= generator_states(self._states) != self._states


def _types(samples: list[Any]) -> object:
    return types_in(leaves(samples))
