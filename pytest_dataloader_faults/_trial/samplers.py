"""Which samples a loader draws, and how it draws some of many [in a trial]."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pytest_dataloader_faults.outcomes.stages import StateOf

CALLS_USER_CODE = True

_Result = TypeVar("_Result")
_Default = TypeVar("_Default")
STATEFUL = "torchdata.stateful_dataloader"
"""The module of a loader that saves the states of its dataset and its sampler."""
OUTER_LOADERS: weakref.WeakKeyDictionary[DataLoader[Any], Any] = weakref.WeakKeyDictionary()
"""What accelerate or Fabric has wrapped around a loader."""
DEFAULT_SAMPLERS = (SequentialSampler, RandomSampler)
"""torch creates them for a dataset without a sampler, and they read its length."""
_SIZED = (*DEFAULT_SAMPLERS, SubsetRandomSampler, WeightedRandomSampler, list, tuple, range)


def try_user_code(call: Callable[[], _Result], default: _Default) -> _Result | _Default:
    """What *call* returns, or *default* if a class of the user's raises an error in it."""
    try:
        return call()
    except Exception:  # noqa: BLE001  # whatever that class raises
        return default


def outer_loader(loader: DataLoader[Any]) -> Any:
    """What a training loop iterates: *loader*, or what wraps it."""
    return OUTER_LOADERS.get(loader, loader)


def has_known_length(sampler: Any) -> bool:
    """Whether ``len`` of *sampler* is safe, and that of an epoch.

    torch does not read it from other samplers, and some have none, or another one.
    """
    return type(sampler) in _SIZED


# Every trial takes the same ones. If the loader has torch's own samplers, they are spread over the
# whole dataset. The first batches of a user's own sampler are drawn, because its other draws are
# unknown.


_BATCHES_OF_A_WORKER = 2
"""Each worker makes at least this many, however few samples were requested."""
_LARGEST_BATCH = 64
"""A larger batch is made smaller in a trial."""


def spread_indices(count: int, limit: int) -> list[int]:
    """*limit* of the indices below *count*, spread evenly; with a larger *limit* these and others.

    It is the sequence of van der Corput, which halves the largest gap again and again.
    """
    indices: dict[int, None] = {}
    places = itertools.count()
    while len(indices) < min(limit, count):
        digits = f"{next(places):b}"[::-1]  # Behind the point of a number below 1.
        indices[int(count * int(digits, 2) / (1 << len(digits)))] = None
    return list(indices)


_DISTRIBUTED = tuple(inspect.signature(DistributedSampler).parameters)
"""The arguments of torch's sampler, which keeps each of them as an attribute."""


class _SpreadDistributedSampler(DistributedSampler[Any]):
    """The part of some indices that a ``DistributedSampler`` like *like* draws."""

    def __init__(self, indices: Any, like: DistributedSampler[Any]) -> None:
        self._indices = indices
        options: Any = {name: getattr(like, name) for name in _DISTRIBUTED if name != "dataset"}
        super().__init__(indices, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._indices[place] for place in super().__iter__()])


def has_state(value: Any) -> bool:
    """Whether the class of *value* has a state: an object may answer to any name.

    Such a ``state_dict()`` does not take an argument. Streams of litdata and mosaicml-streaming
    have one that their own loaders call with some.
    """
    kind = type(value)
    return _takes(kind, "state_dict") and _takes(kind, "load_state_dict", {})


def state_of(loader: DataLoader[Any]) -> StateOf:
    """Whose state a checkpoint of *loader* can hold.

    accelerate's loaders have the methods in any case, and Fabric's hide those of what they wrap.
    """
    if has_state(loader):
        return StateOf.LOADER if has_state(outer_loader(loader)) else StateOf.NONE
    if type(loader) is not DataLoader or not has_state(loader.dataset):
        return StateOf.NONE
    return StateOf.DATASET if _has_torchdata() else StateOf.UNAVAILABLE


def _has_torchdata() -> bool:
    try:
        return importlib.util.find_spec(STATEFUL) is not None
    except ModuleNotFoundError:
        return False


def _takes(kind: type, name: str, *arguments: Any) -> bool:
    method = getattr(kind, name, None)
    if not callable(method):
        return False
    with contextlib.suppress(ValueError):  # It is of C, and its signature is not known.
        try:
            inspect.signature(method).bind(None, *arguments)
        except TypeError:
            return False
    return True


class _First(Iterator[Any]):
    """The next *limit* of an iterator.

    If *rest* is known, that many are drawn with the last one and left out, and the iterator ends:
    a state that is saved then must not be that of an unfinished epoch.
    """

    def __init__(self, inner: Iterator[Any], limit: int, rest: int | None) -> None:
        self._inner = inner
        self._left = limit
        self._rest = rest

    def __next__(self) -> Any:
        if not self._left:
            if self._rest is not None:
                next(self._inner, None)
            raise StopIteration
        item = next(self._inner)
        self._left -= 1
        if not self._left:
            collections.deque(itertools.islice(self._inner, self._rest or 0), maxlen=0)
        return item


