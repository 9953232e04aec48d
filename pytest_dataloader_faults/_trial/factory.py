"""What is handed over: a factory, the folder that it may ask for, or several loaders together.

Some facts about what people hand over. A LightningDataModule has a method for each of its loaders,
and each may give one loader, several or none. Its trainer calls ``prepare_data`` and ``setup``
before. The base class has each of these methods as well, and those raise. A ``CombinedLoader`` has
its loaders in ``iterables``, a ``DatasetDict`` is a dict. But a list of samples is a dataset, too,
and so may be a dict: only what has nothing but loaders and datasets in it is taken apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar

from pytest_dataloader_faults._engine.fake import fake_files
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    SeveralLoadersError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes.text import continued, counted, listed, shown, text_of

_STAGES = {"train": "fit", "val": "fit", "test": "test"}
"""The loaders of a data module, and the stage that each is set up for."""
_MOST = 100
"""A longer list, or dict, is one of samples."""
_DEEPEST = 3
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class PartOf:
    """A factory of one of the loaders or datasets that *source* gives; see ``part_of``."""

    source: Any
    name: str

    def __repr__(self) -> str:
        source = self.source if isinstance(self.source, PartOf) else "make_dataset"
        return f"part_of({source}, {self.name!r})"

    def __call__(self) -> Any:
        made = self.source if is_ready(self.source) else self.source()
        found = _parts(made, only=self.name.partition("/")[0])
        if self.name not in found:
            raise InvalidArgumentError(_no_part(self.name, list(_parts(made))))
        return found[self.name]


def _no_part(name: str, known: list[str]) -> str:
    what = f"there is no part {name!r} of make_dataset: it gave"
    if not known:
        return f"{what} one dataset or loader, so hand over make_dataset itself, without part_of"
    return f"{what} {', '.join(map(repr, known))}. Name one of these"


def part_of(make_dataset: Any, name: str) -> PartOf:
    """One of several loaders or datasets: what to hand over in place of *make_dataset*.

    Args:
        make_dataset: Gives several, or is these: a data module, or a dict, list or tuple.
        name: ``"train"``, ``"val"`` or ``"test"`` of a data module, a key of a dict, a position in
            a list; ``"val/0"`` is the first of several validation loaders.
    """
    return PartOf(make_dataset, str(name))


def is_a(made: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    """Whether *made* is of that *kind*; it is not asked for its class, as isinstance would."""
    return issubclass(type(made), kind)


def is_ready(source: Any) -> bool:
    """Whether *source* is a dataset, a loader or several of them, and no function that gives it."""
    if is_a(source, type):
        return False
    has_samples = all(hasattr(type(source), name) for name in ("__getitem__", "__len__"))
    return not callable(source) or has_samples or _is_one(source) or bool(_hooks(source))


def require_one(made: Any) -> None:
    """Raise SeveralLoadersError if *made* is more than one dataset or loader."""
    if names := tuple(_parts(made)):
        known = ", ".join(map(repr, names))
        message = (
            f"make_dataset gave several loaders or datasets ({known}), and this needs one: choose"
            f" it, as by part_of(make_dataset, {names[0]!r})"
        )
        raise SeveralLoadersError(message, names)


def _parts(made: Any, only: str | None = None) -> dict[str, Any]:
    """The loaders and datasets in *made* by name; empty if it is one itself, or has samples."""
    if hooks := _hooks(made):
        return dict(_of_module(made, [each for each in hooks if only in {None, each}]))
    found = list(_within(made))
    if len(dict(found)) < len(found):
        message = f"of the loaders in a {type(made).__name__}, two have the same name: {found!r}"
        raise InvalidArgumentError(message)
    return dict(found)


def _within(made: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The loaders and datasets in a dict, list or tuple, which has nothing else in it."""
    items = _items(made)
    found = [(text_of(key), each, list(_unless_one(each, depth))) for key, each in items]
    if not all(_is_one(each) or inner for _, each, inner in found):
        _require_no_function(made, [each for _, each, _ in found])
        _require_no_class(made, [each for _, each, _ in found])
        _require_no_loader(made, found)
        return
    for key, each, inner in found:
        yield from [(f"{key}/{name}", part) for name, part in inner] or [(key, each)]


def _unless_one(made: Any, depth: int) -> Iterator[tuple[str, Any]]:
    return iter(()) if _is_one(made) or depth == _DEEPEST else _within(made, depth + 1)


