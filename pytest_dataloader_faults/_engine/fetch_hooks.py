"""Call a listener at the start of each fetch and, if needed, of each sample [in the worker].

torch/utils/data/_utils/fetch.py has the one place through which samples are requested: a fetcher,
of one class for map-style and one for iterable datasets.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_dataloader_faults import exceptions

CALLS_USER_CODE = True

ADDRESS = re.compile(r"( object)? at 0x[0-9a-f]+")
"""An address in the text of an object, which is another one in each process."""


class FetchListener:
    """What is called for fetches and samples. This one does nothing."""

    def restart(self) -> None:
        """An epoch starts: torch creates a fetcher for each."""

    def begin(self) -> None:
        """A fetch starts."""

    def begin_sample(self, sample: int | None, *, alone: bool) -> None:
        """A sample starts, None if its index is not a number; *alone*: the index identifies it."""

    def end(self, *, ended: bool) -> None:
        """The fetch is over; *ended*: it was the last one."""

    def idle(self) -> None:
        """The worker will not start a fetch."""


@contextlib.contextmanager
def idle_after_error(listener: FetchListener) -> Iterator[None]:
    """For what a worker does before its first fetch: torch passes on its error, and waits."""
    try:
        yield
    except BaseException:
        listener.idle()
        raise


def observe_fetches(listener: FetchListener, *, samples: bool, seed: int | None = None) -> None:
    """Call *listener* at each fetch of this process, and with *samples* at each sample.

    With a *seed*, random numbers restart at each sample of a map-style dataset.
    """
    from torch.utils.data._utils import fetch

    def observe(fetcher: Any) -> None:
        if isinstance(fetcher, fetch._IterableDatasetFetcher):
            if samples:
                fetcher.dataset_iter = _ObservedStream(fetcher.dataset_iter, listener)
        elif samples or seed is not None:
            sample_listener = listener if samples else FetchListener()
            begin = functools.partial(_begin_samples, sample_listener, seed)
            fetcher.dataset = ObservedDataset(fetcher.dataset, begin, one_by_one=seed is not None)

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = _with_reports(kind.fetch, listener)  # type: ignore[method-assign]
        kind.__init__ = _wrap_maker(kind.__init__, listener, observe)  # type: ignore[method-assign]


def _with_reports(fetch: Callable[..., Any], listener: FetchListener) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def fetch_and_report(self: Any, index: Any) -> Any:
        if not vars(self).get(_OWN):
            return fetch(self, index)
        listener.begin()
        ended = False
        try:
            return fetch(self, index)
        except StopIteration:
            ended = True
            raise
        finally:
            listener.end(ended=ended)

    return fetch_and_report


def _wrap_maker(
    make: Callable[..., None], listener: FetchListener, observe: Callable[[Any], None]
) -> Callable[..., None]:
    process = os.getpid()

    @functools.wraps(make)
    def make_observed(self: Any, *args: Any, **kwargs: Any) -> None:
        if os.getpid() != process or _belongs_to_nested_loader():
            make(self, *args, **kwargs)
            return
        with idle_after_error(listener):
            make(self, *args, **kwargs)
        setattr(self, _OWN, True)
        listener.restart()
        observe(self)

    return make_observed


_OWN = "is_of_loader_under_test"
"""The attribute of a fetcher of the loader under test. A dataset may iterate others."""


def _belongs_to_nested_loader() -> bool:
    """Whether the fetcher that is being made belongs to a loader that the dataset iterates.

    torch's worker loop makes the worker's own fetchers. An iterator makes any other one.
    """
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__ or frame.f_code.co_name == "create_fetcher":
        frame = frame.f_back
    maker = frame.f_locals.get("self")
    is_iterator = isinstance(maker, _BaseDataLoaderIter)
    return is_iterator and not getattr(maker, "is_under_test", False)


class _ObservedStream(Iterator[Any]):
    """An iterator that reports each requested sample by its number.

    It continues after an error as *samples* does: a generator would end at the first error.
    """

    def __init__(self, samples: Iterator[Any], listener: FetchListener) -> None:
        self._samples = samples
        self._listener = listener
        self._numbers = itertools.count()

    def __next__(self) -> Any:
        self._listener.begin_sample(next(self._numbers), alone=True)
        return next(self._samples)


class ObservedDataset:
    """A dataset that reports the indices of samples before it is asked for them.

    Only a fetcher ever sees it. *begin* is called with the indices; with *one_by_one*, for each
    sample of ``__getitems__`` as well.
    """

    def __init__(
        self, dataset: Any, begin: Callable[[Sequence[Any]], None], *, one_by_one: bool
    ) -> None:
        self._dataset, self._begin, self._one_by_one = dataset, begin, one_by_one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: Any) -> Any:
        self._begin([index])
        return self._dataset[index]

    @property
    def __getitems__(self) -> Any:
        """What the dataset has of that name, as far as torch would call it."""
        several = self._dataset.__getitems__
        return several and functools.partial(self._read_several, several)

    def _read_several(self, several: Callable[[Any], Any], drawn: Any) -> Any:
        if self._one_by_one:
            return _read_one_by_one(several, drawn, self._begin)
        indices = parts_of(drawn)
        self._begin([drawn] if indices is None else indices)
        return several(drawn)


def _begin_samples(listener: FetchListener, seed: int | None, indices: Sequence[Any]) -> None:
    """Tell *listener* which samples begin, and seed them if there is a *seed*."""
    for index in indices:
        is_known = len(indices) == 1 and integer_of(index) is not None
        listener.begin_sample(number_of(index), alone=is_known)
        if seed is not None:
            seed_sample(seed, index)


def _read_one_by_one(
    several: Callable[[Any], Any], drawn: Any, begin: Callable[[Sequence[Any]], None]
) -> Any:
    """What *several* returns for *drawn*, with *begin* called for each sample before it is made.

    A dataset that returns a ready batch makes all of its samples at once.
    """
    indices = parts_of(drawn)
    samples: list[Any] = []
    for place, index in enumerate(indices or ()):
        begin([index])
        part = several(drawn[place : place + 1])
        if not isinstance(part, (list, tuple)) or len(part) > 1:
            if len(drawn) == 1:
                return part
            break
        samples += part
    else:
        if indices:
            return samples
    begin([drawn] if indices is None else indices)
    return several(drawn)


def seed_samples(seed: int) -> None:
    """Seed each sample that this process makes, without faults."""
    observe_fetches(FetchListener(), samples=False, seed=seed)


def end_streams(samples: int) -> None:
    """End each stream that this process reads after this many *samples*. No fetcher is made yet."""
    from torch.utils.data._utils import fetch

    def end(fetcher: Any) -> None:
        fetcher.dataset_iter = _FirstSamples(fetcher.dataset_iter, samples)

    kind = fetch._IterableDatasetFetcher
    kind.__init__ = _wrap_maker(kind.__init__, FetchListener(), end)  # type: ignore[method-assign]


def start_with_end(samples: int, init_fn: Callable[[int], object] | None, worker: int) -> None:
    """As a ``worker_init_fn``: run the user's own, then end each stream after these *samples*."""
    if init_fn is not None:
        init_fn(worker)
    end_streams(samples)