class _WithState:
    """The state of the first few: that of what draws them, and how many are left.

    torchdata looks for these methods in the class.
    """

    _inner: Any
    _left: Any

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._left = state["left"]


class _FirstWithState(_WithState, _First):
    """The next items of an iterator with a state, as torchdata's samplers have."""


class _FirstSampler(Sampler[Any]):
    """The first few that another sampler draws.

    It has whatever else a loader uses of that sampler, as ``set_epoch``.
    """

    def __init__(self, inner: Any, limit: int) -> None:
        self._inner, self._most = inner, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return min(self._most, len(self._inner))

    def __iter__(self) -> Iterator[Any]:
        inner = iter(self._inner)
        kind = _FirstWithState if has_state(inner) else _First
        return kind(inner, self._most, self._count_rest())

    def _count_rest(self) -> int | None:
        """How many follow the first few; None if they are unknown, or enough for a further epoch.

        An epoch that begins there does not look shorter than the first one.
        """
        length = try_user_code(lambda: len(self._inner), math.inf)
        rest = max(0, length - self._most)
        return int(rest) if rest <= self._most else None


class _FirstSamplerWithState(_WithState, _FirstSampler):
    """The first few of a sampler that has its own state, from which its next iterator resumes."""

    _iterator: _First | None = None
    _loaded: int | None = None

    @property
    def _left(self) -> int | None:
        return self._iterator._left if self._iterator else self._loaded

    @_left.setter
    def _left(self, left: int | None) -> None:
        self._loaded = left

    def __iter__(self) -> Iterator[Any]:
        limit, self._loaded = self._most if self._loaded is None else self._loaded, None
        self._iterator = _First(iter(self._inner), limit, self._count_rest())
        return self._iterator


# Some facts about samplers without an end. A loader that keeps its iterator for all epochs has a
# batch sampler that restarts at its end, and its own loop, which counts the batches. torch draws
# some batches in advance, so the last ones that were drawn belong to the next epoch.


_NO_END = 1000
"""A sampler that draws this many batches more than an epoch has is endless."""


def length_of_endless(loader: DataLoader[Any]) -> int | None:
    """How many batches an epoch of *loader* has, if its sampler would draw on and on.

    None if its own loop does not count.
    """
    outer = outer_loader(loader)
    sampler: Any = loader._index_sampler
    has_own_loop = type(outer).__iter__ is not DataLoader.__iter__
    if not has_own_loop or _is_finite(sampler) or isinstance(sampler, Iterator):
        return None
    with contextlib.suppress(Exception):  # Of the user's classes: it does not return a length.
        length = len(outer)
        drawn = itertools.islice(sampler, length, length + _NO_END)
        return length if sum(1 for _ in drawn) == _NO_END else None
    return None


def count_batches_of_worker(loader: DataLoader[Any]) -> int | None:
    """How many batches each worker makes in an epoch at most, if its length is known.

    The length of a stream is not read: if it were wrong, torch would warn of it later.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    batches = try_user_code(lambda: len(outer_loader(loader)), None)
    return None if batches is None else math.ceil(batches / max(1, loader.num_workers))


_EPOCHS, _MOST_DRAWN = 8, 100_000


def draw_epochs(loader: DataLoader[Any]) -> set[tuple[Any, ...]]:
    """The orders that a user's own sampler draws in eight epochs; none for very long epochs."""
    sampler, length = loader._index_sampler, len(loader.dataset)  # type: ignore[arg-type]
    while isinstance(sampler, _FirstSampler):
        sampler = sampler._inner
    if _is_finite(sampler) or length > _MOST_DRAWN:
        return set()
    return {tuple(_draw(sampler, epoch, length)) for epoch in range(_EPOCHS)}


def _draw(sampler: Any, epoch: int, length: int) -> Iterator[Any]:
    """What *sampler* draws in an *epoch*, up to twice the *length* of the dataset."""
    _announce_epoch((sampler, getattr(sampler, "sampler", None)), epoch)
    for drawn in itertools.islice(sampler, 2 * length):
        yield from drawn if isinstance(drawn, (list, tuple)) else (drawn,)


def _is_finite(sampler: Any) -> bool:
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return has_known_length(inner) or type(inner) is DistributedSampler or has_state(inner)


def _list_inner_samplers(sampler: Any) -> dict[str, Any]:
    """The samplers of an epoch that *sampler* draws from again and again, by their attributes."""
    values = getattr(sampler, "__dict__", {}).items()
    return {name: value for name, value in values if isinstance(value, Sampler)}


