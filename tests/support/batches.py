"""Classes of batches, and what each makes of being pinned."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

_PAGE = 4096
_kept: list[Any] = []


class Batch:
    """A batch of its own class, which torch pins by calling its method."""

    def __init__(self, samples: list[Any]) -> None:
        self.images = torch.stack([image for image, _ in samples])
        self.labels = torch.tensor([label for _, label in samples])

    def pin_memory(self) -> Any:
        self.images = self.images.pin_memory()
        return self


class Unpinned:
    """A batch that torch does not know how to pin, and passes on as it is."""

    def __init__(self, samples: list[Any]) -> None:
        self.images = torch.stack([image for image, _ in samples])


class ForgetsItself(Batch):
    """Pins in place, and forgets to return itself."""

    def pin_memory(self) -> Any:
        self.images = self.images.pin_memory()


class CannotBePinned(Batch):
    """Fails while it is pinned."""

    def pin_memory(self) -> Any:
        raise RuntimeError("no page can be locked")


class CannotBeLoaded(Batch):
    """Cannot be unpickled, which ends the thread that takes batches from the workers."""

    def __setstate__(self, _state: object) -> None:
        raise RuntimeError("the batch cannot be loaded")


class HangsPinning(Batch):
    """Is never pinned to its end."""

    def pin_memory(self) -> Any:
        threading.Event().wait()


class Shuffled(Batch):
    """Leaves the thread in a different order."""

    def pin_memory(self) -> Any:
        self.images = self.images.flip(0)
        return self


class KeepsPinned(Batch):
    """Pins a page more with each batch, and keeps it."""

    def pin_memory(self) -> Any:
        _kept.append(torch.ones(_PAGE, dtype=torch.uint8).pin_memory())
        return super().pin_memory()


class KeepsOnDevice(Batch):
    """Puts something on the device with each batch, and leaves it there."""

    def pin_memory(self) -> Any:
        _kept.append(torch.ones(_PAGE, device=torch.accelerator.current_accelerator()))
        return super().pin_memory()


class Pair(NamedTuple):
    """A batch that torch takes apart and puts together again."""

    images: Any
    labels: Any


def as_pair(samples: list[Any]) -> Pair:
    """One, of ordinary tensors."""
    return Pair(*torch.utils.data.default_collate(samples))


class Fields(collections.UserDict):  # type: ignore[type-arg]
    """A mutable mapping of its own class."""


class Frozen(Mapping[str, Any]):
    """An immutable mapping that cannot be made of another mapping."""

    def __init__(self, *, images: Any) -> None:
        self._images = images

    def __getitem__(self, name: str) -> Any:
        return {"images": self._images}[name]

    def __iter__(self) -> Any:
        return iter(("images",))

    def __len__(self) -> int:
        return 1
