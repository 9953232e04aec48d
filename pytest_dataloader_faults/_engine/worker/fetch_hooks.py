"""Tell of each fetch, and of each sample if need be, as it begins [runs in the DataLoader worker].

torch/utils/data/_utils/fetch.py has the one place through which samples are asked for: a fetcher,
of one class for map-style and one for iterable datasets.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class SampleListener(Protocol):
    """Who is told of samples."""

    def begin_sample(self, sample: int, *, alone: bool) -> None:
        """A sample begins; unless *alone*, it is made together with others."""


class FetchListener(SampleListener, Protocol):
    """Who is told of all."""

    def restart(self) -> None:
        """An epoch begins: torch makes a fetcher for each."""

    def begin(self) -> None:
        """A fetch begins."""

    def end(self, *, ended: bool) -> None:
        """The fetch is over; *ended*: there are no more."""

    def idle(self) -> None:
        """No fetch will ever begin."""


@contextlib.contextmanager
def idle_after_error(hearer: FetchListener) -> Iterator[None]:
    """For what a worker does before its first fetch: torch hands over an error, and waits."""
    try:
        yield
    except BaseException:
        hearer.idle()
        raise


def announce_fetches(hearer: FetchListener, *, samples: bool, seed: int | None = None) -> None:
    """Let *hearer* hear of each fetch of this process, and with *samples* of each sample.

    With a *seed*, random numbers begin anew at each sample of a map-style dataset.
    """
    from torch.utils.data._utils import fetch

    of_map, of_iterable = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    for fetcher in (of_map, of_iterable):
        fetcher.fetch = _announced(fetcher.fetch, hearer)  # type: ignore[method-assign]
    to_items = functools.partial(_announce_items, hearer=hearer)
    to_stream = functools.partial(_announce_stream, hearer=hearer)
    if seed is not None:
        seeding = SeedingListener(hearer, seed, tell=samples)
        to_items = functools.partial(_announce_items, hearer=seeding)
    for fetcher, announce, wanted in (
        (of_map, to_items, samples or seed is not None),
        (of_iterable, to_stream, samples),
    ):
        fetcher.__init__ = _made(  # type: ignore[method-assign]
            fetcher.__init__, hearer, announce if wanted else None
        )


def _announced(fetch: Callable[..., Any], hearer: FetchListener) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def announced(self: Any, index: Any) -> Any:
        hearer.begin()
        ended = False
        try:
            return fetch(self, index)
        except StopIteration:
            ended = True
            raise
        finally:
            hearer.end(ended=ended)

    return announced


def _made(
    make: Callable[..., None], hearer: FetchListener, announce: Callable[[Any], None] | None
) -> Callable[..., None]:
    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        with idle_after_error(hearer):
            make(self, *args, **kwargs)
        hearer.restart()
        if announce is not None:
            announce(self)

    return made


def _announce_items(fetcher: Any, hearer: SampleListener) -> None:
    fetcher.dataset = ObservedDataset(fetcher.dataset, hearer)


def _announce_stream(fetcher: Any, hearer: FetchListener) -> None:
    fetcher.dataset_iter = ObservedStream(fetcher.dataset_iter, hearer)


class ObservedStream(Iterator[Any]):
    """An iterator that tells of each sample asked for, by its place.

    It goes on where *samples* does: a generator in its stead would end at the first error.
    """

    def __init__(self, samples: Iterator[Any], hearer: FetchListener) -> None:
        self._samples = samples
        self._hearer = hearer
        self._places = itertools.count()

    def __next__(self) -> Any:
        self._hearer.begin_sample(next(self._places), alone=True)
        return next(self._samples)


class ObservedDataset:
    """A dataset that tells of each index asked for. Only torch's fetcher ever sees it."""

    def __init__(self, dataset: Any, hearer: SampleListener) -> None:
        self._dataset = dataset
        self._hearer = hearer
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = self._several

    def __getitem__(self, index: Any) -> Any:
        self._tell(index)
        return self._dataset[index]

    def _several(self, indices: Any) -> Any:
        self._tell(indices)
        return self._dataset.__getitems__(indices)

    def _tell(self, index: Any) -> None:
        asked = index if isinstance(index, (list, tuple)) else (index,)
        for each in asked:
            if hasattr(each, "__index__"):
                self._hearer.begin_sample(operator.index(each), alone=len(asked) == 1)


class SeedSamples:
    """A ``worker_init_fn`` for workers under no fault, whose samples are to be seeded all the same.

    It runs the user's own after that.
    """

    def __init__(self, seed: int, then: Callable[[int], object] | None) -> None:
        self._seed = seed
        self._then = then

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        announce_fetches(NullListener(), samples=False, seed=self._seed)
        if self._then is not None:
            self._then(worker)


class NullListener:
    """Hears of everything and does nothing about it."""

    def restart(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def begin_sample(self, sample: int, *, alone: bool) -> None:
        pass

    def end(self, *, ended: bool) -> None:
        pass

    def idle(self) -> None:
        pass


class SeedingListener:
    """Seeds this process by each sample, and passes on what it hears."""

    def __init__(self, hearer: SampleListener, seed: int, *, tell: bool) -> None:
        self._hearer = hearer
        self._seed = seed
        self._tell = tell

    def begin_sample(self, sample: int, *, alone: bool) -> None:
        if self._tell:
            self._hearer.begin_sample(sample, alone=alone)
        seed_sample(self._seed, sample)


def seed_sample(seed: int, index: int) -> None:
    """Make the random numbers of torch, NumPy and Python those of this sample, wherever it is."""
    import torch

    number = zlib.crc32(f"{seed}/{index}".encode())
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
