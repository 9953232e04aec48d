"""Make a trial's DataLoader from the user's factory, and prepare its process [in the trial]."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults._engine.fetch_hooks import (
    end_streams,
    seed_everything,
    start_with_end,
)
from pytest_dataloader_faults._engine.iterator import replace_iterator_makers
from pytest_dataloader_faults._engine.system.imports import FOR_FORK_SERVER
from pytest_dataloader_faults._engine.system.processes import end_if_interrupted, has_ended
from pytest_dataloader_faults._trial import ranks, samplers
from pytest_dataloader_faults._trial.factory import (
    advice_for,
    call_factory,
    describe_result,
    is_ready,
    require_one,
)
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.process.fork_server import method_of
from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    HarnessError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes.chains import is_of_this_package
from pytest_dataloader_faults.outcomes.libraries import INNER_LOADERS
from pytest_dataloader_faults.outcomes.text import LIBRARY, OURS, format_value, indent_rest, text_of

CALLS_USER_CODE = True

USERS_ERRORS = (BaseException,)
"""What the user's code may raise, as pytest.skip() does. Ctrl-C goes to pytest, not to a trial."""
_DEFAULTS = {"num_workers": 2, "batch_size": 4}
_STOP_ITERATION_ADVICE = (
    ". A loop over a loader mistakes this for the end of the epoch, and misses the remaining"
    " samples: raise an exception of another class"
)


class EmptyDatasetError(UnusableDatasetError):
    """The *dataset* is empty."""

    def __init__(self, dataset: Any) -> None:
        name = type(dataset).__name__
        super().__init__(f"{name} is empty, so there is no sample to inject a fault into")


class CollateError(UnusableDatasetError):
    """The loader's ``collate_fn`` raised an error."""


def reraise_own_error(error: BaseException, printed: str | None = None) -> None:
    """Raise *error* again if this package's own code caused it, not the user's code.

    *printed*: the error with its traceback, if that is known.

    Raises:
        HarnessError: Our own code failed, perhaps in a worker.
        DataLoaderFaultsError: This machine or this test lacks something that the harness needs.
    """
    end_if_interrupted(error)
    if isinstance(error, HarnessError):
        raise error
    text = printed or "".join(traceback.format_exception(error))
    if not is_of_this_package(text):
        return
    if isinstance(error, DataLoaderFaultsError):
        raise error
    message = f"this package's own code failed, which proves nothing about the dataset:\n{text}"
    raise HarnessError(message) from error


@contextlib.contextmanager
def report_dataset_errors(
    action: str | Callable[[], str],
    advice: str = "",
    kind: type[UnusableDatasetError] = UnusableDatasetError,
) -> Iterator[None]:
    """Report errors of the user's code, which runs here without faults, as the dataset's.

    *action*: what fails, or a function that says it then.
    """
    try:
        yield
    except (UnusableDatasetError, InvalidArgumentError):
        raise
    except USERS_ERRORS as error:
        reraise_own_error(error)
        text = f"{type(error).__name__}: {indent_rest(text_of(error))}{_place_of(error)}"
        if isinstance(error, StopIteration):
            advice = _STOP_ITERATION_ADVICE
        action = action if isinstance(action, str) else action()
        message = f"{action} raised {text}. No fault was armed yet, so fix this first{advice}"
        raise kind(message) from error