class _FirstSamples(Iterator[Any]):
    """The first samples of a stream; ``itertools.islice`` would also end at the first error."""

    def __init__(self, samples: Iterator[Any], count: int) -> None:
        self._samples = samples
        self._left = count

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        sample = next(self._samples)
        self._left -= 1
        return sample


def seed_sample(seed: int, index: Any) -> None:
    """Make the random numbers of torch, NumPy and Python those of this sample, wherever it is."""
    number = number_of(index)
    text = ADDRESS.sub("", exceptions._format_value(index)) if number is None else number
    seed_everything(zlib.crc32(f"{seed}/{text}".encode("utf-8", "surrogatepass")))


def seed_everything(number: int) -> None:
    """Have torch, NumPy and Python draw the same random numbers each time.

    ``torch.manual_seed`` would also seed the accelerators, which do not make samples. For one that
    is not in use yet it keeps a stack trace, which takes a millisecond.
    """
    import torch

    torch.default_generator.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def generator_states(like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The states of the global generators by their libraries; with *like*, of those that it has."""
    import torch

    states = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate()}
    if "NumPy" in like if like is not None else "numpy" in sys.modules:
        kind, keys, *position = sys.modules["numpy"].random.get_state()
        states["NumPy"] = (kind, keys.tolist(), *position)
    return states


# Some facts about indices. torch does not examine them: what a sampler yields goes to a worker
# through a pickle, and from there to the dataset. So an index may be a slice, a list of indices, a
# tensor or an object of any class. It need not have a hash, and its ``==`` may return an array. An
# array of NumPy or of torch has ``__index__`` whatever is in it, and raises TypeError unless that
# is one integer.


def integer_of(index: Any) -> int | None:
    """The integer that *index* is, also as a scalar of NumPy or torch; None of anything else."""
    is_one = not index.ndim if is_array(index) else type(index) in (int, bool)
    return number_of(index) if is_one else None


def number_of(index: Any) -> int | None:
    """The integer that *index* has, though it may have more; None if it has none."""
    if not hasattr(type(index), "__index__"):
        return None
    try:
        return int(operator.index(index))  # That of True is True.
    except Exception:  # noqa: BLE001  # An array, or a class of the user's.
        return None


def is_array(index: Any) -> bool:
    """Whether *index* is a tensor, an array or a scalar of NumPy's."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (numpy and (numpy.ndarray, numpy.generic), torch and torch.Tensor)
    return any(issubclass(type(index), each) for each in kinds if each)


def parts_of(drawn: Any) -> list[Any] | None:
    """The indices in *drawn*, if it is a list, a tuple, a range or an array; or else None."""
    has_parts = drawn.ndim > 0 if is_array(drawn) else issubclass(type(drawn), (list, tuple, range))
    return list(drawn) if has_parts else None
