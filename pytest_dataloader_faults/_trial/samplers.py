"""Which samples a loader draws: some of many, and the part of one rank [in a trial]."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pytest_dataloader_faults._settings.jobs import Rank

DEFAULT_SAMPLERS = (SequentialSampler, RandomSampler)
"""torch makes them for a dataset without a sampler, and they ask for its length."""
_SIZED = (*DEFAULT_SAMPLERS, SubsetRandomSampler, WeightedRandomSampler, list, tuple, range)


def has_known_length(sampler: Any) -> bool:
    """Whether ``len`` of *sampler* is safe, and that of an epoch.

    torch asks no other sampler for it, and some have none, or another one.
    """
    return type(sampler) in _SIZED


# Every trial takes the same ones. Where the loader has torch's own samplers, they are spread over
# the whole dataset. A sampler of the user's own is asked for its first batches, since nothing is
# known of what else it would draw.


_BATCHES_OF_A_WORKER = 2
"""Each worker makes at least this many, however few samples were asked for."""


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


class _SpreadDistributedSampler(DistributedSampler[Any]):
    """The part of some indices that one rank has, by torch's own rule."""

    def __init__(self, indices: Sequence[int], like: DistributedSampler[Any]) -> None:
        own: Any = sorted(indices)
        self._indices = own
        how: Any = {name: getattr(like, name) for name in ("shuffle", "seed", "drop_last")}
        super().__init__(own, like.num_replicas, like.rank, **how)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._indices[place] for place in super().__iter__()])


def has_state(value: Any) -> bool:
    """Whether the class of *value* has a state: an object may answer to any name.

    ``state_dict()`` takes no argument then. Streams of litdata and mosaicml-streaming have one that
    their own loaders call with some.
    """
    kind = type(value)
    return _takes(kind, "state_dict") and _takes(kind, "load_state_dict", {})


def _takes(kind: type, name: str, *given: Any) -> bool:
    method = getattr(kind, name, None)
    if not callable(method):
        return False
    with contextlib.suppress(ValueError):  # It is of C, and its signature is not known.
        try:
            inspect.signature(method).bind(None, *given)
        except TypeError:
            return False
    return True


class _First(Iterator[Any]):
    """The next *most* of an iterator."""

    def __init__(self, inner: Iterator[Any], most: int) -> None:
        self._inner = inner
        self._left = most

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        found = next(self._inner)
        self._left -= 1
        return found


class _FirstWithState(_First):
    """The same of an iterator with a state, as those of torchdata's samplers are."""

    _inner: Any

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._left = state["left"]


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
        inner = iter(self._inner)
        return (_FirstWithState if has_state(inner) else _First)(inner, self._most)


