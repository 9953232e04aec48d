"""Facts as plain data, and back: what JSON can hold. Pure."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults._arguments import Rule, ints, is_number, one_of
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.text import cut, shown

_LEAF_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
_LEAVES = frozenset(_LEAF_NAMES)
_CLASSES: Mapping[type, tuple[type, ...]] = {float: (int, float)}
"""What JSON has for a leaf, where that is not the class itself."""
_LONGEST = 1e9
"""Seconds, or 30 years: sums of such numbers can be computed and formatted."""
_PROCESS = re.compile(r"loader|worker [0-9]{1,9}")
Seconds: TypeAlias = Annotated[
    float,
    Rule(
        lambda value: is_number(value) and 0 <= value <= _LONGEST,
        f"a number of seconds from 0 to {_LONGEST:.0f}",
    ),
]
Count: TypeAlias = Annotated[int, ints(0, (1 << 63) - 1)]
EventKind: TypeAlias = Annotated[
    str, one_of(("epoch", "fetch", "open", "fault", "batch", "error", "exit"))
]
ProcessName: TypeAlias = Annotated[
    str,
    Rule(
        lambda value: isinstance(value, str) and _PROCESS.fullmatch(value) is not None,
        "'loader', or a worker such as 'worker 0'",
    ),
]
"""Fields of which another program may have written any value."""
_Reader: TypeAlias = Callable[[Any], Any]


class MisfitError(InvalidArgumentError):
    """Plain data in which the value at *path* does not have the type of its field."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        self.value, self.allowed, self.path = value, allowed, path
        place = path.removeprefix(".") or "the data"
        super().__init__(f"{place} must be {allowed}, got {cut(shown(value))}")

    def below(self, step: str) -> MisfitError:
        """The same error, for data whose part *step* was read."""
        return MisfitError(self.value, self.allowed, step + self.path)


def from_json(kind: Any, data: Any, *, ignore_unknown: bool = False) -> Any:
    """The *kind* of value that ``to_json`` made *data* from.

    ``Annotated[kind, Rule(...)]`` restricts the values further. *ignore_unknown*: leave out fields
    that the classes do not have, such as those of a later version.

    Raises:
        MisfitError: A value does not have the type that the annotation of its field names.
    """
    return _reader_of(kind, ignore_unknown)(data)


@functools.cache
def _reader_of(kind: Any, ignore_unknown: bool) -> _Reader:
    """What makes a *kind* of value; found out once, since a run has many thousands of values."""
    if kind is Any:  # Such as an index, which may be a tuple.
        return lambda data: tuple(data) if isinstance(data, list) else data
    if kind is Fault:
        return vocabulary.from_dict
    if kind in _LEAVES:
        return _reader_of_leaf(kind)
    if arguments := get_args(kind):
        return _reader_of_generic(get_origin(kind), arguments, ignore_unknown)
    if issubclass(kind, Enum):
        members = {each.value: each for each in kind}
        return _reader_with_rule(members.__getitem__, one_of(members))
    return functools.partial(_record, kind, ignore_unknown)


def _reader_of_leaf(kind: type) -> _Reader:
    classes = _CLASSES.get(kind, (kind,))

    def read(data: Any) -> Any:
        if data.__class__ in classes:  # As most are.
            return data
        if data.__class__ is bool or not isinstance(data, classes):  # A bool is an int for Python.
            raise MisfitError(data, _LEAF_NAMES[kind])
        return data

    return read


def _reader_of_generic(origin: Any, arguments: tuple[Any, ...], ignore_unknown: bool) -> _Reader:
    if origin is Annotated:
        return _reader_with_rule(_reader_of(arguments[0], ignore_unknown), arguments[1])
    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = [_reader_of(each, ignore_unknown) for each in arguments]
        return functools.partial(_read_tuple, readers)
    if origin in (tuple, Sequence):
        return functools.partial(_read_list, _reader_of(arguments[0], ignore_unknown))
    if origin in (dict, Mapping):
        return functools.partial(_read_mapping, _reader_of(arguments[1], ignore_unknown))
    (kind,) = (each for each in arguments if each is not NoneType)  # A union with None.
    return functools.partial(_read_optional, _reader_of(kind, ignore_unknown))


def _reader_with_rule(reader: _Reader, rule: Rule) -> _Reader:
    def read(data: Any) -> Any:
        if not rule.allows(data):
            raise MisfitError(data, rule.allowed)
        return reader(data)

    return read


def _read_optional(reader: _Reader, data: Any) -> Any:
    if data is None:
        return None
    try:
        return reader(data)
    except MisfitError as error:
        if error.path:
            raise
        raise MisfitError(data, f"{error.allowed}, or null") from None


def _read_tuple(readers: Sequence[_Reader], data: Any) -> Any:
    if not isinstance(data, (list, tuple)) or len(data) != len(readers):
        raise MisfitError(data, f"a list of {len(readers)} values")
    return _read_parts(readers, data)


def _read_list(reader: _Reader, data: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise MisfitError(data, "a list")
    return _read_parts(itertools.repeat(reader, len(data)), data)


def _read_parts(readers: Iterable[_Reader], data: Sequence[Any]) -> tuple[Any, ...]:
    made: list[Any] = []
    try:
        for reader, value in zip(readers, data, strict=True):
            made.append(reader(value))
    except MisfitError as error:
        raise error.below(f"[{len(made)}]") from None
    return tuple(made)


def _read_mapping(reader: _Reader, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise MisfitError(data, "an object")
    made = {}
    for key, value in data.items():
        try:
            made[key] = reader(value)
        except MisfitError as error:
            raise error.below(f"[{cut(shown(key))}]") from None
    return made


@functools.cache
def _readers_of(kind: Any, ignore_unknown: bool) -> Mapping[str, _Reader]:
    """What reads each field of *kind*, by its name, in their order."""
    types = get_type_hints(kind, include_extras=True)
    names = inspect.signature(kind).parameters
    return {name: _reader_of(types[name], ignore_unknown) for name in names}


@functools.cache
def _required(kind: Any) -> list[str]:
    """The fields of *kind* that have no default."""
    parameters = inspect.signature(kind).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def _record(kind: Any, ignore_unknown: bool, data: Any) -> Any:
    """A *kind* of dataclass or named tuple, of an object, or of a list of the latter's values."""
    readers = _readers_of(kind, ignore_unknown)
    if isinstance(data, (list, tuple)) and hasattr(kind, "_fields") and len(data) <= len(readers):
        data = dict(zip(readers, data, strict=False))
    if not isinstance(data, Mapping):
        raise MisfitError(data, "an object")
    made = {}
    for name, value in data.items():
        if name in readers:
            try:
                made[name] = readers[name](value)
            except MisfitError as error:
                raise error.below(f".{name}") from None
        elif not ignore_unknown:
            raise MisfitError(data, f"an object without {cut(shown(name))}")
    for name in _required(kind):
        if name not in made:
            raise MisfitError(data, f"an object with {name!r}")
    return kind(**made)


def to_json(value: Any) -> Any:
    """*value* as plain data: faults and dataclasses as dicts, tuples as lists."""
    if type(value) in _LEAVES:  # As most are.
        return value
    if isinstance(value, Fault):
        return vocabulary.to_dict(value)
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return list(map(to_json, value))
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return value
