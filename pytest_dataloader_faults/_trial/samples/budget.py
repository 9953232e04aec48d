"""Which samples a trial looks at, where a dataset has too many [in the disposable process].

Every trial takes the same ones. Where the loader has torch's own samplers, they are spread over the
whole dataset. A sampler of the user's own is asked for its first batches, since nothing is known of
what else it would draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

_BATCHES_OF_A_WORKER = 2
"""Each worker makes at least so many, however few samples were asked for."""


def spread(count: int, most: int) -> list[int]:
    """*most* of the indices below *count*, spread evenly; with a larger *most* these and others.

    It is the sequence of van der Corput, which halves the largest gap again and again.
    """
    order = (int(count * _mirrored(place)) for place in itertools.count())
    return list(itertools.islice(_distinct(order), min(most, count)))


def _mirrored(number: int) -> float:
    """The binary digits of *number*, in reverse order and behind the point."""
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / (1 << len(digits))


def _distinct(values: Iterator[int]) -> Iterator[int]:
    seen = set()
    for value in values:
        if value not in seen:
            seen.add(value)
            yield value


class _SpreadSampler(Sampler[int]):
    """Some indices, in order or shuffled."""

    def __init__(self, indices: Sequence[int], like: Iterable[Any]) -> None:
        self._indices = sorted(indices)
        self._like = like

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[int]:
        if not isinstance(self._like, RandomSampler):
            return iter(self._indices)
        order = torch.randperm(len(self._indices), generator=self._like.generator)
        return iter([self._indices[place] for place in order.tolist()])


class _FirstSampler(Sampler[Any]):
    """The first few that another sampler draws."""

    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._most = most

    def __getattr__(self, name: str) -> Any:
        """Whatever else the loop over the loader uses of it, as ``set_epoch``."""
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return min(self._most, len(self._inner))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._inner, self._most)


def limit_samples(loader: DataLoader[Any], most: int) -> None:
    """Have *loader*, of a map-style dataset, draw about *most* samples of more.

    Where its batches are too large for each worker to make two, they get smaller, unless a batch
    sampler of the user's own makes them.
    """
    at_least = _BATCHES_OF_A_WORKER * max(1, loader.num_workers)
    most = max(most, at_least)
    own = loader._index_sampler
    size = getattr(own, "batch_size", None) or 1
    if not _draws_all(loader):
        _replace(loader, _FirstSampler(own, max(-(-most // size), at_least)))
        return
    inner: Any = own.sampler if _is_batched(loader) else own
    if len(inner) > most:
        chosen = _SpreadSampler(spread(len(inner), most), inner)
        size = min(size, max(1, most // at_least))
        batched = BatchSampler(chosen, size, own.drop_last) if _is_batched(loader) else None
        _replace(loader, batched or chosen)


def _draws_all(loader: DataLoader[Any]) -> bool:
    """Whether torch's own samplers draw every index of the dataset once."""
    sampler: Any = loader._index_sampler
    if _is_batched(loader):
        if type(sampler) is not BatchSampler:
            return False
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler._num_samples is None
    return type(sampler) is SequentialSampler


def _is_batched(loader: DataLoader[Any]) -> bool:
    return bool(loader._auto_collation)


def _replace(loader: DataLoader[Any], sampler: Any) -> None:
    name = "batch_sampler" if _is_batched(loader) else "sampler"
    object.__setattr__(loader, name, sampler)  # torch forbids it, since workers may run.
