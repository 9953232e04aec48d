"""Send the fake files to workers that start as a new interpreter [runs where the loader does].

A forked worker has the files of its parent. A spawned one gets a copy, which the loader makes when
it starts the worker. The copy must exist before the worker unpickles the dataset. torch puts
the kind of the dataset first among the arguments of a worker, and a pickle is read from its
start: so the kind carries the files, and unpickling the kind unpacks them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import pickle
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from typing import Any

from pytest_dataloader_faults._engine.fake import fake_files, patcher
from pytest_dataloader_faults._engine.fake.engine import PatchWorker, patch_for_good
from pytest_dataloader_faults._engine.system.imports import import_late_modules
from pytest_dataloader_faults.exceptions import InvalidArgumentError

CALLS_USER_CODE = True

_STAYS = frozenset(
    {"_patcher", "patcher", "open_files", "_free_fd_heap", "dev_null", "_in_process_runs"}
)
"""Attributes of a file system that belong to its process; ``patcher`` in pyfakefs before 6.1."""
_PACKAGE = "pytest_dataloader_faults."
_OURS = tuple(
    f"pytest_dataloader_faults._engine.worker.{name}"
    for name in ("arm", "fetch_hooks", "kernel_session", "fake_session")
)


_kept: list[Any] = []
"""What a spawned worker must keep until it exits."""


class _FakeFilesCarrier(int):
    """torch's number for the kind of a dataset, which carries the fake files when it is pickled."""

    loader: Any

    @functools.cached_property
    def _contents(self) -> tuple[Any, ...]:
        from pyfakefs.helpers import get_gid, get_uid

        return _modules_of(self.loader), _pack(fake_files()), (get_uid(), get_gid())

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """A plain number in the worker."""
        return _unpack_in_worker, (int(self), *self._contents)


def _unpack_in_worker(
    kind: int, modules: tuple[str, ...], files: bytes, ids: tuple[int, int]
) -> int:
    """Give this process the fake *files*, and *kind* back [runs in the DataLoader worker].

    It imports *modules* first: under pyfakefs they would look for their own data among fake files.
    """
    for name in modules:
        importlib.import_module(name)
    import_late_modules()
    for_good = contextlib.ExitStack()
    _exclude_machinery(for_good)
    from pyfakefs.fake_filesystem import set_gid, set_uid
    from pyfakefs.fake_filesystem_unittest import Patcher

    patcher: Any = Patcher()
    patcher.setUp()
    _kept.extend((patcher, for_good))
    vars(patcher.fs).update(_unpack(files, patcher.fs))
    set_uid(ids[0])
    set_gid(ids[1])
    patch_for_good(patcher)
    return kind


def _pack(files: Any) -> bytes:
    """The attributes of the file system *files*, to which every file in them refers."""

    class Packer(pickle.Pickler):
        def persistent_id(self, thing: Any) -> str | None:
            return "files" if thing is files else None

    to = io.BytesIO()
    state = {name: value for name, value in vars(files).items() if name not in _STAYS}
    Packer(to, pickle.HIGHEST_PROTOCOL).dump(state)
    return to.getvalue()


