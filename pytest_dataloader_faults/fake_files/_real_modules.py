"""Keep the real files for the code that starts workers and talks to them.

Some facts about pyfakefs. It puts its fakes in every module that is loaded. In those of
multiprocessing, ``os.pipe()`` then gives numbers of the fake file system's own table, and these go
where real descriptors belong: to the C code that starts a process, and to ``Connection``, whose
methods keep the real ``os.read`` and ``os.close`` as defaults of their parameters. So it reads, and
at last closes, whatever has these numbers in truth, such as pytest's capture file. A module in
``Patcher.SKIPMODULES`` keeps its ``os`` and ``io``, but ``open`` is found among the builtins, which
are everybody's: it needs a global of its own. And tempfile, which is shared by all, always fakes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from typing import Any

from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.worker.late_imports import import_late_modules
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_MACHINERY = (
    *("multiprocessing", "subprocess", "socket", "selectors", "psutil", "hypothesis"),
    *("torch.multiprocessing", "torch.utils.data.dataloader", "torch.utils.data._utils.worker"),
    *("torchdata.stateful_dataloader", "pytest_dataloader_faults"),
)
"""Modules, with those below them, whose descriptors, processes and files are real ones."""
_LOOK_AT_DATA = ("pytest_dataloader_faults.battery._targets",)
"""Modules among these that look at the files of a dataset."""
_OF_MULTIPROCESSING = (
    *("connection", "context", "forkserver", "heap", "managers", "pool", "popen_fork"),
    *("popen_forkserver", "popen_spawn_posix", "queues", "reduction", "resource_sharer"),
    *("resource_tracker", "shared_memory", "spawn", "synchronize", "util"),
)
_OURS = (
    *("_trial.child", "battery", "search", "search._runner", "plugin._fault_check"),
    *("_engine.loader.iterator", "_engine.kernel.probe", "_engine.worker.kernel_session"),
    *("_engine.worker.python_session", "fake_files._transfer"),
)
"""Modules that a test may call. After the test, pyfakefs forgets those imported under it."""


_scopes: list[contextlib.ExitStack] = []
"""Those of ``real_modules`` that are open."""


@contextlib.contextmanager
def real_modules() -> Iterator[None]:
    """In this scope loaders can start workers under pyfakefs. Enter it before pyfakefs starts."""
    if not _scopes and patcher() is not None:
        message = (
            "pyfakefs is active already, and has replaced what starts processes. Enter"
            " FakeDatasetFs before the Patcher, or use it in place of the Patcher"
        )
        raise InvalidArgumentError(message)
    with contextlib.ExitStack() as undo:
        _scopes.append(undo)
        undo.callback(_scopes.remove, undo)
        if len(_scopes) == 1:
            _load_what_tests_call()
            exclude_machinery(undo)
        yield


def exclude_machinery(undo: contextlib.ExitStack) -> None:
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
        for name in _OURS:
            importlib.import_module(f"pytest_dataloader_faults.{name}")
        import_late_modules()
        get_temp_dir()  # Sockets are bound there, by C code. It stays as long as this process.


def _is_machinery(name: str) -> bool:
    is_below = any(name == each or name.startswith(f"{each}.") for each in _MACHINERY)
    return is_below and name not in _LOOK_AT_DATA


def _globals_of(module: types.ModuleType) -> dict[str, Any]:
    given: dict[str, Any] = {} if "open" in vars(module) else {"open": io.open}
    found = {name for name, shared in _SHARED.items() if vars(module).get(name) is shared}
    return given | {name: _private_copies()[name] for name in found}


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
