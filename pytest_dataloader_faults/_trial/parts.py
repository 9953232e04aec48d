"""Loaders and datasets that are handed over together: find them, name them, choose one.

Some facts about what people hand over. A LightningDataModule has a method for each of its loaders,
and each may give one loader, several or none. Its trainer calls ``prepare_data`` and ``setup``
before. The base class has each of these methods as well, and those raise. A ``CombinedLoader`` has
its loaders in ``iterables``, a ``DatasetDict`` is a dict. But a list of samples is a dataset, too,
and so may be a dict: only what has nothing but loaders and datasets in it is taken apart.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    SeveralLoadersError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes.text import continued, shown, text_of

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
    homes = {
        "torch.utils.data": ("DataLoader", "Dataset"),
        "datasets.arrow_dataset": ("Dataset",),
        "datasets.iterable_dataset": ("IterableDataset",),
    }
    kinds = [getattr(sys.modules.get(home), name, None) for home in homes for name in homes[home]]
    try:
        return any(isinstance(made, each) for each in kinds if isinstance(each, type))
    except Exception:  # noqa: BLE001  # Its class cannot be asked for, which the trial reports.
        return False


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
