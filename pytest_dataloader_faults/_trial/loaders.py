"""Make a trial's DataLoader from the user's factory, and prepare its process [in the trial]."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import multiprocessing
import os
import re
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pytest_dataloader_faults._arguments import meant
from pytest_dataloader_faults._engine.fake.notes import note_for
from pytest_dataloader_faults._engine.worker.fetch_hooks import StreamEnd
from pytest_dataloader_faults._engine.worker.late_imports import FOR_FORK_SERVER
from pytest_dataloader_faults._trial.factory import HandedOver, definition_of, require_one
from pytest_dataloader_faults._trial.process.fork_server import method_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.text import continued, shown, text_of

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARY = re.compile(
    rf"<|.*/(site|dist)-packages/|{re.escape(_PACKAGE)}/|{re.escape(os.path.dirname(os.__file__))}/"
)
"""Code that is not the user's own."""
USERS_ERRORS = (BaseException,)
"""What the user's code may raise, as pytest.skip() does. Ctrl-C goes to pytest, not to a trial."""
_DEFAULTS = {"num_workers": 2, "batch_size": 4}
_DEFAULT_SAMPLERS = (SequentialSampler, RandomSampler)
"""torch makes them for a dataset without a sampler, and they ask for its length."""
_SIZED = (*_DEFAULT_SAMPLERS, SubsetRandomSampler, WeightedRandomSampler, list, tuple, range)


_STOPS = (
    ". A loop over a loader takes it for the end of the epoch, and misses the rest of the samples:"
    " raise another error"
)


class EmptyDatasetError(UnusableDatasetError):
    """The dataset has no sample."""


@contextlib.contextmanager
def errors_of_dataset(what: str, advice: str = "") -> Iterator[None]:
    """Report errors of the user's code, which runs here with no fault armed, as the dataset's."""
    try:
        yield
    except UnusableDatasetError:
        raise
    except USERS_ERRORS as error:
        text = f"{continued(shown(error))}{_place_of(error)}"
        if isinstance(error, StopIteration):
            advice = _STOPS
        message = f"{what} failed with no fault armed: {text}{advice}{_pyfakefs_note(error)}"
        raise UnusableDatasetError(message) from error


def _place_of(error: BaseException) -> str:
    """The line that raised *error*, and the user's own line that led there if it is another.

    Empty if this package raised it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    if last.filename.startswith(_PACKAGE):
        return ""
    own = [each for each in frames if not _LIBRARY.match(each.filename)]
    called = own[-1] if own else last
    by = "" if called is last else f", called at {called.filename}:{called.lineno}"
    return f" at {last.filename}:{last.lineno}{by}"


def _pyfakefs_note(error: BaseException) -> str:
    note = note_for(error)
    return f". {note}" if note else ""


def make_loader(
    make_dataset: Callable[[], Any],
    options: Mapping[str, Any] | None,
    changes: Mapping[str, Any],
    *,
    needs_workers: bool = False,
) -> DataLoader[Any]:
    """The loader to try; *changes* overrule its options, also those of a ready ``DataLoader``.

    One without workers gets two if it *needs_workers*: data modules have such loaders by default.
    """
    made = _call_factory(make_dataset)
    if isinstance(made, DataLoader):
        if options:
            message = (
                f"loader={shown(dict(options))} was given, or drawn by a search, but make_dataset()"
                " returned a ready DataLoader, which has options of its own. Return the dataset, or"
                " pass loader={}"
            )
            raise InvalidArgumentError(message)
        lacks_workers = needs_workers and not made.num_workers
        workers = {"num_workers": _DEFAULTS["num_workers"], "prefetch_factor": 2}
        added = workers if lacks_workers else {}
        for name, value in {**added, **changes}.items():
            object.__setattr__(made, name, value)  # torch forbids it, since workers may run.
        loader = _with_last_batches(made)
        _leave_running_workers(loader)
    else:
        loader = _loader_for(made, {**(options or {}), **changes})
    if kind_of(loader.dataset) == "map":
        _require_samples(loader)
    return loader


_running: list[Any] = []
"""Iterators of pytest's process. To finalize one here would end its workers."""


def _leave_running_workers(loader: DataLoader[Any]) -> None:
    """Start new workers here, also for a loader that has some in pytest's process already."""
    _running.append(loader._iterator)
    loader._iterator = None


_OF_ITERATOR = (
    "An iterator is used up after one epoch: give the loader or the dataset itself, and leave out"
    " iter(). "
)
_OF_GENERATOR = (
    "A function with yield gives a generator: write return in place of yield, or yield the samples"
    " in __iter__ of an IterableDataset. "
)


def _call_factory(make_dataset: Callable[[], Any]) -> Any:
    try:
        made = make_dataset()
    except (UnusableDatasetError, InvalidArgumentError):
        raise
    except USERS_ERRORS as error:
        text = f"{type(error).__name__}: {continued(text_of(error))}{_place_of(error)}"
        message = f"make_dataset() raised {text}, with no fault armed{_pyfakefs_note(error)}"
        raise UnusableDatasetError(message) from error
    _require_class(made)
    require_one(made)
    if isinstance(made, type) or not _is_usable(made):
        message = (
            f"{_origin(make_dataset, made)} is no dataset: it has no __getitem__ and is no"
            f" IterableDataset. {_advice_on(made)}Give a map-style or iterable dataset, a ready"
            " DataLoader, a data module, or a dict or list of loaders"
        )
        raise UnusableDatasetError(message)
    if _wraps_loader(made):
        message = (
            f"{type(made).__name__} wraps a DataLoader, and its workers cannot be in workers. Give"
            " the DataLoader in its pipeline, as in lambda: make().pipeline[0]"
        )
        raise UnusableDatasetError(message)
    return made


