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
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_MACHINERY = (
    *("multiprocessing", "subprocess", "socket", "selectors", "psutil", "hypothesis"),
    *("torch.multiprocessing", "torch.utils.data.dataloader", "torch.utils.data._utils.worker"),
    *("torchdata.stateful_dataloader", "pytest_dataloader_faults"),
)
"""Modules, with those below them, whose descriptors, processes and files are real ones."""
_LOOK_AT_DATA = ("pytest_dataloader_faults.battery._targets",)
"""Of these, modules that look at a dataset's files."""
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
"""What a test may call; what is first imported under pyfakefs is forgotten after the test."""
_depth = [0]


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """While it lasts, loaders can start workers under pyfakefs. Enter it before pyfakefs starts."""
    if not _depth[0] and patcher() is not None:
        message = (
            "pyfakefs is at work already, and has replaced what starts processes. Enter"
            " FakeDatasetFs before the Patcher, or use it in the Patcher's place"
        )
        raise InvalidArgumentError(message)
    _depth[0] += 1
    with contextlib.ExitStack() as undo:
        undo.callback(_leave)
        if _depth[0] == 1:
            _load_what_tests_call()
            spare(undo)
        yield


def _leave() -> None:
    _depth[0] -= 1


def spare(undo: contextlib.ExitStack) -> None:
    """Have pyfakefs leave the machinery alone from now on; *undo* takes our globals out again."""
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
            undo.callback(_put_back, module, name, vars(module).get(name, _put_back))
            setattr(module, name, real)


def _load_what_tests_call() -> None:
    if "torch" in sys.modules:
        for name in _OURS:
            importlib.import_module(f"pytest_dataloader_faults.{name}")
        get_temp_dir()  # Sockets are bound there, by C code. It stays as long as this process.


def _is_machinery(name: str) -> bool:
    is_below = any(name == each or name.startswith(f"{each}.") for each in _MACHINERY)
    return is_below and name not in _LOOK_AT_DATA


def _globals_of(module: types.ModuleType) -> dict[str, Any]:
    given: dict[str, Any] = {} if "open" in vars(module) else {"open": io.open}
    return given | {
        name: twin for name, twin in _twins().items() if vars(module).get(name) is _SHARED[name]
    }


_SHARED = {"shutil": shutil, "tempfile": tempfile}


@functools.cache
def _twins() -> dict[str, types.ModuleType]:
    """Modules such as those that everybody shares, which pyfakefs does not know of."""
    twins = {name: _twin(module) for name, module in _SHARED.items()}
    vars(twins["tempfile"])["_shutil"] = twins["shutil"]
    return twins


def _twin(module: types.ModuleType) -> types.ModuleType:
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    twin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    vars(twin)["open"] = io.open
    return twin


def _put_back(module: types.ModuleType, name: str, value: Any) -> None:
    if value is _put_back:
        delattr(module, name)
    else:
        setattr(module, name, value)
