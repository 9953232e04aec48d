"""Fingerprints of samples, and batches taken apart again. Pure [runs in the trial process].

What counts as the same is said in ``_leaves``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pytest_dataloader_faults._trial._leaves import Leaf, hash_of, leaves


def digest(value: Any) -> str:
    """A short hexadecimal fingerprint of *value*; TypeError if it has none."""
    return digest_of(leaves(value))


def digest_of(parts: Iterable[Leaf]) -> str:
    """The fingerprint of what has these parts."""
    return hash_of("\n".join(map(repr, map(tuple, parts))).encode("utf-8", "surrogatepass"))


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
