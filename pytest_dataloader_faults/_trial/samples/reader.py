"""Reads samples as a worker would, and makes their fingerprints [in the disposable process].

Some facts about ``__getitems__``. Where a dataset has it, torch's fetcher asks it for a whole
batch, calls ``__getitem__`` never, and gives ``collate_fn`` whatever came. By torch's documentation
that is a list of samples, the same that ``__getitem__`` gives; if they differ, the dataset is
wrong. But some datasets give a ready batch, and a ``collate_fn`` that leaves it as it is. A batch
is not comparable with what ``__getitem__`` gives, so it is compared with batches of one.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_sample
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.fingerprint import leaves, types_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def plain_indices(index: Any) -> tuple[Any, ...]:
    """What a sampler drew, as plain data: one index or a list of them."""
    indices = index if isinstance(index, (list, tuple)) else [index]
    return tuple(each if isinstance(each, (int, str)) else repr(each) for each in indices)


def sample_of(dataset: Any, index: Any) -> Any:
    """One sample, with no fault armed: an error is the dataset's own."""
    with loaders.errors_of_dataset(f"{type(dataset).__name__}[{index!r}]"):
        return dataset[index]


class Reading(NamedTuple):
    """A sample as it was read once; *pickled* where the author compares."""

    index: Any
    row: SampleFingerprint
    pickled: str | None


@dataclass
class Reader:
    """Reads samples of *loader*'s dataset, and makes their fingerprints.

    Attributes:
        gives_batches: Whether the dataset gives ready batches; None before the first sample.

    """

    loader: DataLoader[Any]
    comparer: SampleComparer
    gives_batches: bool | None = None

    def read(self, index: Any) -> Reading:
        return self.collated(plain_indices(index)[0], self.fetch([index]))

    def fetch(self, indices: Sequence[Any]) -> Any:
        """What a worker gives ``collate_fn`` of these samples, in a batch of them.

        They are copies: a reused buffer would otherwise be the same sample many times.
        """
        if self.gives_batches is None:
            self.gives_batches = self._gives_batches(indices[0])
        if self.gives_batches:
            return self._together(indices)
        samples = map(self._sample, indices)
        return list(samples) if len(indices) == 1 else [copy.deepcopy(each) for each in samples]

    def _gives_batches(self, index: Any) -> bool:
        dataset: Any = self.loader.dataset
        if not (self.loader._auto_collation and getattr(dataset, "__getitems__", None)):
            return False
        found = self._together([index])
        if not isinstance(found, (list, tuple)):
            return True
        try:
            sample = dataset[index]
        except loaders.USERS_ERRORS:  # The loader never calls __getitem__.
            return True
        return bool(found) and _types([sample]) != _types(list(found))

    def fingerprinted(self, index: Any, sample: Any) -> Reading:
        """*sample* as a row of a batch of its own; as that batch, if batches cannot be split."""
        return self.collated(index, [sample])

    def collated(self, index: Any, samples: Any) -> Reading:
        """Likewise of a batch of one sample, before it is collated."""
        is_slice = False
        if self.loader._auto_collation:
            batch = self.batch(samples)
            parts = self.comparer.split(batch, 1)
            alone, is_slice = (parts[0], self.comparer.slices) if parts else (batch, False)
        else:
            alone = self.batch(samples[0])
        pickled = self.comparer.keep(alone, index)
        return Reading(index, self.comparer.row(alone, index, is_slice=is_slice), pickled)

    def batch(self, samples: Any) -> Any:
        """What the loader makes of *samples*."""
        advice = (
            ". A DataLoader with this collate_fn cannot make a batch of them either: give it one"
            " that can, as in loader={'collate_fn': ...}, or batch_size=None"
        )
        name = type(self.loader.dataset).__name__
        with loaders.errors_of_dataset(f"collating samples of {name}", advice):
            return self.loader.collate_fn(samples)

    def _sample(self, index: Any) -> Any:
        self._seed([index])
        return sample_of(self.loader.dataset, index)

    def _together(self, indices: Sequence[Any]) -> Any:
        self._seed(indices)
        dataset: Any = self.loader.dataset
        with loaders.errors_of_dataset(f"{type(dataset).__name__}.__getitems__({list(indices)!r})"):
            return dataset.__getitems__(list(indices))

    def _seed(self, indices: Sequence[Any]) -> None:
        start = self.comparer.comparison.seeded
        for index in indices:
            if start is not None and hasattr(index, "__index__"):
                seed_sample(start, operator.index(index))


def _types(samples: list[Any]) -> object:
    return types_of(leaves(samples))