class _FirstSamplerWithState(_FirstSampler):
    """The same of a sampler with a state of its own, from which its next iterator goes on."""

    _iterator: _First | None = None
    _left: int | None = None

    def __iter__(self) -> Iterator[Any]:
        most, self._left = self._most if self._left is None else self._left, None
        self._iterator = _First(iter(self._inner), most)
        return self._iterator

    def state_dict(self) -> dict[str, Any]:
        left = self._iterator._left if self._iterator else self._left
        return {"inner": self._inner.state_dict(), "left": left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._left = state["left"]


# Some facts about samplers without an end. A loader that keeps its iterator for all epochs has a
# batch sampler that begins again at its end, and a loop of its own, which counts the batches. torch
# draws some batches in advance, so the last ones that were drawn belong to the next epoch.


_NO_END = 1000
"""This many batches beyond those of an epoch, and a sampler has no end."""


def length_of_endless(loader: DataLoader[Any], outer: Any) -> int | None:
    """How many batches an epoch of *outer* has, if the sampler of *loader* would draw on and on.

    *outer*: what wraps the loader, or the loader itself. None if its own loop does not count.
    """
    own: Any = loader._index_sampler
    has_own_loop = type(outer).__iter__ is not DataLoader.__iter__
    if not has_own_loop or _is_finite(own) or isinstance(own, Iterator):
        return None
    with contextlib.suppress(Exception):  # Of the user's classes: it says no length.
        length = len(outer)
        drawn = itertools.islice(own, length, length + _NO_END)
        return length if sum(1 for _ in drawn) == _NO_END else None
    return None


def _is_finite(sampler: Any) -> bool:
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return has_known_length(inner) or type(inner) is DistributedSampler or has_state(inner)


def _repeated_by(own: Any) -> dict[str, Any]:
    """The samplers of an epoch that *own* draws from again and again, by their attributes."""
    values = getattr(own, "__dict__", {}).items()
    return {name: value for name, value in values if isinstance(value, Sampler)}


def limit_samples(
    loader: DataLoader[Any],
    outer: Any,
    most: int,
    *,
    keeps_sampler: bool = False,
    whole_batches: bool = False,
) -> int | None:
    """Have *loader*, of a map-style dataset, draw about *most* samples of more.

    Where its batches are too large for each worker to make two, they get smaller, unless a batch
    sampler of the user's own makes them, or *whole_batches* are asked for: then each worker makes
    one at least. *outer*: what wraps the loader, or the loader itself. *keeps_sampler*: whether its
    own samplers draw, the first of what they would: the state of a loader may be that of its
    sampler. Returns the size of its batches, if they got smaller.
    """
    workers = max(1, loader.num_workers)
    at_least = _BATCHES_OF_A_WORKER * workers
    most = max(most, at_least)
    whole = workers if whole_batches else 0
    own: Any = loader._index_sampler
    if length_of_endless(loader, outer) is not None:
        repeated = _repeated_by(own)
        limited = {name: _limited(inner, most, at_least, whole) for name, inner in repeated.items()}
        for name, sampler in limited.items():
            object.__setattr__(own, name, sampler)
        sizes = (_reduced_from(repeated[name], limited[name]) for name in limited)
        return next(filter(None, sizes), None)
    if keeps_sampler or not _draws_all(own):
        _replace(loader, _first_of(own, most, at_least))
        return None
    sampler = _limited(own, most, at_least, whole)
    _replace(loader, sampler)
    return _reduced_from(own, sampler)


def _limited(sampler: Any, most: int, at_least: int, whole: int) -> Any:
    """What draws about *most* of the samples that *sampler* draws, in *at_least* batches.

    *whole*: how many batches keep their size; 0 if they may get smaller.
    """
    if not _draws_all(sampler):
        return _first_of(sampler, most, at_least)
    is_batched = type(sampler) is BatchSampler
    inner: Any = sampler.sampler if is_batched else sampler
    ranks = inner.num_replicas if type(inner) is DistributedSampler else 1
    most = max(most, ranks * at_least, ranks * whole * _batch_size(sampler))
    chosen = _spread_like(inner, most)
    if chosen is None:
        return sampler
    if not is_batched:
        return chosen
    several = max(1, most // (ranks * at_least))
    size = sampler.batch_size if whole else min(sampler.batch_size, several)
    return BatchSampler(chosen, size, sampler.drop_last)


def _reduced_from(sampler: Any, limited: Any) -> int | None:
    """The size of the batches of *sampler*, if those of *limited* are smaller."""
    size = _batch_size(sampler)
    is_batched = type(sampler) is BatchSampler
    return size if is_batched and _batch_size(limited) < size else None


def _first_of(sampler: Any, most: int, at_least: int) -> Any:
    kind = _FirstSamplerWithState if has_state(sampler) else _FirstSampler
    return kind(sampler, max(-(-most // _batch_size(sampler)), at_least))


def count_whole(loader: DataLoader[Any]) -> int:
    """How many samples a whole batch for each worker of *loader* takes."""
    return max(1, loader.num_workers) * _batch_size(loader._index_sampler)


def draw_again(loader: DataLoader[Any], drawn: Sequence[Any]) -> None:
    """Have *loader*, of a map-style dataset, draw what was *drawn* in each epoch from now on."""
    _replace(loader, drawn)
    if loader._iterator is not None:  # Its workers are persistent, and it has its own sampler.
        loader._iterator._index_sampler = drawn


def _spread_like(sampler: Any, most: int) -> Sampler[Any] | None:
    """A sampler of *most* indices, which are drawn as *sampler* draws; None if it has no more."""
    is_of_rank = type(sampler) is DistributedSampler
    count = len(sampler.dataset if is_of_rank else sampler)
    if count <= most:
        return None
    indices = spread(count, most)
    if is_of_rank:
        return _SpreadDistributedSampler(indices, sampler)
    return _SpreadSampler(indices, sampler)


def _batch_size(sampler: Any) -> int:
    """How many samples a batch of *sampler* has, if that is known, or else 1."""
    try:
        size = sampler.batch_size
    except Exception:  # noqa: BLE001  # whatever the user's class raises
        return 1
    return size if isinstance(size, int) and size > 0 else 1


def count_samples(loader: DataLoader[Any]) -> int | None:
    """How many samples *loader* may draw; None where only a sampler of the user's own knows."""
    sampler: Any = loader._index_sampler
    if _is_batched(loader):
        sampler = sampler.sampler if type(sampler) is BatchSampler else None
    return len(sampler) if has_known_length(sampler) else None


def _draws_all(sampler: Any) -> bool:
    """Whether torch's own samplers draw every index of the dataset once, in all ranks together."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is RandomSampler:
        return not inner.replacement and inner._num_samples is None
    return type(inner) in (SequentialSampler, DistributedSampler)


def _is_batched(loader: DataLoader[Any]) -> bool:
    return bool(loader._auto_collation)


def _replace(loader: DataLoader[Any], sampler: Any) -> None:
    name = "batch_sampler" if _is_batched(loader) else "sampler"
    object.__setattr__(loader, name, sampler)  # torch forbids it, since workers may run.


def options_for(dataset: Any, options: dict[str, Any], rank: Rank | None) -> dict[str, Any]:
    """*options* of a loader that gives one *rank* its part of a map-style *dataset*."""
    own = ("sampler", "batch_sampler")
    if rank is None or any(options.get(each) for each in own):
        return options
    shuffle = options.get("shuffle", True)
    sampler: Sampler[Any] = DistributedSampler(
        dataset, rank.world_size, rank.number, shuffle=shuffle
    )
    return {**options, "shuffle": None, "sampler": sampler}


def set_epoch(loader: DataLoader[Any], outer: Any, epoch: int) -> None:
    """Tell all that may shuffle that *epoch* begins, counted from 0, as training loops do.

    *outer*: what wraps the loader, or the loader itself.
    """
    batches: Any = loader.batch_sampler
    own = (
        outer,
        loader,
        loader.sampler,
        batches,
        getattr(batches, "sampler", None),
        loader.dataset,
    )
    for each in {id(each): each for each in own}.values():
        if callable(setter := getattr(each, "set_epoch", None)):
            setter(epoch)


def drops_last(loader: DataLoader[Any]) -> bool:
    """Whether *loader* leaves out samples that do not fill a batch, or are not enough for ranks."""
    of_sampler = type(loader.sampler) is DistributedSampler and loader.sampler.drop_last
    return bool(loader.drop_last or of_sampler)
