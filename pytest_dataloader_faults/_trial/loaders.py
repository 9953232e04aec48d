"""Make a trial's DataLoader from the user's factory, and prepare its process [in the trial]."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import re
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults._arguments import meant
from pytest_dataloader_faults._engine.fake.notes import note_for
from pytest_dataloader_faults._engine.loader.iterator import makers_replaced_by
from pytest_dataloader_faults._engine.system.patience import has_ended
from pytest_dataloader_faults._engine.system.processes import end_if_interrupted
from pytest_dataloader_faults._engine.worker.fetch_hooks import StreamEnd
from pytest_dataloader_faults._engine.worker.late_imports import FOR_FORK_SERVER
from pytest_dataloader_faults._settings.jobs import Rank
from pytest_dataloader_faults._trial import samplers
from pytest_dataloader_faults._trial.factory import HandedOver, definition_of, require_one
from pytest_dataloader_faults._trial.process.fork_server import method_of
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    InjectionError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes.chains import is_of_this_package
from pytest_dataloader_faults.outcomes.text import continued, shown, text_of

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARY = re.compile(
    rf"<|.*/(site|dist)-packages/|{re.escape(_PACKAGE)}/|{re.escape(os.path.dirname(os.__file__))}/"
)
"""Code that is not the user's own."""
USERS_ERRORS = (BaseException,)
"""What the user's code may raise, as pytest.skip() does. Ctrl-C goes to pytest, not to a trial."""
_DEFAULTS = {"num_workers": 2, "batch_size": 4}


_STOPS = (
    ". A loop over a loader takes it for the end of the epoch, and misses the rest of the samples:"
    " raise another error"
)


class EmptyDatasetError(UnusableDatasetError):
    """The dataset has no sample."""


class CollateError(UnusableDatasetError):
    """The loader's ``collate_fn`` raised an error."""


def require_users(error: BaseException) -> None:
    """Raise *error* again if this package is to blame for it, and not the user's code.

    Raises:
        InjectionError: Our own code failed, perhaps in a worker.
        DataLoaderFaultsError: Our own code says what this machine or this test lacks.
    """
    end_if_interrupted(error)
    if isinstance(error, InjectionError):
        raise error
    text = "".join(traceback.format_exception(error))
    if not is_of_this_package(text):
        return
    if isinstance(error, DataLoaderFaultsError):
        raise error
    message = f"this package's own code failed, which shows nothing about the dataset:\n{text}"
    raise InjectionError(message) from error


@contextlib.contextmanager
def errors_of_dataset(
    what: str, advice: str = "", kind: type[UnusableDatasetError] = UnusableDatasetError
) -> Iterator[None]:
    """Report errors of the user's code, which runs here with no fault armed, as the dataset's."""
    try:
        yield
    except UnusableDatasetError:
        raise
    except USERS_ERRORS as error:
        require_users(error)
        text = f"{continued(shown(error))}{_place_of(error)}"
        if isinstance(error, StopIteration):
            advice = _STOPS
        message = f"{what} failed with no fault armed: {text}{advice}{_pyfakefs_note(error)}"
        raise kind(message) from error


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
    rank: Rank | None = None,
) -> DataLoader[Any]:
    """The loader to try; *changes* overrule its options, also those of a ready ``DataLoader``.

    One without workers gets two if it *needs_workers*: data modules have such loaders by default.
    A map-style dataset of one *rank* of several gets torch's ``DistributedSampler``.
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
        loader = made if rank else _with_last_batches(made)
        _leave_running_workers(loader)
        if rank is not None:
            _require_own_batches(loader)
    else:
        given = {**(options or {}), **changes}
        if kind_of(made) == "map":
            given = samplers.options_for(made, given, rank)
        loader = _loader_for(made, given, is_of_ranks=rank is not None)
    if kind_of(loader.dataset) == "map":
        _require_samples(loader)
    return loader


_running: list[Any] = []
"""Iterators of pytest's process. To finalize one here would end its workers."""