def limit_samples(
    loader: DataLoader[Any],
    limit: int,
    *,
    keeps_sampler: bool = False,
    batch_size: int | None = None,
) -> None:
    """Have *loader*, of a map-style dataset, draw about *limit* samples of more.

    Each worker makes at least a batch. It has the size that the loader has chosen, unless
    *batch_size*, or else 64, is less. *keeps_sampler*: whether its own samplers draw, the first of
    what they would: the state of a loader may be that of its sampler.
    """
    workers, largest = max(1, loader.num_workers), batch_size or _LARGEST_BATCH
    limit = max(limit, _BATCHES_OF_A_WORKER * workers)
    sampler: Any = loader._index_sampler
    if length_of_endless(loader) is not None:
        for name, inner in _list_inner_samplers(sampler).items():
            object.__setattr__(sampler, name, _limited(inner, limit, workers, largest))
        return
    if keeps_sampler:
        limited = _take_first(sampler, limit, workers)
    else:
        limited = _limited(sampler, limit, workers, largest)
    name = "batch_sampler" if loader._auto_collation else "sampler"
    object.__setattr__(loader, name, limited)  # torch forbids it, since workers may run.


def _limited(sampler: Any, limit: int, workers: int, largest: int) -> Any:
    """What draws about *limit* of the samples that *sampler* draws, a batch for each worker.

    *largest*: how many samples a batch may have.
    """
    if not _draws_all(sampler):
        return _take_first(sampler, limit, workers)
    is_batched = type(sampler) is BatchSampler
    inner: Any = sampler.sampler if is_batched else sampler
    replicas = inner.num_replicas if type(inner) is DistributedSampler else 1
    size = min(_batch_size(sampler), largest)
    chosen = _spread_like(inner, max(limit, replicas * workers * size))
    if chosen is None:
        return sampler
    return BatchSampler(chosen, size, sampler.drop_last) if is_batched else chosen


def _take_first(sampler: Any, limit: int, workers: int) -> Any:
    kind = _FirstSamplerWithState if has_state(sampler) else _FirstSampler
    count = math.ceil(limit / _batch_size(sampler))
    return kind(sampler, max(count, _BATCHES_OF_A_WORKER * workers))


def choose_size(
    loader: DataLoader[Any], limit: int, affordable: float, possible: float
) -> tuple[int, int]:
    """How many samples of *loader* to check, at least *limit*, and how many a batch has then.

    There is time for so many samples that are *affordable*, or *possible*.
    """
    workers = max(1, loader.num_workers)
    size = min(_batch_size(loader._index_sampler), _LARGEST_BATCH)
    few, several = workers * size, workers * size * _BATCHES_OF_A_WORKER
    if several <= affordable:
        return max(limit, several), size
    if few <= possible:
        return max(limit, few), size
    return limit, min(size, max(1, limit // (_BATCHES_OF_A_WORKER * workers)))


def _spread_like(sampler: Any, limit: int) -> Any:
    """A sampler that draws *limit* indices as *sampler* does; None unless that draws more."""
    is_distributed = type(sampler) is DistributedSampler
    count = len(sampler.dataset if is_distributed else sampler)
    if count <= limit:
        return None
    indices = sorted(spread_indices(count, limit))
    if is_distributed:
        return _SpreadDistributedSampler(indices, sampler)
    is_shuffled = isinstance(sampler, RandomSampler)
    return SubsetRandomSampler(indices, sampler.generator) if is_shuffled else indices


def _batch_size(sampler: Any) -> int:
    """How many samples a batch of *sampler* has, if that is known, or else 1."""
    size = try_user_code(lambda: sampler.batch_size, 1)
    return size if isinstance(size, int) and size > 0 else 1


def sampler_of_epoch(loader: DataLoader[Any]) -> Any:
    """What draws the indices or batches of one epoch of *loader*; None if that is unknown."""
    sampler: Any = loader._index_sampler
    if length_of_endless(loader) is None:
        return sampler
    repeated = list(_list_inner_samplers(sampler).values())
    return repeated[0] if len(repeated) == 1 else None


def count_samples(loader: DataLoader[Any]) -> int | None:
    """How many samples *loader* may draw; None if only a user's own sampler knows."""
    sampler = sampler_of_epoch(loader)
    if loader._auto_collation:
        sampler = sampler.sampler if type(sampler) is BatchSampler else None
    return len(sampler) if has_known_length(sampler) else None


def _draws_all(sampler: Any) -> bool:
    """Whether torch's own samplers draw every index once, in all processes together."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is RandomSampler:
        return not inner.replacement and inner._num_samples is None
    return type(inner) in (SequentialSampler, DistributedSampler)


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Announce *epoch*, counted from 0, to everything that may shuffle, as training loops do."""
    batches: Any = loader.batch_sampler
    owners = (
        outer_loader(loader),
        loader,
        loader.sampler,
        batches,
        getattr(batches, "sampler", None),
        loader.dataset,
    )
    _announce_epoch(owners, epoch)


def _announce_epoch(owners: Iterable[Any], epoch: int) -> None:
    for owner in {id(each): each for each in owners}.values():
        if callable(setter := getattr(owner, "set_epoch", None)):
            setter(epoch)


def drops_last(loader: DataLoader[Any]) -> bool:
    """Whether *loader* leaves out samples that do not fill a batch, or are not enough to divide."""
    of_sampler = type(loader.sampler) is DistributedSampler and loader.sampler.drop_last
    return bool(loader.drop_last or of_sampler)
