"""Tell of each fetch, and of each sample if need be, as it begins [runs in the DataLoader worker].

torch/utils/data/_utils/fetch.py has the one place through which samples are asked for: a fetcher,
of one class for map-style and one for iterable datasets.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Hearer(Protocol):
    """Who is told."""

    def restart(self) -> None:
        """An epoch begins: torch makes a fetcher for each."""

    def begin(self) -> None:
        """A fetch begins."""

    def begin_sample(self, sample: int) -> None:
        """A sample begins."""

    def end(self, *, ended: bool) -> None:
        """The fetch is over; *ended*: there are no more."""

    def idle(self) -> None:
        """No fetch will ever begin."""


@contextlib.contextmanager
def idle_after_error(hearer: Hearer) -> Iterator[None]:
    """For what a worker does before its first fetch: torch hands over an error, and waits."""
    try:
        yield
    except BaseException:
        hearer.idle()
        raise


def announce_fetches(hearer: Hearer, *, samples: bool) -> None:
    """Let *hearer* hear of each fetch of this process, and with *samples* of each sample."""
    from torch.utils.data._utils import fetch

    of_map, of_iterable = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    for fetcher in (of_map, of_iterable):
        fetcher.fetch = _announced(fetcher.fetch, hearer)  # type: ignore[method-assign]
    for fetcher, announce in ((of_map, _announce_items), (of_iterable, _announce_stream)):
        fetcher.__init__ = _made(  # type: ignore[method-assign]
            fetcher.__init__, hearer, announce if samples else None
        )


def _announced(fetch: Callable[..., Any], hearer: Hearer) -> Callable[..., Any]:
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
    make: Callable[..., None], hearer: Hearer, announce: Callable[[Any, Hearer], None] | None
) -> Callable[..., None]:
    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        with idle_after_error(hearer):
            make(self, *args, **kwargs)
        hearer.restart()
        if announce is not None:
            announce(self, hearer)

    return made


def _announce_items(fetcher: Any, hearer: Hearer) -> None:
    fetcher.dataset = _Items(fetcher.dataset, hearer)


def _announce_stream(fetcher: Any, hearer: Hearer) -> None:
    fetcher.dataset_iter = _stream(fetcher.dataset_iter, hearer)


def _stream(samples: Iterator[Any], hearer: Hearer) -> Iterator[Any]:
    for number in range(1 << 62):
        hearer.begin_sample(number)
        try:
            sample = next(samples)
        except StopIteration:
            return
        yield sample


class _Items:
    """A dataset that tells of each index asked for. Only torch's fetcher ever sees it."""

    def __init__(self, dataset: Any, hearer: Hearer) -> None:
        self._dataset = dataset
        self._hearer = hearer
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = self._several

    def __getitem__(self, index: Any) -> Any:
        self._tell(index)
        return self._dataset[index]

    def _several(self, indices: Any) -> Any:
        for index in indices:
            self._tell(index)
        return self._dataset.__getitems__(indices)

    def _tell(self, index: Any) -> None:
        for each in index if isinstance(index, (list, tuple)) else (index,):
            if hasattr(each, "__index__"):
                self._hearer.begin_sample(operator.index(each))
