"""Import now what workers would import late, and say which library a module is of."""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import Distribution, distributions
from typing import Any

from pytest_dataloader_faults.outcomes.text import PYTHON

# Some facts about late imports. torch imports its nested tensors when a process shares its first
# tensor (``reduce_tensor`` in torch/multiprocessing/reductions.py), and uses ``numpy.random`` when
# a worker starts. Each forked worker does so again. torch shares tensors in the thread that feeds
# the queue. An import that fails there loses the batch, and the loader waits for it forever: a
# fault can be the cause, or fake files, among which the module's own are not.
#
# With torch 2.13 a process imports a monitor of CUDA's when its loader returns the first batch
# (``record_function`` in torch/autograd/profiler.py). A trial's process is new each time.
#
# Some facts about distributions. RECORD, next to the METADATA of one, lists its files. What was
# installed from a folder, an archive or a repository has a ``direct_url.json`` there (PEP 610). So
# have packages of conda, which builds them from folders; their INSTALLER is "conda".


_LATE = ("torch.nested._internal.nested_tensor", "numpy.random")
FOR_LOADER = ("torch.profiler._cupti_monitor",)
"""What each main process would import if pytest's process had not."""
FOR_FORK_SERVER = (
    "torch.utils.data",
    "pytest_dataloader_faults._engine.arm",
    "pytest_dataloader_faults._trial.resources",
    *_LATE,
)
"""What each worker from a fork server, or the server's keeper, would import."""

_INSTALLED = re.compile(r"(.*/(?:site|dist)-packages)/(([^/.]+).*)", re.DOTALL)


def import_late_modules(names: Iterable[str] = _LATE) -> None:
    """Import them, as far as they are installed."""
    for name in names:
        with contextlib.suppress(ImportError):
            import_module(name)


@contextlib.contextmanager
def timed_imports() -> Iterator[dict[str, float]]:
    """Yield how many seconds statements take in this scope to import each package."""
    seconds: dict[str, float] = {}
    original, pending = builtins.__import__, 0

    def timed(name: str, *args: Any, **options: Any) -> Any:
        nonlocal pending
        if pending or name in sys.modules:
            return original(name, *args, **options)
        pending, began = 1, time.monotonic()
        try:
            return original(name, *args, **options)
        finally:
            pending, package = 0, name.partition(".")[0]
            seconds[package] = seconds.get(package, 0.0) + time.monotonic() - began

    builtins.__import__ = timed
    try:
        yield seconds
    finally:
        builtins.__import__ = original


@functools.cache
def library_of(file: str) -> str:
    """The library that the module *file* is of, as ``Raised`` names it; "" if it is the user's."""
    if installed := _INSTALLED.fullmatch(file):
        folder, path, package = installed.groups()
        found = (each for each in distributions(path=[folder]) if _has_file(each, path))
        distribution = next(found, None)
        if distribution is None:
            return package
        return "" if _is_of_user(distribution) else distribution.name
    return "Python" if file.startswith((PYTHON, "<frozen ")) else ""


def _has_file(distribution: Distribution, path: str) -> bool:
    return f"\n{path}," in f"\n{distribution.read_text('RECORD') or ''}"


def _is_of_user(distribution: Distribution) -> bool:
    """Whether it was installed from a folder, an archive or a repository."""
    is_of_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"
    return distribution.read_text("direct_url.json") is not None and not is_of_conda
