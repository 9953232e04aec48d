"""Iterators that a loader keeps for all its epochs, and may make in its constructor [in a trial].

Some facts about loaders that save the start of workers. YOLOv5's, ultralytics' and timm's have a
batch sampler that begins again at its end, and keep one iterator of torch's in an attribute. Each
epoch takes ``len(loader)`` batches from it. Some make it in the constructor, which starts the
workers before faults are armed, or in pytest's process. Such workers would read without faults. And
if a trial ends the workers, as before a recovery, the loader has nothing to continue with.

So an iterator that is made while the user's function runs is not made before its first use, and one
that was used already is replaced by one that is not made yet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults._engine.loader.iterator import makers_replaced_by
from pytest_dataloader_faults._engine.system.patience import has_ended

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class LateIterator:
    """What a loader's ``_get_iterator`` gives, which is called at the first use only."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader: DataLoader[Any] | None = loader
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
            _in_use.append(loader)
            try:
                self.made = loader._get_iterator()
            finally:
                _in_use.pop()
        return self.made


_ASKED_AT_THE_END = ("_workers", "_shutdown_workers", "_iterator")
"""What loaders ask of their iterator as they are deleted."""
_in_use: list[DataLoader[Any]] = []
"""Loaders that make an iterator now, which is used."""


@contextlib.contextmanager
def late_iterators() -> Iterator[None]:
    """Have loaders make no iterator in this scope before it is used."""

    def replacement(original: Callable[[DataLoader[Any]], Any]) -> Callable[[Any], Any]:
        def get_iterator(loader: DataLoader[Any]) -> Any:
            is_used = any(each is loader for each in _in_use)
            return original(loader) if is_used else LateIterator(loader)

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
