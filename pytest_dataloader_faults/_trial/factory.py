"""The factory of a dataset, and the folder that it may ask for [runs in pytest].

Some facts about that folder. A dataset that writes a cache reads the cache ever after, and its
sources no more: a fault in the sources then finds nothing to happen to. A factory that takes a
folder can have the cache there. The folder is empty when a trial begins, or a reading of the
reference, so each of them begins cold. Its path stays the same within a process: samples may hold
paths, and files that one trial reads are the targets of the next. The trial's warden removes it,
also when pytest is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeAlias

from pytest_dataloader_faults._engine.python.pyfakefs import fake_files
from pytest_dataloader_faults._trial.parts import PartOf, is_a, is_ready
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import counted


class HasItems(Protocol):
    """A map-style dataset, a dict or a list."""

    def __getitem__(self, index: Any, /) -> Any: ...


class HasSetup(Protocol):
    """A data module."""

    def setup(self, stage: str, /) -> object: ...


DatasetFactory: TypeAlias = (
    Callable[[], Any] | Callable[[Path], Any] | HasItems | Iterable[Any] | HasSetup | PartOf
)
"""A function that gives the dataset or the loader, or several of them; or what it would give.

A function with a required parameter for a folder gets an empty one for its trial alone.
"""

_FAKE = (
    "make_dataset takes a folder, but there are fake files. Each trial has its own copy of these,"
    " so a cache in them is new each time: use a factory that takes no argument"
)
_FOLDER = re.compile("folder|dir|path|cache|tmp|temp|root|^_+$", re.IGNORECASE)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def takes_folder(make_dataset: Any) -> bool:
    """Whether *make_dataset* is a function with one required parameter, of a folder.

    Raises:
        InvalidArgumentError: It requires something else. A class that requires a folder means one
            with data: it would find nothing in an empty one.
    """
    if is_a(make_dataset, PartOf):
        return takes_folder(make_dataset.source)
    if is_ready(make_dataset):
        return False
    try:
        parameters = inspect.signature(make_dataset).parameters.values()
    except (TypeError, ValueError):  # It is written in C, and does not say.
        return False
    given = [each for each in parameters if each.default is each.empty]
    required = [each for each in given if each.kind in _POSITIONAL]
    if required and (len(required) > 1 or not _is_of_folder(make_dataset, required[0])):
        raise InvalidArgumentError(_too_many(make_dataset, required))
    return bool(required)


def _is_of_folder(make_dataset: Any, parameter: inspect.Parameter) -> bool:
    """Whether an empty folder is likely to be meant by the only *parameter*."""
    is_path = parameter.annotation in (Path, "Path", "pathlib.Path")
    return not isinstance(make_dataset, type) and (is_path or bool(_FOLDER.search(parameter.name)))


def _too_many(make_dataset: Any, required: Sequence[inspect.Parameter]) -> str:
    names = ", ".join(each.name for each in required)
    arguments = counted(len(required), "argument")
    own = getattr(make_dataset, "__name__", None)
    function = own if isinstance(own, str) else "make_dataset"
    return (
        f"{function} requires {arguments} ({names}), but make_dataset is called with none. Only a"
        " function (no class) gets an empty folder, if its one parameter is named folder, dir, path"
        " or cache, or annotated as Path. Give a function that calls it, such as"
        f" lambda: {function}(...)"
    )


def definition_of(make_dataset: Any) -> tuple[str, int] | None:
    """The file and the line of a function or a class; None of anything else."""
    if is_a(make_dataset, functools.partial):
        make_dataset = make_dataset.func
    with contextlib.suppress(Exception):  # Of an object of any class.
        return inspect.getfile(make_dataset), inspect.getsourcelines(make_dataset)[1]
    return None


def is_named(make_dataset: Any) -> bool:
    """Whether *make_dataset* is a function or a class."""
    return any(is_a(make_dataset, each) for each in (type, FunctionType, MethodType))


def full_name(make_dataset: Any) -> str:
    """The name of a function or a class with its module; of an object those of its class."""
    named = make_dataset if is_named(make_dataset) else type(make_dataset)
    return f"{named.__module__}.{named.__qualname__}"


class HandedOver:
    """Gives *made*, which is no function: the caller has made it."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __call__(self) -> Any:
        """What was handed over."""
        return self.made


def bound(make_dataset: Any) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """*make_dataset* for one trial, and the folder that it gets, which is not made yet."""
    if is_a(make_dataset, PartOf):
        source, folders = bound(make_dataset.source)
        return dataclasses.replace(make_dataset, source=source), folders
    if is_ready(make_dataset):
        return HandedOver(make_dataset), ()
    asks = takes_folder(make_dataset)
    if asks and fake_files() is not None:
        raise InvalidArgumentError(_FAKE)
    if not asks:
        return make_dataset, ()
    path = _path(os.getpid(), threading.get_ident(), os.path.realpath(tempfile.gettempdir()))
    return functools.partial(make_dataset, path), (str(path),)


@functools.lru_cache
def _path(_pid: int, _thread: int, temporary: str) -> Path:
    return Path(temporary, f"dlf-{uuid.uuid4().hex[:12]}")