def _items(made: Any) -> list[tuple[Any, Any]]:
    if type(made).__name__ == "CombinedLoader":
        made = getattr(made, "iterables", None)
    if is_a(made, type) or _is_one(made):
        return []
    # What is in it, whatever a subclass makes of its methods: that may be a dataset.
    if is_a(made, dict):
        return list(dict.items(made)) if dict.__len__(made) <= _MOST else []
    kind = next((each for each in (list, tuple) if is_a(made, each)), None)
    if kind is None or kind.__len__(made) > _MOST:
        return []
    return list(enumerate(kind.__iter__(made)))


def _require_no_function(made: Any, found: list[Any]) -> None:
    """Functions are no samples, so *made* is not meant as a dataset."""
    if all(is_a(each, FunctionType) for each in found):
        message = (
            f"make_dataset gave a {type(made).__name__} of functions, and not what calling them"
            " gives. Call them in it, as in lambda: [MyDataset(...)]"
        )
        raise UnusableDatasetError(message)


def _require_no_class(made: Any, found: list[Any]) -> None:
    """A class of datasets or loaders is no sample, so *made* is not meant as a dataset."""
    classes = [each for each in found if is_a(each, type) and _makes_one(each)]
    if classes:
        names = [each.__name__ for each in classes]
        what, which = ("a class", "it") if len(names) == 1 else ("classes", "them")
        message = (
            f"make_dataset gave a {type(made).__name__} that holds {what}, and not what calling"
            f" {which} gives: {listed(names)}. Call {which}, as in {names[0]}(...)"
        )
        raise UnusableDatasetError(message)


def _makes_one(kind: type) -> bool:
    """Whether *kind* is a class of datasets or loaders, or looks like one of map-style datasets."""
    own = {name for each in kind.__mro__ for name in vars(each)}  # But for those of a metaclass.
    has_samples = {"__getitem__", "__len__"} <= own
    return any(issubclass(kind, each) for each in _kinds()) or (
        has_samples and kind.__module__ != "builtins"
    )


def _require_no_loader(made: Any, found: list[tuple[str, Any, list[Any]]]) -> None:
    """A loader is no sample, so *made* is not meant as a dataset."""
    if any(_is_one(each) or inner for _, each, inner in found):
        name, other = next((n, o) for n, o, inner in found if not _is_one(o) and not inner)
        message = (
            f"make_dataset gave a {type(made).__name__} of loaders or datasets, but {name!r} in it"
            f" is {shown(other)}. Each has to be a DataLoader or a torch Dataset"
        )
        raise UnusableDatasetError(message)


def _is_one(made: Any) -> bool:
    """Whether *made* is a loader or a dataset by its class."""
    try:
        return any(isinstance(made, each) for each in _kinds())
    except Exception:  # noqa: BLE001  # Its class cannot be asked for, which the trial reports.
        return False


def _kinds() -> list[type]:
    """The classes of loaders and datasets, of those libraries that are imported."""
    homes = {
        "torch.utils.data": ("DataLoader", "Dataset"),
        "datasets.arrow_dataset": ("Dataset",),
        "datasets.iterable_dataset": ("IterableDataset",),
        "lightning.fabric.wrappers": ("_FabricDataLoader",),
        "lightning_fabric.wrappers": ("_FabricDataLoader",),
    }
    kinds = [getattr(sys.modules.get(home), name, None) for home in homes for name in homes[home]]
    return [each for each in kinds if isinstance(each, type)]


def _hooks(made: Any) -> list[str]:
    """The names of the loaders of a data module; empty if *made* is none."""
    if is_a(made, type) or _is_one(made):
        return []
    return [name for name in _STAGES if _is_own(made, f"{name}_dataloader")]


def _is_own(made: Any, hook: str) -> bool:
    """Whether *made* has the method, and not only from Lightning's base class.

    It is looked up without asking *made*: what has an attribute for every name is no data module.
    """
    try:
        own = object.__getattribute__(made, "__dict__")
    except AttributeError:
        own = {}
    if hook in own:  # As LightningDataModule.from_datasets() makes it.
        return callable(own[hook])
    owner = next((kind for kind in type(made).__mro__ if hook in vars(kind)), None)
    if owner is None or owner.__name__ == "DataHooks":
        return False
    found = vars(owner)[hook]
    return callable(found) or isinstance(found, (classmethod, functools.partialmethod))


def _of_module(module: Any, hooks: list[str]) -> Iterator[tuple[str, Any]]:
    """What each of the *hooks* gives, called in the order in which a trainer calls them."""
    _call(module, "prepare_data")
    for stage in dict.fromkeys(_STAGES[name] for name in hooks):
        _call(module, "setup", stage)
        for name in hooks:
            if _STAGES[name] != stage:
                continue
            made = _call(module, f"{name}_dataloader")
            if _is_one(made):
                yield name, made
            elif not (_is_none(made) or list(_within(made))):
                message = f"{name}_dataloader() gave {shown(made)}, which is no DataLoader"
                raise UnusableDatasetError(message)
            yield from ((f"{name}/{key}", each) for key, each in _within(made))


