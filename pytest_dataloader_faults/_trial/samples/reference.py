"""The reference: what a dataset gives when nothing is wrong [in the disposable process]."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_everything, seed_sample
from pytest_dataloader_faults._settings.jobs import Drawn, ReferenceJob
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import count_samples, count_whole, limit_samples
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.draws import Draw, Name, asks_for_several, draws_of
from pytest_dataloader_faults._trial.samples.fingerprint import leaves
from pytest_dataloader_faults._trial.samples.in_worker import take_in_worker
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.contract import Compared, Comparison
from pytest_dataloader_faults.outcomes.records import Leaves
from pytest_dataloader_faults.outcomes.reference import (
    Varying,
    comparable,
    difference,
    find_varying,
    types_of,
)
from pytest_dataloader_faults.outcomes.text import counted

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_READINGS = 2
"""Each sample is read twice, which shows whether it is the same again."""
_TIMED = 8
"""So many samples show how long one takes."""
_MOST_SAMPLES, _SHARE_OF_DEADLINE = 10_000, 1 / 3
"""When a stream is left that has not come to its end: after this many samples, or so much time."""
_SHARE_FOR_BATCHES = 1 / 2
"""The part of a deadline that whole batches of slow samples may take."""
_MOST_PARTS = 200_000
"""Parts of samples that are kept, to see which of them vary."""
_FEW_SAMPLES, _FEW_BATCHES = 64, 4
"""How many samples of such a stream each worker gives: this many, and whole batches."""


def take_reference(loader: DataLoader[Any], job: ReferenceJob) -> Reference:
    """What the dataset gives here, or else in a worker, one sample at a time."""
    try:
        return _take_here(loader, job)
    except UnusableDatasetError as error:
        if error.__cause__ is None or not loader.num_workers:  # The user's code raised nothing.
            raise
        found = take_in_worker(loader, functools.partial(_take_here, loader, job))
        if found is None:
            raise
        return found


def _take_here(loader: DataLoader[Any], job: ReferenceJob) -> Reference:
    """What the dataset gives in this process.

    Each sample gets its fingerprint before the next is made. So a dataset that returns the same
    buffer each time cannot hide that in its own reference.
    """
    reader = Reader(loader, SampleComparer(job.comparison, job.handling))
    name = type(loader.dataset).__name__
    if loaders.kind_of(loader.dataset) == "iterable":
        with loaders.errors_of_dataset(f"iterating {name}"):
            return _reference_in_order(reader, job.deadline)
    with loaders.errors_of_dataset(f"comparing samples of {name}"):
        seed_everything(job.settings.seed)
        if job.batches is not None:
            return _reference_by_index(reader, _drawn_again(loader, job.batches))
        limit, first, whole_batches = _limit(reader, job)
        total = count_samples(loader)
        if limit is not None:
            outer = loaders.outer_of(loader)
            limit_samples(loader, outer, limit, whole_batches=whole_batches)
            seed_everything(job.settings.seed)
        drawn = list(draws_of(loader)) or first  # Some samplers can be asked once only.
        if not any(each.names for each in drawn):
            raise UnusableDatasetError(loaders.empty(loader.dataset))
        found = _reference_by_index(reader, drawn)
        return replace(found, limit=limit, total=total, whole_batches=whole_batches)


def _drawn_again(loader: DataLoader[Any], batches: Sequence[Drawn]) -> list[Draw]:
    batched = bool(loader._auto_collation)
    return [Draw.again(*each, loader.dataset, batched=batched) for each in batches]


def _limit(reader: Reader, job: ReferenceJob) -> tuple[int | None, list[Draw], bool]:
    """About how many samples to look at: fewer than *job* asks for where they take long.

    And what the sampler drew to find that out, and whether there is time for batches of the size
    that the loader makes.
    """
    if job.settings.samples is None or job.seconds is None:
        return job.settings.samples, [], job.options.whole_batches
    first = list(itertools.islice(draws_of(reader.loader), 1))
    took = []
    for each in [one for draw in first for one in draw.each()][:_TIMED]:
        began = time.monotonic()
        reader.fetch(each)
        took.append(time.monotonic() - began)
    most = job.settings.samples
    # Halved, and not computed: how long samples take is never the same twice.
    while took and most > 1 and most * _READINGS * statistics.median(took) > job.seconds:
        most //= 2
    whole = count_whole(reader.loader)
    longest = job.deadline * _SHARE_FOR_BATCHES
    is_slow = most < job.settings.samples
    if is_slow and whole * _READINGS * statistics.median(took) <= longest:
        return max(most, whole), first, True
    return most, first, False


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
    asked = [each for each in drawn if each.names]
    first, second = ([reader.read_whole(each) for each in asked] for _ in range(_READINGS))
    found = _compared("map", first, second, reader.comparer.comparison)
    return replace(found, samples=(), leaves=(), batches=found.samples)


def _reference_of_samples(reader: Reader, drawn: Sequence[Draw]) -> Reference:
    samples: dict[Name, Draw] = {}
    for each in (one for draw in drawn for one in draw.each()):
        samples.setdefault(each.names[0], each)
    asked = list(samples.values())
    before = _generator_states()
    first = list(map(reader.read, asked))
    draws = reader.comparer.comparison.seeded is None and _generator_states(before) != before
    second = list(map(reader.read, asked))
    found = _compared("map", first, second, reader.comparer.comparison)
    found = replace(found, draws_random_numbers=draws)
    batches = [each for each in drawn if each.names and not each.whole]
    # Where samples differ in their shapes, a collate_fn may pad those of some batches only.
    forms = {tuple(form for _, form, _ in parts) for _, parts in found.leaves}
    looked_at = batches if len(forms) > 1 else batches[:1]
    if not all(_splits(reader, each, found) for each in looked_at):
        return replace(found, samples=(), leaves=(), **_of_batches(reader, drawn))
    return found


def _of_batches(reader: Reader, drawn: Sequence[Draw]) -> dict[str, Any]:
    """The batches as wholes, since they cannot be split into samples."""
    digests, pickled = [], []
    for each in drawn:
        value = reader.batch(reader.fetch(each))
        packed = reader.comparer.keep(value, each.names)
        pickled += [(each.names, packed)] if packed else []
        digests.append((each.names, reader.comparer.digest(value, each.names)))
    return {"batches": tuple(digests), "pickled_samples": tuple(pickled)}


def _reference_in_order(reader: Reader, deadline: float) -> Reference:
    stream: Any = reader.loader.dataset
    first, limit = _read_stream(reader, deadline)
    if not first:
        message = f"{type(stream).__name__} is empty: no sample that a fault could hit"
        raise UnusableDatasetError(message)
    again = enumerate(itertools.islice(stream, limit))
    second = [reader.fingerprinted(*each) for each in again]
    found = _compared("iterable", first, second, reader.comparer.comparison)
    found = replace(found, stream_limit=limit)
    if len(second) < len(first):
        return replace(found, unstable_index=None, second_pass_count=len(second))
    if len(second) == len(first):
        return found
    part = f"the stream gave {counted(len(first), 'sample')}, and then {len(second)}"
    return replace(found, unstable_index=len(first), unstable_part=part)


def _read_stream(reader: Reader, deadline: float) -> tuple[list[Reading], int | None]:
    """The samples of a stream, and None; of one that does not end the first, and how many."""
    limit, size = reader.comparer.comparison.limit, reader.loader.batch_size or 1
    few = size * max(_FEW_BATCHES, _FEW_SAMPLES // size)
    until = time.monotonic() + deadline * _SHARE_OF_DEADLINE
    found: list[Reading] = []
    for each in enumerate(_with_rows(reader, reader.loader.dataset)):
        found.append(reader.fingerprinted(*each))
        if len(found) == limit:
            break
        is_long = len(found) >= _MOST_SAMPLES or time.monotonic() > until
        if limit is None and is_long and len(found) >= few:
            return found[:few], few
    return found, limit


def _compared(
    kind: str, first: list[Reading], second: list[Reading], comparison: Comparison
) -> Reference:
    """The reference from two readings of the same samples; those of a stream in any order."""
    unstable = _unstable(kind, first, second)
    was, now = (
        each[unstable].row.leaves if unstable is not None else () for each in (first, second)
    )
    digests = [Counter(each.row.exact for each in reading) for reading in (first, second)]
    differing = sum(a.row.exact != b.row.exact for a, b in zip(first, second, strict=False))
    if kind == "iterable":
        differing = (digests[0] - digests[1]).total()
    return Reference(
        kind,
        tuple((each.name, each.row.digest) for each in first),
        unstable_index=None if unstable is None else first[unstable].name,
        unstable_part=difference(was, now).replace("the reference", "the first reading"),
        leaves=tuple(_kept_leaves(each, comparison) for each in first if each.row.leaves),
        nondeterministic_count=0 if comparison.what is Compared.AUTHOR else differing,
        varying=_varying(kind, first, second) if differing else (),
        pickled_samples=tuple((each.name, each.pickled) for each in first if each.pickled),
        comparison=comparison,
        parts=tuple(each.parts for each in first) if all(each.parts for each in first) else (),
    )


def _varying(kind: str, first: list[Reading], second: list[Reading]) -> tuple[Varying, ...]:
    """The parts that differ, unless there are too many to know."""
    if len(first) != len(second) or not all(each.row.parts for each in (*first, *second)):
        return ()
    is_map = kind == "map"
    one, other = (
        [(each.name if is_map else None, each.row.parts) for each in reading]
        for reading in (first, second)
    )
    return find_varying(one, other)


def _kept_leaves(reading: Reading, comparison: Comparison) -> tuple[Any, Leaves]:
    """The parts of a sample, without what is in them where that is not compared."""
    if comparison.is_of_content:
        return reading.name, comparable(reading.row.leaves, comparison.varying)
    return reading.name, tuple((path, form, "") for path, form, _ in reading.row.leaves)


def _unstable(kind: str, first: list[Reading], second: list[Reading]) -> int | None:
    """The place of the first sample that was not the same twice, or None."""
    if kind == "map":
        pairs = enumerate(zip(first, second, strict=True))
        return next((place for place, (a, b) in pairs if a.row.digest != b.row.digest), None)
    left = Counter(each.row.digest for each in second)
    for place, each in enumerate(first[: len(second)]):
        if not left[each.row.digest]:
            return place
        left[each.row.digest] -= 1
    return None


def _generator_states(like: dict[str, Any] | None = None) -> dict[str, Any]:
    """The states of the global generators; with *like*, of those that it has."""
    states = {"torch": torch.get_rng_state().tolist(), "random": random.getstate()}
    if "numpy" in (sys.modules if like is None else like):
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, keys.tolist(), *rest)
    return states


def _with_rows(reader: Reader, stream: Any) -> Iterator[Any]:
    """The samples of *stream*, once the first has shown that batches can be split.

    Batches of an iterable differ with the workers; only their samples can be compared.
    """
    for number, sample in enumerate(stream):
        is_collated = not number and reader.loader._auto_collation
        if is_collated and not _makes_rows(reader, sample):
            message = (
                f"the batches of {type(stream).__name__} cannot be taken apart into samples, and an"
                " iterable dataset has no indices that say what a batch should hold: nothing can be"
                " compared. Try it with batch_size=None, or say how: Contract(split=...)"
            )
            raise UnusableDatasetError(message)
        yield sample


def _makes_rows(reader: Reader, sample: Any) -> bool:
    """Whether a batch of one *sample* can be split."""
    try:
        return reader.comparer.split(reader.batch([sample]), 1) is not None
    except loaders.CollateError:
        with contextlib.suppress(loaders.CollateError):
            reader.batch([_copied(sample) for _ in range(reader.loader.batch_size or 1)])
            return False
        raise


def _splits(reader: Reader, draw: Draw, found: Reference) -> bool:
    """Whether each row of a batch is equal to its sample on its own.

    A ready batch that holds fewer of these samples than asked for is split as well: the judge says
    that samples are missing.
    """
    alone, names = found.digests, draw.names
    batch = reader.batch(reader.fetch(draw))
    _require_split(reader, batch, len(names))
    if rows := reader.comparer.rows(batch, len(names), names):
        return [row.digest for row in rows] == [alone[each] for each in names]
    sizes = range(len(names) - 1, 1, -1) if reader.gives_batches else ()
    fewer = next((rows for size in sizes if (rows := reader.comparer.rows(batch, size))), ())
    return bool(fewer) and {row.digest for row in fewer} <= set(alone.values())


def _require_split(reader: Reader, batch: Any, count: int) -> None:
    """Refuse a function of the author's that does not take *batch* apart into *count* samples."""
    own = reader.comparer.handling.split
    if own is None or reader.gives_batches:
        return
    with loaders.errors_of_dataset("the contract's split"):
        came = len(list(own(batch)))
    if came != count:
        message = (
            f"the contract's split takes a batch of {counted(count, 'sample')} apart into {came}."
            " It has to return the list of its samples"
        )
        raise UnusableDatasetError(message)


