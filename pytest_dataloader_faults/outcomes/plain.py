"""Facts as plain data, and back: what JSON can hold. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault

_LEAVES = frozenset({str, int, float, bool, type(None)})


def from_json(kind: Any, data: Any) -> Any:
    """The *kind* of value that ``to_json`` made *data* from."""
    return _reader_of(kind)(data)


@functools.cache
def _reader_of(kind: Any) -> Callable[[Any], Any]:
    """What makes a *kind* of value; found out once, since a run has many thousands of values."""
    if kind is Any:  # Such as an index, which may be a tuple.
        return lambda data: tuple(data) if isinstance(data, list) else data
    if kind is Fault:
        return vocabulary.from_dict
    if inner := get_args(kind):
        return _reader_of_collection(get_origin(kind), inner)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return functools.partial(_record, kind)
    return kind if issubclass(kind, Enum) else _unchanged


def _reader_of_collection(origin: Any, inner: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Of a tuple, a mapping, or a union with None."""
    if origin in (tuple, Sequence):
        if origin is Sequence or inner[-1] is Ellipsis:
            return lambda data: tuple(map(_reader_of(inner[0]), data))
        return lambda data: tuple(map(from_json, inner, data))
    if origin in (dict, Mapping):
        kind = inner[1]
        if kind is Any:
            return _unchanged
        return lambda data: {key: from_json(kind, data[key]) for key in data}
    return lambda data: None if data is None else from_json(inner[0], data)


def _record(kind: Any, data: Any) -> Any:
    readers = _readers_of_fields(kind)
    if isinstance(data, dict):
        return kind(**{name: readers[name](value) for name, value in data.items()})
    # The later fields of a record may have been left out.
    return kind(*(read(each) for read, each in zip(readers.values(), data, strict=False)))


@functools.cache
def _readers_of_fields(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Those of the fields of a *kind* of record, in order."""
    return {name: _reader_of(each) for name, each in get_type_hints(kind).items()}


def _unchanged(data: Any) -> Any:
    return data


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
