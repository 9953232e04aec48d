"""A fake file system that DataLoader workers can see: ``with FakeDatasetFs() as files:``.

The fixture ``fake_dataset_fs`` returns the same ``files``. The workers see copies of the fake
files, to which a supervisor redirects their calls. If no faults are armed, there is none yet, so
the first loader starts one [runs where the loader does].
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import os
import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import get_temp_dir
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine import (
    patcher,
    require_engine,
    require_real_functions,
    scopes_with_workers,
    unavailable,
)
from pytest_dataloader_faults._engine.scope import open_scope
from pytest_dataloader_faults._engine.system.imports import import_late_modules

if sys.platform != "linux":  # Its workers would need Linux.
    raise unavailable()

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

    from pytest_dataloader_faults._engine.iterator import LoaderMonitor

__all__ = ("FakeDatasetFs",)


class FakeDatasetFs:
    """An in-memory pyfakefs file system for datasets in loaders, with any start method.

    Within its scope, Python sees the fake files instead of the real ones in this process. The
    workers of each loader see a copy of them, in C code as well as in Python.
    """

    def __init__(self) -> None:
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> FakeFilesystem:
        """Return pyfakefs' file system, with methods such as ``create_file``."""
        require_engine()
        import torch.utils.data  # noqa: F401  # what is imported under pyfakefs is forgotten
        from pyfakefs.fake_filesystem_unittest import Patcher

        with contextlib.ExitStack() as scope:
            scope.enter_context(_with_workers())
            patcher: Any = scope.enter_context(Patcher())
            self._scope = scope.pop_all()
        return patcher.fs  # type: ignore[no-any-return]

    def __exit__(self, *_error: object) -> None:
        """Show the real files again."""
        self._scope.close()


@contextlib.contextmanager
def _with_workers() -> Iterator[None]:
    """In this scope loaders with workers work under pyfakefs. Enter it before pyfakefs starts.

    It changes nothing unless torch is imported already.
    """
    with _real_modules(), contextlib.ExitStack() as scope:
        if "torch" in sys.modules:
            from pytest_dataloader_faults._engine.iterator import replace_iterator_makers

            _pickle_real_paths(scope)
            scope.enter_context(replace_iterator_makers(_Supervised(scope)))
        yield


def _pickle_real_paths(undo: contextlib.ExitStack) -> None:
    """Send path objects of pyfakefs to spawned workers as those of pathlib."""
    from pyfakefs.fake_pathlib import FakePathlibModule

    kind = FakePathlibModule.PosixPath
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    ForkingPickler.register(kind, lambda path: (pathlib.PosixPath, (str(path),)))
    undo.callback(reducers.pop, kind, None)


class _Supervised:
    """Makes functions that put the workers of a loader under a supervisor, until *scope* ends."""

    def __init__(self, scope: contextlib.ExitStack) -> None:
        self._scope, self._process = scope, os.getpid()
        self._monitors: dict[int, LoaderMonitor] = {}
        """By process: a trial is forked from the one that has entered the scope."""

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_iterator(loader: Any) -> Any:
            from pytest_dataloader_faults._engine.arm import ArmWorker

            # By a scope of faults that was entered before this one, or after it.
            is_armed = hasattr(original, "__wrapped__") or isinstance(
                loader.worker_init_fn, ArmWorker
            )
            if not loader.num_workers or is_armed or patcher() is None:
                return original(loader)
            return self._monitor().iterator(loader, original)

        return get_iterator

    def _monitor(self) -> LoaderMonitor:
        process = os.getpid()
        if process not in self._monitors:
            require_engine()
            # The warden of a trial removes the trial's folder, and may kill this supervisor before.
            scope = open_scope(protects=False, has_folder=process == self._process)
            self._monitors[process] = self._scope.enter_context(scope)[1]
        return self._monitors[process]


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
    *("_trial.warden", "battery.checking", "battery.sweeping", "search", "search._search"),
    *("plugin._fault_check", "_engine.iterator", "_engine"),
    *("_engine.arm", "fake_files"),
)
"""Modules that a test may call. After the test, pyfakefs forgets those imported under it."""


@contextlib.contextmanager
def _real_modules() -> Iterator[None]:
    """In this scope loaders can start workers under pyfakefs. Enter it before pyfakefs starts."""
    require_real_functions()
    with contextlib.ExitStack() as undo:
        scopes_with_workers.append(undo)
        undo.callback(scopes_with_workers.remove, undo)
        if len(scopes_with_workers) == 1:
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