def _place_of(error: BaseException) -> str:
    """The line that raised *error*, and the user's own line that led there if it is another.

    Empty if this package raised it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1]
    if frame.filename.startswith(OURS):
        return ""
    user_frames = [each for each in frames if not LIBRARY.match(each.filename)]
    called = user_frames[-1] if user_frames else frame
    by = "" if called is frame else f", called at {called.filename}:{called.lineno}"
    return f" at {frame.filename}:{frame.lineno}{by}"


def make_loader(job: Job) -> DataLoader[Any]:
    """The loader of *job*, whose changes also overrule the options of a ready ``DataLoader``.

    One without workers gets two if the job needs some: data modules have such loaders by default.
    """
    result, rank = _call_factory(job.make_dataset), job.rank_of_several
    if isinstance(result, DataLoader):
        if options := job.settings.loader:
            message = (
                f"loader={format_value(dict(options))} was passed, or drawn by a search, but"
                " make_dataset() returned a ready DataLoader, which has its own options. Return the"
                " dataset, or pass loader={}"
            )
            raise InvalidArgumentError(message)
        loader = result
        lacks_workers = job.needs_workers and not loader.num_workers
        workers = {"num_workers": _DEFAULTS["num_workers"], "prefetch_factor": 2}
        for name, value in {**(workers if lacks_workers else {}), **job.changes}.items():
            object.__setattr__(loader, name, value)  # torch forbids it, since workers may run.
        _detach_parent_workers(loader)
        is_dispatcher = type(samplers.outer_loader(loader)).__name__ == "DataLoaderDispatcher"
        if rank is not None and is_dispatcher and kind_of(dataset_of(loader)) == "map":
            raise UnusableDatasetError(ranks.DISPATCHED)
    else:
        all_options = job.loader
        lacks_workers = all_options.get("num_workers") == 0 and "num_workers" not in job.changes
        if job.needs_workers and lacks_workers:
            del all_options["num_workers"]
        if rank is not None and kind_of(result) == "map":
            all_options = ranks.divide(rank, result, all_options)
        loader = _loader_for(result, all_options)
    if kind_of(dataset_of(loader)) == "map":
        _require_samples(loader)
    elif rank is None:
        # Each worker would drop its last samples, which would look like lost ones. But it may keep
        # ranks in step.
        object.__setattr__(loader, "drop_last", False)
    return loader


_running: list[Any] = []
"""Iterators of pytest's process. To finalize one here would end its workers."""


def _detach_parent_workers(loader: DataLoader[Any]) -> None:
    """Start new workers here, also for a loader that has some already, in whatever process."""
    _running.append(loader._iterator)
    loader._iterator = None
    for owner, name, iterator in kept_iterators(loader):
        object.__setattr__(owner, name, LateIterator(loader))
        if all(each._parent_pid == os.getpid() for each in getattr(iterator, "_workers", ())):
            end_workers(iterator)
        else:
            _running.append(iterator)
    # torchdata's loader has already requested a state from workers, and would resume with these.
    if getattr(loader, "_initial_iter_for_state_dict", False):
        loader._initial_iter_for_state_dict = False


def dataset_of(loader: DataLoader[Any]) -> Any:
    """The dataset that torch's iterator gets. RecBole's loaders show another one elsewhere."""
    return vars(loader).get("dataset", loader.dataset)


def is_plain(loader: DataLoader[Any]) -> bool:
    """Whether a training loop iterates *loader* itself, by the ``__iter__`` of torch."""
    return samplers.outer_loader(loader) is loader and type(loader).__iter__ is DataLoader.__iter__


def _unwrap(loader: Any) -> Any:
    """The DataLoader in *loader*, on which options can be set, if that is such a wrapper."""
    package = type(loader).__module__.partition(".")[0]
    inner = vars(loader).get(INNER_LOADERS[package]) if package in INNER_LOADERS else None
    if not isinstance(inner, DataLoader):
        return loader
    samplers.OUTER_LOADERS[inner] = loader
    return inner


def _call_factory(make_dataset: Any) -> Any:
    with late_iterators(), report_dataset_errors("make_dataset()"):
        result = _unwrap(require_one(call_factory(make_dataset)))
    if isinstance(result, type) or not _is_usable(result):
        message = (
            f"{describe_result(make_dataset, result)} is not a dataset that workers can read."
            f" {advice_for(result)}Return a map-style or iterable dataset, a ready DataLoader, or a"
            " data module"
        )
        raise UnusableDatasetError(message)
    return result


def make_in_workers(loader: DataLoader[Any], job: Job) -> bool:
    """Have workers that are not forked call make_dataset themselves, with another hash seed.

    False if it cannot be sent to them. One that fails there depends on what a test has prepared:
    the worker then gets the dataset.
    """
    dataset = dataset_of(loader)
    if is_ready(job.make_dataset) or fake_files():
        return False
    try:
        packed = pickle.dumps(job.make_dataset)
    except USERS_ERRORS:
        return False

    class Sent:
        __class__ = type(dataset)  # pickle compares it with what is reduced.

        def __reduce__(self) -> Any:
            return dataset.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def reduce(value: Any) -> Any:
        if value is not dataset:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return _make_again, (packed, job.settings.seed, Sent())

    ForkingPickler.register(type(dataset), reduce)
    return True


