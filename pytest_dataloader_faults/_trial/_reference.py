"""What a dataset gives when nothing is wrong [runs in the disposable process]."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._trial._digest import digest, rows_of
from pytest_dataloader_faults._trial._loaders import blamed, kind_of, sampled, seed_everything
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference

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
    loader: DataLoader[Any], seed: int, asked: Sequence[tuple[Any, ...]] | None
) -> Reference:
    """What the dataset gives here, one sample at a time, each digested before the next is made.

    So a dataset that hands out the same buffer each time cannot hide in its own reference.
    """
    if kind_of(loader) == "iterable":
        return _reference_in_order(loader)
    with blamed(f"comparing samples of {type(loader.dataset).__name__}"):
        return _reference_by_index(loader, seed, asked)


def _reference_by_index(
    loader: DataLoader[Any], seed: int, asked: Sequence[tuple[Any, ...]] | None
) -> Reference:
    seed_everything(seed)
    batches = sampled(loader) if asked is None else [list(each) for each in asked]
    first, second = (
        {
            index: _digest_alone(loader, sample_of(loader.dataset, index))
            for batch in batches
            for index in batch
        }
        for _ in range(2)
    )
    unstable = next((index for index in first if first[index] != second[index]), None)
    if loader._auto_collation and not _splits(loader, batches[0], first):
        known = ((plain_indices(batch), digest(_collated(loader, batch))) for batch in batches)
        return Reference("map", (), tuple(known), unstable)
    samples = tuple((plain_indices(index)[0], value) for index, value in first.items())
    return Reference("map", samples, (), unstable)


def _reference_in_order(loader: DataLoader[Any]) -> Reference:
    stream: Any = loader.dataset
    with blamed(f"iterating {type(stream).__name__}"):
        first_sample = next(iter(stream), None)
    if loader._auto_collation and first_sample is not None:
        _require_rows(loader, first_sample)
    with blamed(f"iterating {type(stream).__name__}"):
        first, second = ([_digest_alone(loader, sample) for sample in stream] for _ in range(2))
    if not first:
        message = f"{type(loader.dataset).__name__} is empty: no sample that a fault could hit"
        raise UnusableDatasetError(message)
    pairs = enumerate(itertools.zip_longest(first, second))
    unstable = next((place for place, (one, two) in pairs if one != two), None)
    return Reference("iterable", tuple(enumerate(first)), (), unstable)


def _require_rows(loader: DataLoader[Any], sample: Any) -> None:
    """Batches of an iterable differ with the workers; only their samples can be compared."""
    if rows_of(_batch(loader, [sample]), 1) is None:
        message = (
            f"the batches of {type(loader.dataset).__name__} cannot be taken apart into samples,"
            " and an iterable dataset has no indices to tell what should be in them: nothing can"
            " be compared. Try it with batch_size=None, or with a collate_fn that stacks samples"
        )
        raise UnusableDatasetError(message)


def _digest_alone(loader: DataLoader[Any], sample: Any) -> str:
    """The digest that *sample* has as a row of a batch; of the whole, if batches have no rows."""
    if not loader._auto_collation:
        return digest(_batch(loader, sample))
    batch = _batch(loader, [sample])
    rows = rows_of(batch, 1)
    return rows[0] if rows else digest(batch)


def _splits(loader: DataLoader[Any], indices: list[Any], alone: dict[Any, str]) -> bool:
    """Whether a row of a batch is what its sample is on its own."""
    rows = rows_of(_collated(loader, indices), len(indices))
    return rows == tuple(alone[index] for index in indices)


def _collated(loader: DataLoader[Any], indices: list[Any]) -> Any:
    """A batch of copies: a reused buffer would otherwise be the same sample many times."""
    return _batch(loader, [copy.deepcopy(loader.dataset[index]) for index in indices])


def _batch(loader: DataLoader[Any], samples: Any) -> Any:
    """What the loader makes of *samples*."""
    name = type(loader.dataset).__name__
    with blamed(f"collating samples of {name}", _COLLATING):
        return loader.collate_fn(samples)
