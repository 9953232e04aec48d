"""Fingerprints of samples, and batches taken apart again. Pure [runs in the trial process].

Two values have the same digest when a training loop could not tell them apart: types, dtypes,
shapes and bytes are equal, NaN is equal to itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

import torch

_SIZE = 12


def digest(value: Any) -> str:
    """A short hexadecimal fingerprint of *value*; TypeError if it has none."""
    state = hashlib.blake2b(digest_size=_SIZE)
    _feed(state, value)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    kind = type(value)
    state.update(f"<{kind.__module__}.{kind.__qualname__}>".encode())
    if isinstance(value, torch.Tensor):
        _feed_tensor(state, value)
    elif kind.__module__ == "numpy":
        _feed_array(state, value)
    elif isinstance(value, (str, bytes, bytearray, int, float, complex, bool)) or value is None:
        state.update(repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, Mapping):
        state.update(str(len(value)).encode())
        for key in sorted(value, key=repr):
            _feed(state, key)
            _feed(state, value[key])
    elif isinstance(value, (list, tuple)):
        state.update(str(len(value)).encode())
        for item in value:
            _feed(state, item)
    elif isinstance(value, (set, frozenset)):
        state.update("".join(sorted(map(digest, value))).encode())
    else:
        _feed_object(state, value)


def _feed_tensor(state: Any, value: torch.Tensor) -> None:
    state.update(f"{value.dtype}{tuple(value.shape)}{value.layout}".encode())
    if value.layout is torch.strided:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
        state.update(plain.view(torch.uint8).numpy().tobytes())
    else:
        sparse = value.detach().cpu().to_sparse().coalesce()
        _feed(state, [sparse.indices(), sparse.values()])


def _feed_array(state: Any, value: Any) -> None:
    state.update(f"{value.dtype.str}{value.shape}".encode())
    if value.dtype.hasobject:
        _feed(state, value.tolist())
    else:
        state.update(value.tobytes())


def _feed_object(state: Any, value: Any) -> None:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _feed(state, getattr(value, field.name))
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        _feed(state, (value.mode, value.size, value.tobytes()))
    else:
        try:
            state.update(pickle.dumps(value, protocol=4))
        except Exception as error:
            message = f"a sample holds a {type(value).__qualname__}, which has no fingerprint"
            raise TypeError(message) from error


def split(batch: Any, count: int) -> list[Any] | None:
    """*batch* as *count* batches of one sample each, or None if it cannot be told how.

    Understands what ``default_collate`` makes: tensors and arrays stacked along the first axis,
    in dicts, lists and tuples, and lists of strings.
    """
    if isinstance(batch, torch.Tensor) or type(batch).__module__ == "numpy":
        stacked = batch.ndim > 0 and len(batch) == count
        return [batch[i : i + 1] for i in range(count)] if stacked else None
    if isinstance(batch, Mapping):
        columns = _split_all(batch.values(), count)
        return columns and [dict(zip(batch, row, strict=True)) for row in columns]
    if not isinstance(batch, (list, tuple)) or not batch:
        return None
    if all(isinstance(item, (str, bytes)) for item in batch):
        return [[item] for item in batch] if len(batch) == count else None
    rows = _split_all(batch, count)
    return rows and [list(row) for row in rows]


def _split_all(values: Any, count: int) -> list[Any] | None:
    columns = [split(value, count) for value in values]
    if not columns or any(column is None for column in columns):
        return None
    return list(zip(*(column for column in columns if column is not None), strict=True))


def rows_of(batch: Any, count: int) -> tuple[str, ...] | None:
    """A digest per sample of *batch*, or None if it cannot be split into *count* samples."""
    parts = split(batch, count)
    return None if parts is None else tuple(map(digest, parts))
