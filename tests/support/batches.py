"""Classes of batches, and what each makes of being pinned."""

import threading
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


class ForgetsItself(Batch):
    """Pins in place, and forgets to return itself."""

    def pin_memory(self) -> Any:
        self.images = self.images.pin_memory()


class CannotBePinned(Batch):
    def pin_memory(self) -> Any:
        raise RuntimeError("no page can be locked")


class CannotBeLoaded(Batch):
    """Cannot be unpickled, which ends the thread that takes batches from the workers."""

    def __setstate__(self, _state: object) -> None:
        raise RuntimeError("the batch cannot be loaded")


class HangsPinning(Batch):
    def pin_memory(self) -> Any:
        threading.Event().wait()


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
