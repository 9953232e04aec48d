"""What a dataset gives when nothing is wrong [runs in the disposable process]."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_sample
from pytest_dataloader_faults._trial.loaders import blamed, kind_of, sampled, seed_everything
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.fingerprint import digest, rows_of, split
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes._reference import Comparison

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


_COLLATING = (
    ". A DataLoader with this collate_fn cannot make a batch of them either: give it one that can,"
    " as in loader={'collate_fn': ...}, or batch_size=None"
)


def plain_indices(index: Any) -> tuple[Any, ...]:
    """What a sampler drew, as plain data: one index or a list of them."""
    indices = index if isinstance(index, (list, tuple)) else [index]
    return tuple(each if isinstance(each, (int, str)) else repr(each) for each in indices)


def sample_of(dataset: Any, index: Any) -> Any:
    """One sample, with no fault about: an error is the dataset's own."""
    with blamed(f"{type(dataset).__name__}[{index!r}]"):
        return dataset[index]


def take_reference(
    loader: DataLoader[Any], seed: int, asked: Sequence[tuple[Any, ...]] | None, telling: Comparison
) -> Reference:
    """What the dataset gives here, one sample at a time, each digested before the next is made.

    So a dataset that hands out the same buffer each time cannot hide in its own reference.
    """
    reader = _Reader(loader, SampleComparer(telling), seed)
    name = type(loader.dataset).__name__
    if kind_of(loader) == "iterable":
        with blamed(f"iterating {name}"):
            return _reference_in_order(reader)
    with blamed(f"comparing samples of {name}"):
        return _reference_by_index(reader, asked)


class _Reading(NamedTuple):
    """A sample as it was read once; *exact* is its digest whatever else is compared."""

    place: Any
    row: SampleFingerprint
    exact: str
    kept: str | None


@dataclass(frozen=True)
class _Reader:
    """Reads samples of *loader*'s dataset, and tells what they are."""

    loader: DataLoader[Any]
    teller: SampleComparer
    seed: int

    def get(self, index: Any) -> Any:
        """The sample itself."""
        start = self.teller.telling.seeded
        if start is not None and hasattr(index, "__index__"):
            seed_sample(start, operator.index(index))
        return sample_of(self.loader.dataset, index)

    def read(self, index: Any) -> _Reading:
        """The sample, told."""
        return self.told(plain_indices(index)[0], self.get(index))

    def told(self, place: Any, sample: Any) -> _Reading:
        """*sample*, as it would be in a batch of its own."""
        alone = _alone(self.loader, sample)
        kept = self.teller.keep(alone, place)
        return _Reading(place, self.teller.row(alone, place), digest(alone), kept)

    def collated(self, indices: Sequence[Any]) -> Any:
        """A batch of copies: a reused buffer would otherwise be the same sample many times."""
        return _batch(self.loader, [copy.deepcopy(self.get(index)) for index in indices])


def _reference_by_index(reader: _Reader, asked: Sequence[tuple[Any, ...]] | None) -> Reference:
    seed_everything(reader.seed)
    drawn = sampled(reader.loader) if asked is None else asked
    indices = list(dict.fromkeys(index for batch in drawn for index in batch))
    first, second = (list(map(reader.read, indices)) for _ in range(2))
    found = _compared("map", first, second, reader.teller.telling)
    if reader.loader._auto_collation and not _splits(reader, list(drawn[0]), found):
        return replace(found, samples=(), leaves=(), **_of_batches(reader, drawn))
    return found


def _of_batches(reader: _Reader, drawn: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The batches as wholes, since they do not come apart again."""
    digests, kept = [], []
    for batch in drawn:
        indices, value = plain_indices(list(batch)), reader.collated(batch)
        packed = reader.teller.keep(value, indices)
        kept += [(indices, packed)] if packed else []
        digests.append((indices, reader.teller.digest(value, indices)))
    return {"batches": tuple(digests), "kept": tuple(kept)}


def _reference_in_order(reader: _Reader) -> Reference:
    stream: Any = reader.loader.dataset
    first = list(itertools.starmap(reader.told, enumerate(_with_rows(reader.loader, stream))))
    if not first:
        message = f"{type(stream).__name__} is empty: no sample that a fault could hit"
        raise UnusableDatasetError(message)
    second = list(itertools.starmap(reader.told, enumerate(stream)))
    found = _compared("iterable", first, second, reader.teller.telling)
    if len(second) < len(first):
        return replace(found, unstable=None, again=len(second))
    return found if len(second) == len(first) else replace(found, unstable=len(first))


def _compared(
    kind: str, first: list[_Reading], second: list[_Reading], telling: Comparison
) -> Reference:
    """What two readings of the same samples tell."""
    pairs = list(zip(first, second, strict=False))
    return Reference(
        kind,
        tuple((each.place, each.row.digest) for each in first),
        unstable=next((a.place for a, b in pairs if a.row.digest != b.row.digest), None),
        leaves=tuple((each.place, each.row.leaves) for each in first if each.row.leaves),
        varied=0 if telling.compare else sum(a.exact != b.exact for a, b in pairs),
        kept=tuple((each.place, each.kept) for each in first if each.kept),
        comparison=telling.description,
    )


def _with_rows(loader: DataLoader[Any], stream: Any) -> Iterator[Any]:
    """The samples of *stream*, the first of which has shown that a batch comes apart again."""
    for place, sample in enumerate(stream):
        if not place and loader._auto_collation:
            _require_rows(loader, sample)
        yield sample


def _require_rows(loader: DataLoader[Any], sample: Any) -> None:
    """Batches of an iterable differ with the workers; only their samples can be compared."""
    if rows_of(_batch(loader, [sample]), 1) is None:
        message = (
            f"the batches of {type(loader.dataset).__name__} cannot be taken apart into samples,"
            " and an iterable dataset has no indices to tell what should be in them: nothing can"
            " be compared. Try it with batch_size=None, or with a collate_fn that stacks samples"
        )
        raise UnusableDatasetError(message)


def _alone(loader: DataLoader[Any], sample: Any) -> Any:
    """*sample* as it is as a row of a batch; as a whole batch, if batches have no rows."""
    if not loader._auto_collation:
        return _batch(loader, sample)
    batch = _batch(loader, [sample])
    rows = split(batch, 1)
    return rows[0] if rows else batch


def _splits(reader: _Reader, indices: list[Any], found: Reference) -> bool:
    """Whether a row of a batch is what its sample is on its own."""
    alone, places = dict(found.samples), plain_indices(indices)
    rows = reader.teller.rows(reader.collated(indices), len(indices), places)
    return rows is not None and [row.digest for row in rows] == [alone[each] for each in places]


def _batch(loader: DataLoader[Any], samples: Any) -> Any:
    """What the loader makes of *samples*."""
    name = type(loader.dataset).__name__
    with blamed(f"collating samples of {name}", _COLLATING):
        return loader.collate_fn(samples)
