"""What users pass: a factory, the folder that it may need, or several loaders together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
import re
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, GeneratorType, MethodType, NoneType
from typing import Any, Protocol, TypeAlias

from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.outcomes.libraries import LOADERS
from pytest_dataloader_faults.outcomes.text import format_value, join_some, pluralize, text_of

# Some facts about what people pass. A LightningDataModule has a method for each of its loaders, and
# each may return one loader, several or none. Its trainer calls ``prepare_data`` and ``setup``
# before. The base class has each of these methods as well, and those raise. A ``CombinedLoader``
# has its loaders in ``iterables``, a ``DatasetDict`` is a dict. But a list of samples is also a
# dataset, and so may be a dict: only what has nothing but loaders and datasets in it is taken
# apart.


CALLS_USER_CODE = True

_STAGES = {"train": "fit", "val": "fit", "test": "test"}
"""The loaders of a data module, and the stage that each is set up for."""
_MAX_ITEMS = 100
"""A longer list, or dict, is one of samples."""
_MAX_DEPTH = 3
_SEVERAL = """\
make_dataset must return one loader or dataset, but it returned several. To test each, write:
    @pytest.mark.parametrize('part', {names})
    fault_check(part_of(make_dataset, part))
or, outside pytest:
    for part in {names}:
        check_dataset(part_of(make_dataset, part))
