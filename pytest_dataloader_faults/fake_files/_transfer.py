"""The fake files, sent to workers that begin as a new interpreter.

A worker that is forked has them. One that is spawned gets a copy, made when the loader starts it,
before the dataset is unpickled: torch puts the kind of the dataset first among the arguments of a
worker, and as a pickle is read from its beginning, unpickling that kind is when the files arrive.

Loaders that bring the fake files to their workers [runs where the loader does].
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._engine.python.pyfakefs import fake_files
from pytest_dataloader_faults._engine.python.pyfakefs.in_worker import PatchWorker, patch_for_good
from pytest_dataloader_faults.fake_files._real_modules import spare, spared

_STAYS = frozenset({"_patcher", "patcher", "open_files", "_free_fd_heap", "dev_null"})
"""Of a file system: what belongs to its process; ``patcher`` in pyfakefs before 6.1."""
_OURS = tuple(
    f"pytest_dataloader_faults._engine.{name}"
    for name in (
        *("worker.arm", "worker.fetch_hooks", "worker.kernel_session", "worker.python_session"),
    )
)
_NESTED = ("dataset", "datasets")
"""Where torch's own datasets keep those that they are made of."""
_kept: list[Any] = []


class FakeFilesCarrier(int):
    """The kind of a dataset, by torch's number, that brings the fake files with it."""

    _loader: Any

    @classmethod
    def of(cls, loader: Any) -> FakeFilesCarrier:
        """That of *loader*'s."""
        kind = cls(loader._dataset_kind)
        kind._loader = loader
        return kind

    def forget(self) -> None:
        """The workers have started. The loader's iterator keeps this, and must not keep it."""
        vars(self).clear()

    @functools.cached_property
    def _parcel(self) -> tuple[Any, ...]:
        return _modules_of(self._loader), _packed(fake_files()), _ids()

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """A plain number in the worker."""
        return arrive, (int(self), *self._parcel)


def arrive(kind: int, modules: tuple[str, ...], files: bytes, ids: tuple[int, int]) -> int:
    """Give this process the fake *files*, and *kind* back [runs in the DataLoader worker].

    *modules* first: what is imported under pyfakefs would look for its own data among fake files.
    """
    for name in modules:
        importlib.import_module(name)
    for_good = contextlib.ExitStack()
    spare(for_good)
    from pyfakefs.fake_filesystem import set_gid, set_uid
    from pyfakefs.fake_filesystem_unittest import Patcher

    patcher: Any = Patcher()
    patcher.setUp()
    _kept.extend([patcher, for_good])
    vars(patcher.fs).update(_Unpacker(files, patcher.fs).load())
    set_uid(ids[0])
    set_gid(ids[1])
    patch_for_good(patcher)
    return kind


def _ids() -> tuple[int, int]:
    from pyfakefs.helpers import get_gid, get_uid

    return get_uid(), get_gid()


class _Packer(pickle.Pickler):
    """Files know their file system, which in the worker is the worker's."""

    def __init__(self, to: io.BytesIO, files: Any) -> None:
        super().__init__(to, pickle.HIGHEST_PROTOCOL)
        self._files = files

    def persistent_id(self, thing: Any) -> str | None:
        return "files" if thing is self._files else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, files: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._files = files

    def persistent_load(self, _name: Any) -> Any:
        return self._files


def _packed(files: Any) -> bytes:
    to = io.BytesIO()
    state = {name: value for name, value in vars(files).items() if name not in _STAYS}
    _Packer(to, files).dump(state)
    return to.getvalue()


def _modules_of(loader: Any) -> tuple[str, ...]:
    """Where the classes and functions are from that a worker of *loader* unpickles."""
    given = [loader.collate_fn, *_datasets(loader.dataset)]
    init = loader.worker_init_fn
    while init is not None:  # Ours run the user's own.
        given.append(init)
        init = getattr(init, "_then", None)
    names = [each.__module__ for each in given if hasattr(each, "__module__")]
    return tuple(dict.fromkeys([*_OURS, *(name for name in names if name != "__main__")]))


def _datasets(dataset: Any) -> list[Any]:
    """*dataset*, and those that it is made of."""
    found = [dataset]
    for name in _NESTED:
        inner = getattr(dataset, "__dict__", {}).get(name)
        for each in inner if isinstance(inner, (list, tuple)) else [inner]:
            found += [] if each is None else _datasets(each)
    return found


@contextlib.contextmanager
def with_workers() -> Iterator[None]:
    """While it lasts, pyfakefs and loaders with workers get along. Enter it before pyfakefs starts.

    Only loaders of a torch that is imported already are helped.
    """
    with spared(), contextlib.ExitStack() as patches:
        if "torch" in sys.modules:
            from torch.utils.data import DataLoader

            from pytest_dataloader_faults._engine.loader.iterator import with_iterators_of_their_own

            for kind in with_iterators_of_their_own(DataLoader):
                original = kind._get_iterator
                patches.callback(setattr, kind, "_get_iterator", original)
                kind._get_iterator = _bringing(original)
        yield


def _bringing(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_iterator(loader: Any) -> Any:
        if not loader.num_workers or fake_files() is None:
            return original(loader)
        with _laden(loader):
            return original(loader)

    return get_iterator


@contextlib.contextmanager
def _laden(loader: Any) -> Iterator[None]:

    kind, then = loader._dataset_kind, loader.worker_init_fn
    loader._dataset_kind = bringing = FakeFilesCarrier.of(loader)
    loader.worker_init_fn = PatchWorker(then)
    try:
        yield
    finally:
        loader._dataset_kind, loader.worker_init_fn = kind, then
        bringing.forget()