def _leave_running_workers(loader: DataLoader[Any]) -> None:
    """Start new workers here, also for a loader that has some already, in whatever process."""
    _running.append(loader._iterator)
    loader._iterator = None
    for iterator in renew(loader, *owners_of(loader)):
        if is_of_this_process(iterator):
            end_workers(iterator)
        else:
            _running.append(iterator)
    # torchdata's loader has asked workers for a state already, and would go on with these.
    if getattr(loader, "_initial_iter_for_state_dict", False):
        loader._initial_iter_for_state_dict = False


_OF_ITERATOR = (
    "An iterator is used up after one epoch: give the loader or the dataset itself, and leave out"
    " iter(). "
)
_OF_GENERATOR = (
    "A function with yield gives a generator: write return in place of yield, or yield the samples"
    " in __iter__ of an IterableDataset. "
)


_INNER = {"accelerate": "base_dataloader", "lightning": "_dataloader"}
"""Where a loader that a package made has the DataLoader that it wraps, by package."""
_outer: weakref.WeakKeyDictionary[DataLoader[Any], Any] = weakref.WeakKeyDictionary()


def outer_of(loader: DataLoader[Any]) -> Any:
    """What a training loop iterates: *loader*, or what accelerate or Fabric wrapped around it."""
    return _outer.get(loader, loader)


def owners_of(loader: DataLoader[Any]) -> list[Any]:
    """The objects that may keep an iterator of *loader*."""
    return [loader] if outer_of(loader) is loader else [loader, outer_of(loader)]


def _unwrapped(made: Any) -> Any:
    """The DataLoader in *made*, on which options can be set, if that is such a wrapper."""
    package = type(made).__module__.partition(".")[0].removesuffix("_fabric")
    inner = vars(made).get(_INNER[package]) if package in _INNER else None
    if not isinstance(inner, DataLoader):
        return made
    _outer[inner] = made
    return inner


_DISPATCHED = (
    "accelerate's dispatch_batches=True has rank 0 draw the batches of all ranks, so which samples"
    " of a map-style dataset a rank gets is not known. Prepare the loader with"
    " dispatch_batches=False"
)


def _require_own_batches(loader: DataLoader[Any]) -> None:
    """Refuse a map-style dataset of which one rank draws what others get."""
    is_dispatched = type(outer_of(loader)).__name__ == "DataLoaderDispatcher"
    if is_dispatched and kind_of(loader.dataset) == "map":
        raise UnusableDatasetError(_DISPATCHED)


def _call_factory(make_dataset: Callable[[], Any]) -> Any:
    try:
        with late_iterators():
            made = _unwrapped(make_dataset())
    except (UnusableDatasetError, InvalidArgumentError):
        raise
    except USERS_ERRORS as error:
        require_users(error)
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


def _loader_for(dataset: Any, options: Mapping[str, Any], *, is_of_ranks: bool) -> DataLoader[Any]:
    """A loader over *dataset* with *options*, and with the default options of trials.

    *is_of_ranks*: whether ``drop_last`` holds for streams, too: ranks may be in step by that.
    """
    defaults = {"num_workers": 2} if "batch_sampler" in options else _DEFAULTS
    has_sampler = any(options.get(name) is not None for name in ("sampler", "batch_sampler"))
    if kind_of(dataset) == "map" and not has_sampler and length_of(dataset) == 0:
        raise EmptyDatasetError(empty(dataset))
    try:
        loader: DataLoader[Any] = DataLoader(dataset, **{**defaults, **options})
        return loader if is_of_ranks else _with_last_batches(loader)
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


def length_of(dataset: Any) -> int | None:
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
    if type(inner) in samplers.DEFAULT_SAMPLERS and inner.data_source is loader.dataset:
        name = type(loader.dataset).__name__
        if length_of(loader.dataset) is None and not hasattr(type(loader.dataset), "__len__"):
            message = (
                f"{name} has no length, which a map-style dataset needs unless its loader has a"
                " sampler: define __len__, or hand over a DataLoader with a sampler"
            )
            raise UnusableDatasetError(message)
    if samplers.has_known_length(inner) and len(sampler) == 0:
        raise EmptyDatasetError(empty(loader.dataset))


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