def _unpack(data: bytes, files: Any) -> Any:
    """Those attributes, with *files* in the place of the file system."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, _name: Any) -> Any:
            return files

    return Unpacker(io.BytesIO(data)).load()


def _modules_of(loader: Any) -> tuple[str, ...]:
    """The modules of the classes and functions that a worker of *loader* unpickles."""
    callables = [loader.collate_fn, *_datasets(loader.dataset)]
    init = loader.worker_init_fn
    while init is not None:  # Ours run the user's own.
        callables.append(init)
        init = init._then if type(init).__module__.startswith(_PACKAGE) else None
    names = [
        getattr(each if callable(each) else type(each), "__module__", None) for each in callables
    ]
    modules = [name for name in names if isinstance(name, str) and name != "__main__"]
    return tuple(dict.fromkeys([*_OURS, *modules]))


def _datasets(dataset: Any) -> list[Any]:
    """*dataset*, and the datasets inside it."""
    datasets, waiting = {}, [dataset]
    while waiting:
        current = waiting.pop(0)
        if current is not None and id(current) not in datasets:
            datasets[id(current)] = current
            waiting += _inner_datasets(current)
    return list(datasets.values())


def _inner_datasets(dataset: Any) -> Iterator[Any]:
    for name in ("dataset", "datasets"):  # Where torch's own datasets keep others.
        with contextlib.suppress(AttributeError):
            inner = object.__getattribute__(dataset, "__dict__").get(name)
            yield from inner if type(inner) in (list, tuple) else [inner]


@contextlib.contextmanager
def with_workers() -> Iterator[None]:
    """In this scope loaders with workers work under pyfakefs. Enter it before pyfakefs starts.

    It changes nothing unless torch is imported already.
    """
    with _real_modules(), contextlib.ExitStack() as patches:
        if "torch" in sys.modules:
            from pytest_dataloader_faults._engine.loader.iterator import replace_iterator_makers

            patches.enter_context(replace_iterator_makers(_with_carrier))
        yield


def _with_carrier(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_iterator(loader: Any) -> Any:
        if not loader.num_workers or fake_files() is None:
            return original(loader)
        kind, worker_init_fn = loader._dataset_kind, loader.worker_init_fn
        loader._dataset_kind = carrier = _FakeFilesCarrier(kind)
        carrier.loader = loader
        loader.worker_init_fn = PatchWorker(worker_init_fn)
        try:
            return original(loader)
        finally:
            loader._dataset_kind, loader.worker_init_fn = kind, worker_init_fn
            vars(carrier).clear()  # The iterator keeps it, and must not keep the loader.

    return get_iterator


# Some facts about pyfakefs. It puts its fakes in every module that is loaded. In those of
# multiprocessing, ``os.pipe()`` then returns numbers of the fake file system's own table, and these
# go where real descriptors belong: to the C code that starts a process, and to ``Connection``,
# whose methods keep the real ``os.read`` and ``os.close`` as defaults of their parameters. So it
# reads, and at last closes, whatever has these numbers in truth, such as pytest's capture file. A
# module in ``Patcher.SKIPMODULES`` keeps its ``os`` and ``io``, but ``open`` is found among the
# builtins, which are everybody's: it needs its own global. And tempfile, which is shared by all,
# always fakes.


_MACHINERY = (
    *("multiprocessing", "subprocess", "socket", "selectors", "psutil", "hypothesis"),
    *("torch.multiprocessing", "torch.utils.data.dataloader", "torch.utils.data._utils.worker"),
    *("torchdata.stateful_dataloader", "pytest_dataloader_faults"),
)
"""Modules, with those below them, whose descriptors, processes and files are real ones."""
_LOOK_AT_DATA = ("pytest_dataloader_faults.battery.targets",)
"""Modules among these that access the files of a dataset."""
_OF_MULTIPROCESSING = (
    *("connection", "context", "forkserver", "heap", "managers", "pool", "popen_fork"),
    *("popen_forkserver", "popen_spawn_posix", "queues", "reduction", "resource_sharer"),
    *("resource_tracker", "shared_memory", "spawn", "synchronize", "util"),
)
_OUR_FOLDER = (
    *("_trial.child", "battery.checking", "battery.sweeping", "search", "search._runner"),
    *("plugin._fault_check", "_engine.loader.iterator", "_engine"),
    *("_engine.worker.kernel_session", "_engine.worker.fake_session", "fake_files.transfer"),
)
"""Modules that a test may call. After the test, pyfakefs forgets those imported under it."""


_scopes: list[contextlib.ExitStack] = []
"""Those of ``_real_modules`` that are open."""


@contextlib.contextmanager
def _real_modules() -> Iterator[None]:
    """In this scope loaders can start workers under pyfakefs. Enter it before pyfakefs starts."""
    if not _scopes and patcher() is not None:
        message = (
            "pyfakefs is already active, and has replaced the functions that start processes. Enter"
            " FakeDatasetFs before the Patcher, or use it instead of the Patcher"
        )
        raise InvalidArgumentError(message)
    with contextlib.ExitStack() as undo:
        _scopes.append(undo)
        undo.callback(_scopes.remove, undo)
        if len(_scopes) == 1:
            _load_what_tests_call()
            _exclude_machinery(undo)
        yield


def _exclude_machinery(undo: contextlib.ExitStack) -> None:
    """Have pyfakefs leave the machinery alone from now on; *undo* removes our globals again."""
    from pyfakefs.fake_filesystem_unittest import Patcher

    for name in _OF_MULTIPROCESSING:
        importlib.import_module(f"multiprocessing.{name}")
    modules = [module for name, module in list(sys.modules.items()) if _is_machinery(name)]
    fresh = {each for each in modules if each not in Patcher.SKIPMODULES}
    Patcher.SKIPMODULES.update(fresh)
    if fresh & Patcher.CACHED_MODULES:  # Seen in an earlier test, and taken for one to fake.
        Patcher.clear_fs_cache()
    for module in modules:
        for name, real in _globals_of(module).items():
            undo.callback(_restore, module, name, vars(module).get(name, _restore))
            setattr(module, name, real)


def _load_what_tests_call() -> None:
    if "torch" in sys.modules:
        for name in _OUR_FOLDER:
            importlib.import_module(f"pytest_dataloader_faults.{name}")
        import_late_modules()
        get_temp_dir()  # Sockets are bound there, by C code. It stays as long as this process.


def _is_machinery(name: str) -> bool:
    is_below = any(name == each or name.startswith(f"{each}.") for each in _MACHINERY)
    return is_below and name not in _LOOK_AT_DATA


def _globals_of(module: types.ModuleType) -> dict[str, Any]:
    real_open: dict[str, Any] = {} if "open" in vars(module) else {"open": io.open}
    shared_names = {name for name, shared in _SHARED.items() if vars(module).get(name) is shared}
    return real_open | {name: _private_copies()[name] for name in shared_names}


_SHARED = {"shutil": shutil, "tempfile": tempfile}


@functools.cache
def _private_copies() -> dict[str, types.ModuleType]:
    """Copies of the modules in ``_SHARED``, which pyfakefs does not know."""
    copies = {name: _private_copy(module) for name, module in _SHARED.items()}
    vars(copies["tempfile"])["_shutil"] = copies["shutil"]
    return copies


def _private_copy(module: types.ModuleType) -> types.ModuleType:
    spec: Any = importlib.util.find_spec(module.__name__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    vars(copy)["open"] = io.open
    return copy


def _restore(module: types.ModuleType, name: str, value: Any) -> None:
    if value is _restore:
        delattr(module, name)
    else:
        setattr(module, name, value)