def _make_again(packed: bytes, seed: int, dataset: Any) -> Any:
    """What the *packed* make_dataset returns in this worker, or *dataset* if it fails."""
    seed_everything(seed)
    with contextlib.suppress(*USERS_ERRORS):
        made = _call_factory(pickle.loads(packed))  # noqa: S301  # the user's own
        return dataset_of(made) if isinstance(made, DataLoader) else made
    return dataset


def _is_usable(result: Any) -> bool:
    """Whether *result* is a loader, or a dataset. webdataset's WebLoader wraps a loader."""
    if any(each.__name__ == "WebLoader" for each in type(result).__mro__):
        return False
    has_samples = any(hasattr(type(result), name) for name in ("__getitem__", "__getitems__"))
    return has_samples or isinstance(result, (DataLoader, IterableDataset))


def _loader_for(dataset: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    """A loader over *dataset* with *options*, and with the default options of trials."""
    defaults = {"num_workers": 2} if "batch_sampler" in options else _DEFAULTS
    has_sampler = any(options.get(name) is not None for name in ("sampler", "batch_sampler"))
    if kind_of(dataset) == "map" and not has_sampler and length_of(dataset) == 0:
        raise EmptyDatasetError(dataset)
    try:
        return DataLoader(dataset, **{**defaults, **options})
    except (TypeError, ValueError) as error:
        parameters = inspect.signature(DataLoader).parameters
        questions = [
            suggest_name(str(name), parameters) for name in options if name not in parameters
        ]
        reason = ". ".join(filter(None, (indent_rest(text_of(error)), *questions)))
        message = f"DataLoader rejects loader={format_value(dict(options))}: {reason}"
        raise InvalidArgumentError(message) from error


def end_stream(loader: DataLoader[Any], samples: int | None) -> None:
    """End a stream of *loader* after this many *samples* in each worker; None to leave it."""
    if samples is None or kind_of(dataset_of(loader)) != "iterable":
        return
    if loader.num_workers:
        loader.worker_init_fn = partial(start_with_end, samples, loader.worker_init_fn)
    else:
        end_streams(samples)


def length_of(dataset: Any) -> int | None:
    """The length, or None if there is none: TypeError is how Python and torch say so."""
    with report_dataset_errors(f"len({type(dataset).__name__})"):
        try:
            return len(dataset)
        except (TypeError, NotImplementedError):
            return None


def count_readable(loader: DataLoader[Any]) -> int | None:
    """How many samples *loader* may draw; the length of the dataset if no known sampler draws."""
    count = samplers.count_samples(loader)
    with contextlib.suppress(*USERS_ERRORS):  # Such a dataset does not need a length.
        return len(dataset_of(loader)) if count is None else count
    return None


def _require_samples(loader: DataLoader[Any]) -> None:
    """Refuse an empty dataset, as far as that is known before the first sample is drawn."""
    sampler: Any = loader._index_sampler
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    dataset = dataset_of(loader)
    name = type(dataset).__name__
    is_plain_sampler = type(inner) in samplers.DEFAULT_SAMPLERS and inner.data_source is dataset
    if is_plain_sampler and length_of(dataset) is None and not hasattr(type(dataset), "__len__"):
        message = (
            f"{name} has no length, which a map-style dataset needs unless its loader has a"
            " sampler: define __len__, or pass a DataLoader with a sampler"
        )
        raise UnusableDatasetError(message)
    if samplers.has_known_length(inner):
        with report_dataset_errors(f"len({name})"):
            is_empty = len(sampler) == 0
        if is_empty:
            raise EmptyDatasetError(dataset)


def kind_of(dataset: Any) -> str:
    """``"map"`` or ``"iterable"``."""
    return "iterable" if isinstance(dataset, IterableDataset) else "map"


def start_method_of(loader: DataLoader[Any]) -> str:
    """How *loader* starts its workers; "" if it has none."""
    return method_of(loader.multiprocessing_context) if loader.num_workers else ""


def preload_forkserver(loader: DataLoader[Any]) -> None:
    """Have the server that forks the workers import once what each worker would import.

    It matters if the loader's author has chosen such a server, and the trial's own is not used.
    """
    if start_method_of(loader) == "forkserver":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", *FOR_FORK_SERVER])


# Some facts about loaders that save the start of workers. YOLOv5's, ultralytics' and timm's have a
# batch sampler that restarts at its end, and keep one iterator of torch's in an attribute. Each
# epoch takes ``len(loader)`` batches from it. Some make it in the constructor, which starts the
# workers before faults are armed, or in pytest's process: they would read without faults. And if a
# trial ends the workers, as before a recovery, the loader has nothing to continue with. So an
# iterator that is made while the user's function runs is not made before its first use, and one
# that was used already is replaced by one that is not made yet: in place, if the trial made it, as
# a loader may have it in a closure or a generator, too.


class LateIterator:
    """What a loader's ``_get_iterator`` returns, which is called at the first use only.

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
        if self.made is None and name in _WITHOUT_WORKERS:
            return _WITHOUT_WORKERS[name]
        if self.made is None and name == "_iterator":  # Asked for when a loader is deleted.
            raise AttributeError(name)
        return getattr(self._make(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled, with the message of torch's iterator."""
        if self._loader is None:
            return self.made.__reduce_ex__(protocol)
        kind = "MultiProcessing" if self._loader.num_workers else "SingleProcess"
        raise NotImplementedError("{} cannot be pickled", f"_{kind}DataLoaderIter")

    def _make(self) -> Any:
        if self._loader is not None:
            loader, self._loader = self._loader, None
            self._in_use.append(loader)
            try:
                self.made = loader._get_iterator()
            finally:
                self._in_use.pop()
        return self.made


_WITHOUT_WORKERS: dict[str, Any] = {
    "_workers": (),
    "_workers_status": (),
    "_shutdown": True,
    "_shutdown_workers": lambda: None,
    "_sent": {},
    "_number": 0,
    "_epoch": 0,
}
"""What this package and loaders need from an iterator between two epochs."""


@contextlib.contextmanager
def late_iterators() -> Iterator[None]:
    """Delay the iterators that loaders create in this scope until they are used."""
    in_use: list[Any] = []

    def replacement(original: Callable[[DataLoader[Any]], Any]) -> Callable[[Any], Any]:
        def get_iterator(loader: DataLoader[Any]) -> Any:
            is_used = any(each is loader for each in in_use)
            return original(loader) if is_used else LateIterator(loader, in_use)

        return get_iterator

    with replace_iterator_makers(replacement):
        yield


def renew(iterator: Any, loader: DataLoader[Any]) -> None:
    """Make *iterator*, whose workers have ended, one of *loader* that is not made yet, in place."""
    vars(iterator).clear()
    iterator.__class__ = LateIterator
    iterator.__init__(loader)


def kept_iterators(loader: DataLoader[Any]) -> list[tuple[Any, str, Any]]:
    """The iterators of *loader* that were made, each with its owner and the owner's attribute.

    Without the one that torch itself keeps.
    """
    outer, kept = samplers.outer_loader(loader), []
    for owner in [loader] if outer is loader else [loader, outer]:
        for name, value in getattr(owner, "__dict__", {}).items():
            iterator = value.made if isinstance(value, LateIterator) else value
            if isinstance(iterator, _BaseDataLoaderIter) and name != "_iterator":
                kept.append((owner, name, iterator))
    return kept


def end_workers(iterator: Any) -> None:
    """End the workers of *iterator* now; the garbage collector may take 5 s for each."""
    if hasattr(iterator, "_workers"):  # Otherwise it has none, or its constructor failed early.
        for worker in iterator._workers:
            worker.join = partial(join, worker)
        if not hasattr(iterator, "_workers_status"):  # Its constructor failed before it set them.
            iterator._workers_status = [True] * len(iterator._workers)
        iterator._shutdown_workers()


def join(worker: Any, timeout: float) -> None:
    """``Process.join``, which takes *timeout* seconds at most while *worker* lives."""
    with contextlib.suppress(OSError):  # No descriptor is free.
        if not has_ended(worker.pid, timeout):
            return
    type(worker).join(worker, timeout)
