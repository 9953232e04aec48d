"""Send the fake files to workers that start as a new interpreter [runs where the loader does].

A forked worker has the files of its parent. A spawned one gets a copy, which the loader makes when
it starts the worker. The copy has to be there before the worker unpickles the dataset. torch puts
the kind of the dataset first among the arguments of a worker, and a pickle is read from its
beginning: so the kind carries the files, and unpickling the kind unpacks them.
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
from pytest_dataloader_faults._engine.worker.late_imports import import_late_modules
from pytest_dataloader_faults.fake_files._real_modules import exclude_machinery, real_modules

_STAYS = frozenset(
    {"_patcher", "patcher", "open_files", "_free_fd_heap", "dev_null", "_in_process_runs"}
)
"""Attributes of a file system that belong to its process; ``patcher`` in pyfakefs before 6.1."""
_PACKAGE = "pytest_dataloader_faults."
_OURS = tuple(
    f"pytest_dataloader_faults._engine.worker.{name}"
    for name in ("arm", "fetch_hooks", "kernel_session", "python_session")
)


_kept: list[Any] = []
"""What a spawned worker has to keep for as long as it lives."""


class FakeFilesCarrier(int):
    """torch's number for the kind of a dataset, which carries the fake files when it is pickled."""

    loader: Any

    @functools.cached_property
    def _contents(self) -> tuple[Any, ...]:
        from pyfakefs.helpers import get_gid, get_uid

        return _modules_of(self.loader), _packed(fake_files()), (get_uid(), get_gid())

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """A plain number in the worker."""
        return unpack_in_worker, (int(self), *self._contents)


def unpack_in_worker(
    kind: int, modules: tuple[str, ...], files: bytes, ids: tuple[int, int]
) -> int:
    """Give this process the fake *files*, and *kind* back [runs in the DataLoader worker].

    It imports *modules* first: under pyfakefs they would look for their own data among fake files.
    """
    for name in modules:
        importlib.import_module(name)
    import_late_modules()
    for_good = contextlib.ExitStack()
    exclude_machinery(for_good)
    from pyfakefs.fake_filesystem import set_gid, set_uid
    from pyfakefs.fake_filesystem_unittest import Patcher

    patcher: Any = Patcher()
    patcher.setUp()
    _kept.extend((patcher, for_good))
    vars(patcher.fs).update(_unpacked(files, patcher.fs))
    set_uid(ids[0])
    set_gid(ids[1])
    patch_for_good(patcher)
    return kind


def _packed(files: Any) -> bytes:
    """The attributes of the file system *files*, to which every file in them refers."""

    class Packer(pickle.Pickler):
        def persistent_id(self, thing: Any) -> str | None:
            return "files" if thing is files else None

    to = io.BytesIO()
    state = {name: value for name, value in vars(files).items() if name not in _STAYS}
    Packer(to, pickle.HIGHEST_PROTOCOL).dump(state)
    return to.getvalue()


def _unpacked(data: bytes, files: Any) -> Any:
    """Those attributes, with *files* in the place of the file system."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, _name: Any) -> Any:
            return files

    return Unpacker(io.BytesIO(data)).load()


def _modules_of(loader: Any) -> tuple[str, ...]:
    """The modules of the classes and functions that a worker of *loader* unpickles."""
    given = [loader.collate_fn, *_datasets(loader.dataset)]
    init = loader.worker_init_fn
    while init is not None:  # Ours run the user's own.
        given.append(init)
        init = init._then if type(init).__module__.startswith(_PACKAGE) else None
    names = [getattr(each if callable(each) else type(each), "__module__", None) for each in given]
    own = [name for name in names if isinstance(name, str) and name != "__main__"]
    return tuple(dict.fromkeys([*_OURS, *own]))


def _datasets(dataset: Any) -> list[Any]:
    """*dataset*, and the datasets inside it."""
    found, waiting = {}, [dataset]
    while waiting:
        each = waiting.pop(0)
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += _inner(each)
    return list(found.values())


def _inner(dataset: Any) -> Iterator[Any]:
    for name in ("dataset", "datasets"):  # Where torch's own datasets keep others.
        with contextlib.suppress(AttributeError):
            inner = object.__getattribute__(dataset, "__dict__").get(name)
            yield from inner if type(inner) in (list, tuple) else [inner]


@contextlib.contextmanager
def with_workers() -> Iterator[None]:
    """In this scope loaders with workers work under pyfakefs. Enter it before pyfakefs starts.

    It changes nothing unless torch is imported already.
    """
    with real_modules(), contextlib.ExitStack() as patches:
        if "torch" in sys.modules:
            from torch.utils.data import DataLoader

            from pytest_dataloader_faults._engine.loader.iterator import with_iterators_of_their_own

            for kind in with_iterators_of_their_own(DataLoader):
                original = kind._get_iterator
                patches.callback(setattr, kind, "_get_iterator", original)
                kind._get_iterator = _with_carrier(original)
        yield


def _with_carrier(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_iterator(loader: Any) -> Any:
        if not loader.num_workers or fake_files() is None:
            return original(loader)
        kind, then = loader._dataset_kind, loader.worker_init_fn
        loader._dataset_kind = carrier = FakeFilesCarrier(kind)
        carrier.loader = loader
        loader.worker_init_fn = PatchWorker(then)
        try:
            return original(loader)
        finally:
            loader._dataset_kind, loader.worker_init_fn = kind, then
            vars(carrier).clear()  # The iterator keeps it, and must not keep the loader.

    return get_iterator
