"""Facts as plain data, and back: what JSON can hold. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault

_field_types = functools.cache(get_type_hints)


def from_json(kind: Any, data: Any) -> Any:
    """The *kind* of value that ``to_json`` made *data* from."""
    if kind is Any:  # Such as an index, which may be a tuple.
        return tuple(data) if isinstance(data, list) else data
    if kind is Fault:
        return vocabulary.from_dict(data)
    if inner := get_args(kind):
        return _collection_from_json(get_origin(kind), inner, data)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        types = _field_types(kind)
        named = data if isinstance(data, dict) else dict(zip(types, data, strict=False))
        return kind(**{name: from_json(types[name], value) for name, value in named.items()})
    return kind(data) if issubclass(kind, Enum) else data


def _collection_from_json(origin: Any, inner: tuple[Any, ...], data: Any) -> Any:
    """Of a tuple, a mapping, or a union with None."""
    if origin in (tuple, Sequence):
        is_same = origin is Sequence or inner[-1] is Ellipsis
        kinds = itertools.repeat(inner[0]) if is_same else inner
        return tuple(map(from_json, kinds, data))
    if origin in (dict, Mapping):
        kind = inner[1]
        return data if kind is Any else {key: from_json(kind, data[key]) for key in data}
    return None if data is None else from_json(inner[0], data)


def to_json(value: Any) -> Any:
    """*value* as plain data: faults and dataclasses as dicts, tuples as lists."""
    if isinstance(value, Fault):
        return vocabulary.to_dict(value)
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return list(map(to_json, value))
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return value