# Some facts about ``__getitems__``. Where a dataset has it, torch's fetcher asks it for a whole
# batch, calls ``__getitem__`` never, and gives ``collate_fn`` whatever came. By torch's
# documentation that is a list of samples, the same that ``__getitem__`` gives; if they differ, the
# dataset is wrong. But some datasets give a ready batch, and a ``collate_fn`` that leaves it as it
# is. A batch is not comparable with what ``__getitem__`` gives, so it is compared with batches of
# one.


def _sample_of(dataset: Any, draw: Draw) -> Any:
    """The first sample of *draw*, with no fault armed: an error is the dataset's own."""
    (index,) = draw.indices
    with loaders.errors_of_dataset(f"{type(dataset).__name__}[{draw}]"):
        return dataset[index]


class Reading(NamedTuple):
    """A sample, or a batch, as it was read once; *pickled* where the author compares."""

    name: Name | tuple[Name, ...]
    row: SampleFingerprint
    pickled: str | None
    parts: tuple[str, ...] = ()


@dataclass
class Reader:
    """Reads samples of *loader*'s dataset, and makes their fingerprints.

    Attributes:
        gives_batches: Whether the dataset gives ready batches; None before the first sample.

    """

    loader: DataLoader[Any]
    comparer: SampleComparer
    gives_batches: bool | None = None
    _parts: int = 0

    def read(self, draw: Draw) -> Reading:
        """The one sample of *draw*."""
        return self.collated(draw.names[0], self.fetch(draw), whole=draw.whole)

    def read_whole(self, draw: Draw) -> Reading:
        """The batch of *draw*."""
        batch = self.batch(self.fetch(draw))
        pickled = self.comparer.keep(batch, draw.names)
        return Reading(draw.names, self.comparer.row(batch, draw.names), pickled)

    def fetch(self, draw: Draw) -> Any:
        """What a worker gives ``collate_fn`` of *draw*.

        Its samples are copies: a reused buffer would otherwise be the same sample many times.
        """
        if self._comes_together(draw):
            return self._together(draw)
        samples = map(self._sample, draw.each())
        return list(samples) if len(draw.indices) == 1 else list(map(_copied, samples))

    def _comes_together(self, draw: Draw) -> bool:
        """Whether to ask for the batch, and not for samples."""
        if not (self.loader._auto_collation and asks_for_several(self.loader.dataset)):
            return False
        if draw.whole or not draw.indices:
            return True
        if self.gives_batches is None:
            self.gives_batches = self._gives_batches(draw.each()[0])
        return self.gives_batches

    def _gives_batches(self, draw: Draw) -> bool:
        found = self._together(draw)
        if not isinstance(found, (list, tuple)):
            return True
        dataset: Any = self.loader.dataset
        try:
            sample = dataset[draw.sent().indices[0]]
        except loaders.USERS_ERRORS:  # The loader never calls __getitem__.
            return True
        return bool(found) and _types([sample]) != _types(list(found))

    def fingerprinted(self, place: int, sample: Any) -> Reading:
        """*sample* as a row of a batch of its own; as that batch, if batches cannot be split."""
        found = self.collated(place, [sample])
        if self.loader._auto_collation:
            return found
        return found._replace(parts=self.comparer.parts(self.batch(sample)))

    def collated(self, name: Name, samples: Any, *, whole: bool = False) -> Reading:
        """Likewise of a batch of one sample, or *whole*, before it is collated."""
        alone = self.batch(samples if self.loader._auto_collation else samples[0])
        is_slice = False
        if self.loader._auto_collation and not whole and (parts := self.comparer.split(alone, 1)):
            alone, is_slice = parts[0], self.comparer.slices
        pickled = self.comparer.keep(alone, name)
        row = self.comparer.row(alone, name, is_slice=is_slice)
        self._parts += len(row.parts)
        return Reading(name, row if self._parts <= _MOST_PARTS else replace(row, parts=()), pickled)

    def batch(self, samples: Any) -> Any:
        """What the loader makes of *samples*."""
        advice = (
            ". A DataLoader with this collate_fn cannot make a batch of them either: give it one"
            " that can, as in loader={'collate_fn': ...}, or batch_size=None"
        )
        name = type(self.loader.dataset).__name__
        what = f"collating samples of {name}"
        with loaders.errors_of_dataset(what, advice, loaders.CollateError):
            return self.loader.collate_fn(samples)

    def _sample(self, draw: Draw) -> Any:
        self._seed(draw)
        return _sample_of(self.loader.dataset, draw.sent())

    def _together(self, draw: Draw) -> Any:
        self._seed(draw)
        dataset: Any = self.loader.dataset
        with loaders.errors_of_dataset(f"{type(dataset).__name__}.__getitems__([{draw}])"):
            return dataset.__getitems__(draw.sent().drawn)

    def _seed(self, draw: Draw) -> None:
        start = self.comparer.comparison.seeded
        if start is not None:
            for index in draw.indices:
                seed_sample(start, index)


def _copied(sample: Any) -> Any:
    """A copy, unless *sample* holds what has none, as an open file for ``collate_fn``."""
    try:
        return copy.deepcopy(sample)
    except Exception:  # noqa: BLE001  # whatever the user's class raises
        return sample


def _types(samples: list[Any]) -> object:
    return types_of(leaves(samples))
