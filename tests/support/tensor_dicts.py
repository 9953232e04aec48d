"""Mappings of tensors that refuse iteration, as a TensorDict without a batch dimension does."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from support.datasets import Records


class NoIteration(MutableMapping[str, Any]):
    """Has keys, values and items, and neither its own iterator nor its own length."""

    def __init__(self, **parts: Any) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[str]:
        message = "iteration over a 0-d tensordict. Use keys(), values() or items()"
        raise TypeError(message)

    def __len__(self) -> int:
        message = "len() of a 0-d tensordict"
        raise TypeError(message)

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._parts[key] = value

    def __delitem__(self, key: str) -> None:
        del self._parts[key]

    def keys(self) -> Any:
        return self._parts.keys()

    def values(self) -> Any:
        return self._parts.values()

    def items(self) -> Any:
        return self._parts.items()


def stack_samples(samples: list[NoIteration]) -> NoIteration:
    keys = samples[0].keys()
    return NoIteration(**{key: torch.stack([each[key] for each in samples]) for key in keys})


class TensorDicts(Records):
    """Gives such mappings; *zeros* for what it cannot read."""

    zeros = False

    def __getitem__(self, index: int) -> Any:
        try:
            data, _ = super().__getitem__(index)
        except OSError:
            if not self.zeros:
                raise
            data = torch.zeros(64)
        return NoIteration(data=data, index=torch.tensor(index))