# Some facts about loaders that save the start of workers. YOLOv5's, ultralytics' and timm's have a
# batch sampler that begins again at its end, and keep one iterator of torch's in an attribute. Each
# epoch takes ``len(loader)`` batches from it. Some make it in the constructor, which starts the
# workers before faults are armed, or in pytest's process: they would read without faults. And if a
# trial ends the workers, as before a recovery, the loader has nothing to continue with. So an
# iterator that is made while the user's function runs is not made before its first use, and one
# that was used already is replaced by one that is not made yet.


class LateIterator:
    """What a loader's ``_get_iterator`` gives, which is called at the first use only.

    *in_use*: the loaders whose iterator is being made at its first use.
    """

    def __init__(self, loader: DataLoader[Any], in_use: list[Any] | None = None) -> None:
        self._loader: DataLoader[Any] | None = loader
        self._in_use = [] if in_use is None else in_use
        self.made: Any = None

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._make())

    def __len__(self) -> int:
        return len(self._make())

    def __getattr__(self, name: str) -> Any:
        if self.made is None and name in _ASKED_AT_THE_END:
            raise AttributeError(name)
        return getattr(self._make(), name)

    def _make(self) -> Any:
        if self._loader is not None:
            loader, self._loader = self._loader, None
            self._in_use.append(loader)
            try:
                self.made = loader._get_iterator()
            finally:
                self._in_use.pop()
        return self.made


_ASKED_AT_THE_END = ("_workers", "_shutdown_workers", "_iterator")
"""What loaders ask of their iterator as they are deleted."""


@contextlib.contextmanager
def late_iterators() -> Iterator[None]:
    """Have loaders make no iterator in this scope before it is used."""
    in_use: list[Any] = []

    def replacement(original: Callable[[DataLoader[Any]], Any]) -> Callable[[Any], Any]:
        def get_iterator(loader: DataLoader[Any]) -> Any:
            is_used = any(each is loader for each in in_use)
            return original(loader) if is_used else LateIterator(loader, in_use)

        return get_iterator

    with makers_replaced_by(replacement):
        yield


def renew(loader: DataLoader[Any], *owners: Any) -> list[Any]:
    """Replace the iterators of *loader* that *owners* have in attributes; returns those.

    The iterator that torch itself keeps, for persistent workers, is left to the caller.
    """
    found = []
    for owner in owners:
        for name, made in _kept(owner):
            object.__setattr__(owner, name, LateIterator(loader))
            found.append(made)
    return found


def kept_by(*owners: Any) -> list[Any]:
    """The iterators in attributes of *owners* that were made, but for the one of torch itself."""
    return [made for each in owners for _, made in _kept(each)]


def _kept(owner: Any) -> list[tuple[str, Any]]:
    """The iterators of *owner* that were made, each with its attribute."""
    found = []
    for name, value in getattr(owner, "__dict__", {}).items():
        made = value.made if isinstance(value, LateIterator) else value
        if name != "_iterator" and isinstance(made, _BaseDataLoaderIter):
            found.append((name, made))
    return found


def is_of_this_process(iterator: Any) -> bool:
    """Whether this process has started the workers of *iterator*."""
    workers = getattr(iterator, "_workers", ())
    return all(each._parent_pid == os.getpid() for each in workers)


def end_workers(iterator: Any) -> None:
    """End the workers of *iterator* now; the garbage collector may take 5 s for each."""
    if hasattr(iterator, "_shutdown_workers"):
        for worker in getattr(iterator, "_workers", ()):
            worker.join = partial(join, worker)
        iterator._shutdown_workers()


def join(worker: Any, timeout: float) -> None:
    """``Process.join``, which takes *timeout* seconds at most while *worker* lives."""
    with contextlib.suppress(OSError):  # No descriptor is free.
        if not has_ended(worker.pid, timeout):
            return
    type(worker).join(worker, timeout)