Other functions also accept one, as in part_of(make_dataset, {first!r})"""


@dataclass(frozen=True)
class PartOf:
    """A factory of one of the loaders or datasets that *source* returns; see ``part_of``."""

    source: Any
    name: str

    def __repr__(self) -> str:
        source = self.source if isinstance(self.source, PartOf) else "make_dataset"
        return f"part_of({source}, {self.name!r})"

    def __call__(self) -> Any:
        result = call_factory(self.source)
        parts = _parts(result, only=self.name.partition("/")[0])
        if self.name not in parts:
            returned = ", ".join(map(repr, _parts(result))) or "one dataset or loader"
            message = f"make_dataset has no part {self.name!r}: it returned {returned}"
            raise InvalidArgumentError(message)
        return parts[self.name]


def part_of(make_dataset: Any, name: str) -> PartOf:
    """Select one of several loaders or datasets; pass the result instead of *make_dataset*.

    Args:
        make_dataset: Returns a data module, dict, list or tuple of them, or is one.
        name: ``"train"``, ``"val"`` or ``"test"`` of a data module, a key of a dict, or a position
            in a list; ``"val/0"`` is the first of several validation loaders.
    """
    return PartOf(make_dataset, str(name))


def is_ready(source: Any) -> bool:
    """Whether *source* is a dataset, a loader or several of them, instead of a function."""
    if isinstance(source, type):
        return False
    has_samples = all(hasattr(type(source), name) for name in ("__getitem__", "__len__"))
    return (
        not callable(source) or has_samples or _is_dataset_or_loader(source) or bool(_hooks(source))
    )


def call_factory(make_dataset: Any) -> Any:
    """What *make_dataset* returns; itself if it is a dataset or a loader."""
    return make_dataset if is_ready(make_dataset) else make_dataset()


def require_one(result: Any) -> Any:
    """The only dataset or loader in *result*, or *result*; several are an InvalidArgumentError."""
    parts = _parts(result)
    if len(parts) > 1:
        raise InvalidArgumentError(_SEVERAL.format(names=list(parts), first=next(iter(parts))))
    return next(iter(parts.values()), result)


def _parts(result: Any, only: str | None = None) -> dict[str, Any]:
    """The loaders and datasets in *result* by name; empty if it is one itself, or has samples."""
    if hooks := _hooks(result):
        return dict(_module_loaders(result, [each for each in hooks if only in {None, each}]))
    return _contained_parts(result)


def _contained_parts(container: Any, depth: int = _MAX_DEPTH) -> dict[str, Any]:
    """The loaders and datasets in a dict, list or tuple, which has nothing else in it."""
    parts, remaining = {}, {}
    for key, item in _items(container):
        name = text_of(key)
        if _is_dataset_or_loader(item):
            parts[name] = item
        elif depth and (inner := _contained_parts(item, depth - 1)):
            parts.update({f"{name}/{each}": part for each, part in inner.items()})
        else:
            remaining[name] = item
    if remaining:
        _require_samples(container, parts, remaining)
        return {}
    return parts


def _items(container: Any) -> list[tuple[Any, Any]]:
    if type(container).__name__ == "CombinedLoader":
        container = getattr(container, "iterables", None)
    if _is_dataset_or_loader(container):
        return []
    # What is in it, whatever a subclass makes of its methods: that may be a dataset.
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(container, dict):
        items = dict.items(container)
    elif isinstance(container, list):
        items = enumerate(list.__iter__(container))
    elif isinstance(container, tuple):
        items = enumerate(tuple.__iter__(container))
    first_items = list(itertools.islice(items, _MAX_ITEMS + 1))
    return first_items if len(first_items) <= _MAX_ITEMS else []


def _require_samples(container: Any, parts: dict[str, Any], remaining: dict[str, Any]) -> None:
    """Refuse a *container* that is not a dataset, although it has *remaining* items."""
    if parts:
        name, item = next(iter(remaining.items()))
        message = (
            f"make_dataset returned a {type(container).__name__} of loaders or datasets, but"
            f" {name!r} in it is {format_value(item)}. Every entry must be a DataLoader or a torch"
            " Dataset"
        )
        raise UnusableDatasetError(message)
    if all(isinstance(each, FunctionType) or _is_own_class(each) for each in remaining.values()):
        names = join_some(each.__name__ for each in remaining.values())
        message = (
            f"make_dataset returned a {type(container).__name__} of functions or classes ({names})"
            " instead of their results. Call them in it, as in lambda: [MyDataset(...)]"
        )
        raise UnusableDatasetError(message)


def _is_own_class(item: Any) -> bool:
    """Whether *item* is a class, but not a builtin one, which may be part of a sample."""
    return isinstance(item, type) and item.__module__ != "builtins"


def _is_dataset_or_loader(item: Any) -> bool:
    """Whether *item* is a loader or a dataset of a library that is imported."""
    names = [("torch.utils.data", name) for name in ("DataLoader", "Dataset")]
    kinds = [getattr(sys.modules.get(home), name, None) for home, name in (*names, *LOADERS)]
    return isinstance(item, tuple(each for each in kinds if isinstance(each, type)))


def _hooks(source: Any) -> list[str]:
    """The names of the loaders of a data module; empty if *source* is none."""
    if isinstance(source, type) or _is_dataset_or_loader(source):
        return []
    return [name for name in _STAGES if _overrides_hook(source, f"{name}_dataloader")]


def _overrides_hook(source: Any, hook: str) -> bool:
    """Whether *source* defines the method, not only Lightning's base class.

    It is looked up without ``getattr``: an object that has an attribute for every name is not a
    data module.
    """
    definition = inspect.getattr_static(source, hook, None)
    is_method = callable(definition) or isinstance(
        definition, (classmethod, functools.partialmethod)
    )
    return is_method and not any(
        kind.__name__ == "DataHooks" and vars(kind).get(hook) is definition
        for kind in type(source).__mro__
    )


def _module_loaders(module: Any, hooks: list[str]) -> Iterator[tuple[str, Any]]:
    """What each of the *hooks* returns, called in the order in which a trainer calls them."""
    _call(module, "prepare_data")
    for stage, names in itertools.groupby(hooks, _STAGES.__getitem__):
        _call(module, "setup", stage)
        for name in names:
            result = _call(module, f"{name}_dataloader")
            parts = {} if _is_dataset_or_loader(result) else _contained_parts(result)
            if _is_dataset_or_loader(result):
                yield name, result
            elif not parts and (result or not isinstance(result, (list, tuple, dict, NoneType))):
                value = format_value(result)
                message = f"{name}_dataloader() returned {value}, which is not a DataLoader"
                raise UnusableDatasetError(message)
            yield from ((f"{name}/{key}", part) for key, part in parts.items())


def _call(module: Any, method: str, *arguments: str) -> Any:
    """What the method returns; a ``setup`` may lack the stage."""
    function = getattr(module, method, None)
    if not callable(function):
        return None
    stage_arguments = arguments if inspect.signature(function).parameters else ()
    return function(*stage_arguments)


# Some facts about that folder. A dataset that has filled a cache reads that ever after, and its
# sources no more: a fault in the sources then never fires. A factory that takes a folder can have
# the cache there. The folder is empty when a trial or a run for the reference starts, so each of
# them starts cold. Its path stays the same within a process: samples may hold paths, and files that
# one trial reads are the targets of the next. The trial's warden removes it, also when pytest is
# killed.


class _HasItems(Protocol):
    """A map-style dataset, a dict or a list."""

    def __getitem__(self, index: Any, /) -> Any: ...


class _HasSetup(Protocol):
    """A data module."""

    def setup(self, stage: str, /) -> object: ...


DatasetFactory: TypeAlias = (
    Callable[[], Any] | Callable[[Path], Any] | _HasItems | Iterable[Any] | _HasSetup | PartOf
)
"""A function that returns the dataset or the loader; or its return value.