def _is_none(made: Any) -> bool:
    return made is None or (type(made) in (list, tuple, dict) and not made)


def _call(module: Any, method: str, *arguments: str) -> Any:
    """What the method gives; a ``setup`` may do without the stage."""
    try:
        function = getattr(module, method, None)
        if not callable(function):
            return None
        given = arguments if inspect.signature(function).parameters else ()
        return function(*given)
    except (Exception, SystemExit) as error:
        name = f"{type(module).__name__}.{method}({', '.join(map(repr, arguments))})"
        said = continued(text_of(error))
        text = f"{name} raised {type(error).__name__}: {said}, with no fault armed"
        raise UnusableDatasetError(text) from error


# Some facts about that folder. A dataset that writes a cache reads the cache ever after, and its
# sources no more: a fault in the sources then finds nothing to happen to. A factory that takes a
# folder can have the cache there. The folder is empty when a trial begins, or a reading of the
# reference, so each of them begins cold. Its path stays the same within a process: samples may
# hold paths, and files that one trial reads are the targets of the next. The trial's warden
# removes it, also when pytest is killed.


class _HasItems(Protocol):
    """A map-style dataset, a dict or a list."""

    def __getitem__(self, index: Any, /) -> Any: ...


class _HasSetup(Protocol):
    """A data module."""

    def setup(self, stage: str, /) -> object: ...


DatasetFactory: TypeAlias = (
    Callable[[], Any] | Callable[[Path], Any] | _HasItems | Iterable[Any] | _HasSetup | PartOf
)
"""A function that gives the dataset or the loader, or several of them; or what it would give.

A function with a required parameter for a folder gets an empty one for its trial alone.
"""

_FAKE = (
    "make_dataset takes a folder, but there are fake files. Each trial has its own copy of these,"
    " so a cache in them is new each time: use a factory that takes no argument"
)
_NOT_TAKEN = (
    "copy={!r} needs a make_dataset that takes the copy: a function or a class with one required"
    " parameter, such as lambda folder: MyDataset(folder)"
)
_FOLDER = re.compile("folder|dir|path|cache|tmp|temp|root|^_+$", re.IGNORECASE)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def takes_folder(make_dataset: Any, *, with_data: bool = False) -> bool:
    """Whether *make_dataset* is a function with one required parameter, of a folder.

    *with_data*: whether the folder has the data in it, so that a class may require it, too.

    Raises:
        InvalidArgumentError: It requires something else. A class that requires a folder means one
            with data: it would find nothing in an empty one.
    """
    if is_a(make_dataset, PartOf):
        return takes_folder(make_dataset.source, with_data=with_data)
    if is_ready(make_dataset):
        return False
    try:
        parameters = inspect.signature(make_dataset).parameters.values()
    except (TypeError, ValueError):  # It is written in C, and does not say.
        return False
    given = [each for each in parameters if each.default is each.empty]
    required = [each for each in given if each.kind in _POSITIONAL]
    is_meant = with_data or (required and _is_of_folder(make_dataset, required[0]))
    if required and (len(required) > 1 or not is_meant):
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


def bound(
    make_dataset: Any, rank: int | None = None, copy: str | None = None
) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """*make_dataset* for one trial, and the folder that it gets, which is not made yet.

    *rank*: of several, each of which has a folder of its own. *copy*: what the folder is a copy of.
    """
    if is_a(make_dataset, PartOf):
        source, folders = bound(make_dataset.source, rank, copy)
        return dataclasses.replace(make_dataset, source=source), folders
    asks = takes_folder(make_dataset, with_data=copy is not None)
    if copy is not None and not asks:
        raise InvalidArgumentError(_NOT_TAKEN.format(copy))
    if is_ready(make_dataset):
        return HandedOver(make_dataset), ()
    if asks and fake_files() is not None:
        raise InvalidArgumentError(_FAKE)
    if not asks:
        return make_dataset, ()
    path = _path(os.getpid(), threading.get_ident(), os.path.realpath(tempfile.gettempdir()))
    if rank is not None:
        path = path.with_name(f"{path.name}-{rank}")
    return functools.partial(make_dataset, path), (str(path),)


@functools.lru_cache
def _path(_pid: int, _thread: int, temporary: str) -> Path:
    return Path(temporary, f"dlf-{uuid.uuid4().hex[:12]}")
