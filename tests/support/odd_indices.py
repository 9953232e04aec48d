"""A dataset that takes any index, and indices of many kinds, as samplers yield them."""

import enum
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Window:
    start: int
    length: int = 4


class Cut:
    """Has the default repr with its address, but not a hash, and an ``==`` that raises."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, _other: object) -> bool:
        raise RuntimeError("cuts are not compared")


class Silent(Cut):
    """Cannot be shown either, and lacks a truth value."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class Sized(int):
    """An int that has more to it."""

    size = 8


class Split(enum.Enum):
    TRAIN = 1
    TEST = 2


KINDS = {
    "int": lambda i: i,
    "numpy": np.int64,
    "tensor": torch.tensor,
    "one": lambda i: torch.tensor([i]),
    "str": lambda i: f"key {i}",
    "bytes": lambda i: bytes([i]),
    "float": lambda i: i / 2,
    "none": lambda i: i or None,
    "slice": lambda i: slice(i, i + 4),
    "slices": lambda i: (slice(i, i + 4), slice(0, 2)),
    "pair": lambda i: (i, 224),
    "list": lambda i: [i, i + 1],
    "mixed": lambda i: [np.int64(i), torch.tensor(i), (i,)],
    "dict": lambda i: {"key": i, "size": [4, i]},
    "set": lambda i: {i, f"{i}"},
    "array": lambda i: np.array([i, i + 1]),
    "floats": lambda i: np.array([i, 0.5]),
    "matrix": lambda i: torch.tensor([[i, 1], [2, 3]]),
    "long": lambda i: torch.arange(2000) + i,
    "path": lambda i: PurePosixPath(f"{i}.rec"),
    "window": Window,
    "cut": Cut,
    "silent": Silent,
    "sized": Sized,
    "enum": lambda i: list(Split)[i % 2],
}
"""Makes the index of that kind of a number."""


def mixed(count: int, *kinds: str) -> list[Any]:
    """*count* indices of each of the *kinds*, by default of all."""
    return [KINDS[kind](number) for kind in kinds or KINDS for number in range(count)]


def number_of(index: Any) -> int:
    if isinstance(index, (np.ndarray, np.generic, torch.Tensor)):
        return number_of(index.tolist())
    if isinstance(index, Cut):
        return index.number
    if (parts := _parts(index)) is not None:
        return sum((place + 1) * number_of(each) for place, each in enumerate(parts))
    return int(index) if isinstance(index, int) else zlib.crc32(repr(index).encode()) % 10_000


def _parts(index: Any) -> list[Any] | None:
    if isinstance(index, slice):
        return [index.start, index.stop, index.step]
    if isinstance(index, dict):
        return list(index.items())
    if isinstance(index, (set, frozenset)):
        return sorted(index, key=repr)
    return list(index) if isinstance(index, (list, tuple)) else None


class AnyIndex(Dataset[Any]):
    """Returns a tensor that depends on the index, and does not have a length."""

    def __getitem__(self, index: Any) -> Any:
        return torch.arange(16) + number_of(index)