A function with a required parameter for a folder gets a new, empty one in each trial.
"""

_FOLDER_WITH_PYFAKEFS = (
    "make_dataset takes a folder, but pyfakefs is active. Each trial has its own copy of the fake"
    " files, so a cache in them is new each time: use a factory without parameters"
)
_COPY_NOT_ACCEPTED = (
    "copy={!r} needs a make_dataset that accepts the copy: a function or a class with one required"
    " parameter, such as lambda folder: MyDataset(folder)"
)
_FOLDER = re.compile("folder|dir|path|cache|tmp|temp|root|^_+$", re.IGNORECASE)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PARAMETERS = (
    "{0} requires {1}, but make_dataset is called without any. Only a function (not a class) can"
    " receive an empty folder, if the name of its only parameter contains folder, dir, path, cache,"
    " tmp or root, or it is annotated as Path. Pass a function that calls it, such as lambda:"
    " {0}(...), or arguments with --arg to the command run"
)
_OF_ITERATOR = (
    "An iterator is exhausted after one epoch: pass the loader or the dataset itself, without"
    " iter(). "
)
_OF_GENERATOR = (
    "A function with yield returns a generator: replace yield with return, or yield the samples in"
    " __iter__ of an IterableDataset. "
)


def takes_folder(make_dataset: Any, *, with_data: bool = False) -> bool:
    """Whether *make_dataset* is a function with one required parameter, of a folder.

    *with_data*: whether the folder contains the data, so that a class may also require it.

    Raises:
        InvalidArgumentError: It requires something else. A class that requires a folder means one
            with data: it would find nothing in an empty one.
    """
    if isinstance(make_dataset, PartOf):
        return takes_folder(make_dataset.source, with_data=with_data)
    if is_ready(make_dataset):
        return False
    try:
        parameters = inspect.signature(make_dataset).parameters.values()
    except (TypeError, ValueError):  # It is written in C, and does not show that.
        return False
    required = [
        each for each in parameters if each.default is each.empty and each.kind in _POSITIONAL
    ]
    is_meant = len(required) == 1 and (with_data or _expects_folder(make_dataset, required[0]))
    if required and not is_meant:
        names = ", ".join(each.name for each in required)
        name = getattr(make_dataset, "__name__", "make_dataset")
        arguments = pluralize(len(required), "argument")
        raise InvalidArgumentError(_PARAMETERS.format(name, f"{arguments} ({names})"))
    return is_meant


def _expects_folder(make_dataset: Any, parameter: inspect.Parameter) -> bool:
    """Whether an empty folder is likely to be meant by the only *parameter*."""
    is_path = parameter.annotation in (Path, "Path", "pathlib.Path")
    return not isinstance(make_dataset, type) and (is_path or bool(_FOLDER.search(parameter.name)))


def is_named(make_dataset: Any) -> bool:
    """Whether *make_dataset* is a function or a class."""
    return isinstance(make_dataset, (type, FunctionType, MethodType))


def full_name(make_dataset: Any) -> str:
    """The name of a function or a class with its module; of an object those of its class."""
    definition = make_dataset if is_named(make_dataset) else type(make_dataset)
    return f"{definition.__module__}.{definition.__qualname__}"


def bind_factory(
    make_dataset: Any, number: int | None = None, copy: str | None = None
) -> tuple[Any, tuple[str, ...]]:
    """*make_dataset* for one trial, and the folder that it gets, which is not made yet.

    *number*: that of one of several jobs, each of which has its own folder. *copy*: what the folder
    is a copy of.
    """
    if isinstance(make_dataset, PartOf):
        source, folders = bind_factory(make_dataset.source, number, copy)
        return dataclasses.replace(make_dataset, source=source), folders
    if not takes_folder(make_dataset, with_data=copy is not None):
        if copy is not None:
            raise InvalidArgumentError(_COPY_NOT_ACCEPTED.format(copy))
        return make_dataset, ()
    if fake_files() is not None:
        raise InvalidArgumentError(_FOLDER_WITH_PYFAKEFS)
    path = _path(os.getpid(), threading.get_ident(), os.path.realpath(tempfile.gettempdir()))
    if number is not None:
        path = path.with_name(f"{path.name}-{number}")
    return functools.partial(make_dataset, path), (str(path),)


@functools.lru_cache
def _path(_pid: int, _thread: int, temporary: str) -> Path:
    return Path(temporary, f"dlf-{uuid.uuid4().hex[:12]}")


def describe_data_folder(own_folders: Iterable[str], copy: str | None) -> str:
    """Where a dataset without samples looked for its files, as far as the harness decides that."""
    if copy is None and list(own_folders):
        return (
            "make_dataset was passed a new, empty folder. To use your own data, pass a function"
            " without parameters, such as lambda: MyDataset('data/train')"
        )
    return f"Relative paths start at {os.getcwd()!r}"


def describe_result(make_dataset: Any, result: Any) -> str:
    """What *result* is and who returned it, as the subject of a sentence."""
    if result is make_dataset:
        return f"make_dataset={format_value(result)}"
    function = make_dataset.func if isinstance(make_dataset, functools.partial) else make_dataset
    place = ""
    with contextlib.suppress(Exception):  # It has no source.
        place = f" at {inspect.getfile(function)}:{inspect.getsourcelines(function)[1]}"
    return f"make_dataset{place} returned {format_value(result)}, which"


def advice_for(result: Any) -> str:
    """What to return instead of *result*, which is not a dataset; empty if unknown."""
    from torch.utils.data import DataLoader  # In a trial, which has imported it.

    if isinstance(result, GeneratorType):
        return _OF_GENERATOR
    if isinstance(result, Iterator):
        return _OF_ITERATOR
    attributes = []
    for name, value in getattr(result, "__dict__", {}).items():
        items = enumerate(value) if type(value) is list else ()
        places = {name: value} | {f"{name}[{number}]": each for number, each in items}
        attributes += [each for each, item in places.items() if isinstance(item, DataLoader)]
    return "".join(f"It wraps a DataLoader: pass lambda: make().{each}. " for each in attributes)