def _require_class(made: Any) -> None:
    """Refuse what cannot be asked for its class, which is what torch begins with."""
    name = type(made).__name__
    with errors_of_dataset(f"asking for the class of a {name}, as torch's DataLoader does,"):
        isinstance(made, (DataLoader, IterableDataset))


def _is_usable(made: Any) -> bool:
    has_samples = any(hasattr(type(made), name) for name in ("__getitem__", "__getitems__"))
    return has_samples or isinstance(made, (DataLoader, IterableDataset))


def _wraps_loader(made: Any) -> bool:
    """Whether *made* is webdataset's WebLoader. Many a dataset has something called a pipeline."""
    if not any(kind.__module__.startswith("webdataset") for kind in type(made).__mro__):
        return False
    pipeline = getattr(made, "pipeline", None)
    return type(pipeline) is list and any(isinstance(each, DataLoader) for each in pipeline)


def _origin(make_dataset: Callable[[], Any], made: Any) -> str:
    """What *made* is, and by whom, for a sentence that goes on with a verb."""
    if isinstance(make_dataset, HandedOver):
        return f"make_dataset={shown(made)}"
    found = definition_of(make_dataset)
    place = " at {}:{}".format(*found) if found else ""
    return f"make_dataset{place} gave {shown(made)}, which"


def _advice_on(made: Any) -> str:
    if isinstance(made, types.GeneratorType):
        return _OF_GENERATOR
    return _OF_ITERATOR if isinstance(made, Iterator) else ""


def _loader_for(dataset: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    """A loader over *dataset* with *options*, and with the default options of trials."""
    defaults = {"num_workers": 2} if "batch_sampler" in options else _DEFAULTS
    has_sampler = any(options.get(name) is not None for name in ("sampler", "batch_sampler"))
    if kind_of(dataset) == "map" and not has_sampler and _length(dataset) == 0:
        raise EmptyDatasetError(empty(dataset))
    try:
        return _with_last_batches(DataLoader(dataset, **{**defaults, **options}))
    except (TypeError, ValueError) as error:
        known = inspect.signature(DataLoader).parameters
        questions = [meant(str(name), known) for name in options if name not in known]
        said = ". ".join(filter(None, (continued(text_of(error)), *questions)))
        message = f"DataLoader refuses loader={shown(dict(options))}: {said}"
        raise InvalidArgumentError(message) from error


def _with_last_batches(loader: DataLoader[Any]) -> DataLoader[Any]:
    """*loader*, which leaves out no batch of a stream.

    With ``drop_last`` each worker drops its last samples, which could not be told from lost ones.
    """
    if kind_of(loader.dataset) == "iterable":
        object.__setattr__(loader, "drop_last", False)  # torch forbids it, since workers may run.
    return loader


def end_stream(loader: DataLoader[Any], samples: int | None) -> None:
    """End a stream of *loader* after this many *samples* in each worker; None to leave it."""
    if samples is None or kind_of(loader.dataset) != "iterable":
        return
    end = StreamEnd(samples, loader.worker_init_fn)
    if loader.num_workers:
        loader.worker_init_fn = end
    else:
        end.install()


def _length(dataset: Any) -> int | None:
    """The length, or None if there is none: TypeError is how Python and torch say so."""
    with errors_of_dataset(f"len({type(dataset).__name__})"):
        try:
            return len(dataset)
        except (TypeError, NotImplementedError):
            return None


def _require_samples(loader: DataLoader[Any]) -> None:
    """Refuse what has no sample, as far as that is known before the first one is drawn."""
    sampler: Any = loader._index_sampler
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) in _DEFAULT_SAMPLERS and inner.data_source is loader.dataset:
        name = type(loader.dataset).__name__
        if _length(loader.dataset) is None and not hasattr(type(loader.dataset), "__len__"):
            message = (
                f"{name} has no length, which a map-style dataset needs unless its loader has a"
                " sampler: define __len__, or hand over a DataLoader with a sampler"
            )
            raise UnusableDatasetError(message)
    if _has_known_length(inner) and len(sampler) == 0:
        raise EmptyDatasetError(empty(loader.dataset))


def _has_known_length(sampler: Any) -> bool:
    """Whether ``len`` of *sampler* is safe, and that of an epoch.

    torch asks no other sampler for it, and some have none, or another one.
    """
    return type(sampler) in _SIZED


def empty(dataset: Any) -> str:
    """What to say of a *dataset* without samples."""
    return f"{type(dataset).__name__} is empty: there is no sample that a fault could hit"


def kind_of(dataset: Any) -> str:
    """``"map"`` or ``"iterable"``."""
    return "iterable" if isinstance(dataset, IterableDataset) else "map"


def start_method_of(loader: DataLoader[Any]) -> str:
    """How *loader* starts its workers; "" if it has none."""
    return method_of(loader.multiprocessing_context) if loader.num_workers else ""


def preload_forkserver(loader: DataLoader[Any]) -> None:
    """Have the server that forks the workers import once what each worker would import.

    It matters where the loader's author has asked for such a server, and the trial's own is not
    used.
    """
    if start_method_of(loader) == "forkserver":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", *FOR_FORK_SERVER])


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
    own: Any = loader._index_sampler
    if not _draws_all(loader):
        _replace(loader, _FirstSampler(own, max(-(-most // _batch_size(own)), at_least)))
        return
    inner: Any = own.sampler if _is_batched(loader) else own
    if len(inner) <= most:
        return
    chosen = _SpreadSampler(spread(len(inner), most), inner)
    if not _is_batched(loader):
        _replace(loader, chosen)
        return
    size = min(own.batch_size, max(1, most // at_least))
    _replace(loader, BatchSampler(chosen, size, own.drop_last))


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
    return len(sampler) if _has_known_length(sampler) else None


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
