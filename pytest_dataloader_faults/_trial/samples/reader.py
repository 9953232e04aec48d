"""Reads samples as a worker would, and makes their fingerprints [in the disposable process].

Some facts about ``__getitems__``. Where a dataset has it, torch's fetcher asks it for a whole
batch, calls ``__getitem__`` never, and gives ``collate_fn`` whatever came. By torch's documentation
that is a list of samples, the same that ``__getitem__`` gives; if they differ, the dataset is
wrong. But some datasets give a ready batch, and a ``collate_fn`` that leaves it as it is. A batch
is not comparable with what ``__getitem__`` gives, so it is compared with batches of one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_dataloader_faults._engine.worker.fetch_hooks import seed_sample
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.draws import Draw, Name, asks_for_several
from pytest_dataloader_faults._trial.samples.fingerprint import leaves, types_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def sample_of(dataset: Any, draw: Draw) -> Any:
    """The first sample of *draw*, with no fault armed: an error is the dataset's own."""
    (index,) = draw.indices
    with loaders.errors_of_dataset(f"{type(dataset).__name__}[{draw}]"):
        return dataset[index]


class Reading(NamedTuple):
    """A sample as it was read once; *pickled* where the author compares."""

    name: Name
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

    def read(self, draw: Draw) -> Reading:
        """The one sample of *draw*."""
        return self.collated(draw.names[0], self.fetch(draw), whole=draw.whole)

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
        return self.collated(place, [sample])

    def collated(self, name: Name, samples: Any, *, whole: bool = False) -> Reading:
        """Likewise of a batch of one sample, or *whole*, before it is collated."""
        alone = self.batch(samples if self.loader._auto_collation else samples[0])
        is_slice = False
        if self.loader._auto_collation and not whole and (parts := self.comparer.split(alone, 1)):
            alone, is_slice = parts[0], self.comparer.slices
        pickled = self.comparer.keep(alone, name)
        return Reading(name, self.comparer.row(alone, name, is_slice=is_slice), pickled)

    def batch(self, samples: Any) -> Any:
        """What the loader makes of *samples*."""
        advice = (
            ". A DataLoader with this collate_fn cannot make a batch of them either: give it one"
            " that can, as in loader={'collate_fn': ...}, or batch_size=None"
        )
        name = type(self.loader.dataset).__name__
        with loaders.errors_of_dataset(f"collating samples of {name}", advice):
            return self.loader.collate_fn(samples)

    def _sample(self, draw: Draw) -> Any:
        self._seed(draw)
        return sample_of(self.loader.dataset, draw.sent())

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
