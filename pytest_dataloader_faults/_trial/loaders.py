"""From what the user's factory returns to a loader that can be tried [runs in the trial].

What a trial's process may have, where that is less than this machine allows [in the trial].
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults._engine.python.pyfakefs.notes import note_on
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError

_IN_EVERY_WORKER = ("torch.utils.data", "pytest_dataloader_faults._engine.worker.arm")
USERS_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What code of the user's may raise; Ctrl-C is sent to pytest, and not to a trial."""
DEFAULTS = {"num_workers": 2, "batch_size": 4}


@contextlib.contextmanager
def errors_of_dataset(what: str, advice: str = "") -> Iterator[None]:
    """Where code of the user's runs with no fault armed: an error is its own."""
    try:
        yield
    except UnusableDatasetError:
        raise
    except USERS_ERRORS as error:
        message = f"{what} failed with no fault armed: {error!r}{advice}{_unseen(error)}"
        raise UnusableDatasetError(message) from error


def _unseen(error: BaseException) -> str:
    note = note_on(error)
    return f". {note}" if note else ""


def make_loader(
    make_dataset: Callable[[], Any], options: Mapping[str, Any] | None, changes: Mapping[str, Any]
) -> DataLoader[Any]:
    """The loader to try. *changes* overrule whatever it has, a ready loader's own too."""
    made = _call_factory(make_dataset)
    if isinstance(made, DataLoader):
        if options:
            message = (
                f"loader={dict(options)!r} was given, or drawn by a search, but make_dataset()"
                " returned a ready DataLoader, whose own options are used. Leave one of the two"
                " out, as by loader={}"
            )
            raise InvalidArgumentError(message)
        for name, value in changes.items():
            object.__setattr__(made, name, value)  # torch forbids it, since workers may be about.
        loader = made
    else:
        loader = loader_for(made, {**(options or {}), **changes})
    if kind_of(loader) == "map":
        _require_samples(loader)
    return loader


def _call_factory(make_dataset: Callable[[], Any]) -> Any:
    try:
        made = make_dataset()
    except USERS_ERRORS as error:
        said = f"{type(error).__name__}: {error}, with no fault armed{_unseen(error)}"
        message = f"make_dataset() raised {said}"
        raise UnusableDatasetError(message) from error
    usable = isinstance(made, (DataLoader, IterableDataset)) or hasattr(made, "__getitem__")
    if isinstance(made, type) or not usable:
        message = (
            f"make_dataset() returned {made!r}, which is no dataset: it has no __getitem__ and is"
            " no IterableDataset. Return a map-style or iterable dataset, or a ready DataLoader"
        )
        raise UnusableDatasetError(message)
    return made


def dataset_of(make_dataset: Callable[[], Any]) -> Any:
    """The dataset, for loaders that are made over it one after the other."""
    made = _call_factory(make_dataset)
    if isinstance(made, DataLoader):
        message = (
            "make_dataset() returned a ready DataLoader, but a life makes its loaders itself."
            " Return the dataset, and give what else its loaders need as loader={'collate_fn': ...}"
        )
        raise InvalidArgumentError(message)
    return made


def loader_for(dataset: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    """A loader over *dataset*; *options* beside those that trials have by default."""
    defaults = dict(DEFAULTS)
    if "batch_sampler" in options:
        del defaults["batch_size"]
    if _length(dataset) == 0:
        raise UnusableDatasetError(_empty(dataset))
    try:
        return DataLoader(dataset, **{**defaults, **options})
    except (TypeError, ValueError) as error:
        message = f"loader={dict(options)!r}: DataLoader refuses it: {error}"
        raise InvalidArgumentError(message) from error


def _length(dataset: Any) -> int | None:
    """The length, or None if there is none: TypeError is how Python and torch say so."""
    with errors_of_dataset(f"len({type(dataset).__name__})"):
        try:
            return len(dataset)
        except (TypeError, NotImplementedError):
            return None


def _require_samples(loader: DataLoader[Any]) -> None:
    name = type(loader.dataset).__name__
    if _length(loader.dataset) is None and not hasattr(loader.dataset, "__len__"):
        message = f"{name} has no length, which a map-style dataset needs: define __len__"
        raise UnusableDatasetError(message)
    with errors_of_dataset(f"len(DataLoader({name}))"):
        try:
            batches = len(loader)
        except (TypeError, NotImplementedError):  # It is the sampler that has no length.
            return
    if not batches:
        raise UnusableDatasetError(_empty(loader.dataset))


def _empty(dataset: Any) -> str:
    return f"{type(dataset).__name__} is empty: there is no sample that a fault could hit"


def kind_of(loader: DataLoader[Any]) -> str:
    """``"map"`` or ``"iterable"``."""
    return kind_of_dataset(loader.dataset)


def kind_of_dataset(dataset: Any) -> str:
    """``"map"`` or ``"iterable"``."""
    return "iterable" if isinstance(dataset, IterableDataset) else "map"


def sampled(loader: DataLoader[Any]) -> list[list[Any]]:
    """The lists of indices that one epoch asks for; of length 1 without automatic batching."""
    batched = loader._auto_collation
    with errors_of_dataset("the sampler"):
        return [list(index) if batched else [index] for index in loader._index_sampler]


def preload_forkserver(loader: DataLoader[Any]) -> None:
    """Have the server that forks the workers import once what each of them would."""
    context = loader.multiprocessing_context
    if getattr(context, "get_start_method", lambda: None)() == "forkserver":
        context.set_forkserver_preload(["__main__", *_IN_EVERY_WORKER])


def seed_everything(seed: int) -> None:
    """Make samplers and workers draw the same numbers each time."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def limit_descriptors(count: int | None) -> None:
    """Allow *count* descriptors besides those that are open, here and in all that is started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is not None:
        room = max(map(int, os.listdir("/proc/self/fd"))) + 1 + count
        limit = room if soft == resource.RLIM_INFINITY else min(soft, room)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
