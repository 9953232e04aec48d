"""What a trial does with an accelerator, and what it holds there [runs in the trial].

``torch.accelerator`` is new in torch 2.6; before it there is ``torch.cuda``.

Some facts about pinned memory that is given back. torch keeps the blocks that nobody uses, for the
next who asks, so what the machine has pinned says little. What is in use is ``active_bytes`` of
``torch.cuda.host_memory_stats``; the torch that was the first to have that function called it
``allocated_bytes``, which today counts the unused blocks, too. A block is in use until the copies
from it are done. Neither function starts CUDA, and without it they tell of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from pytest_dataloader_faults.exceptions import UnusableDatasetError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def pins(loader: DataLoader[Any]) -> bool:
    """Whether *loader* has a thread that pins its batches."""
    return bool(loader.num_workers and loader.pin_memory and is_there())


def is_there() -> bool:
    """Whether torch finds an accelerator."""
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def use() -> None:
    """Put something on it, as a training job does with its model before its first epoch."""
    try:
        torch.empty(1, device=_device())
    except RuntimeError as error:
        message = (
            f"a trial cannot use the accelerator: {error}. Where a test before this one has used it"
            " in pytest's own process, run those marked gpu in a session of their own"
        )
        raise UnusableDatasetError(message) from error


def copied(batch: Any, device: torch.device | None = None) -> Any:
    """*batch* with its tensors copied to *device*, by default the accelerator.

    Without waiting for it, as training loops do it. Looks into what ``default_collate`` makes; a
    class of somebody's own is left as it is.
    """
    device = device or _device()
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copied(each, device) for each in batch))
    if type(batch) in {list, tuple}:
        return type(batch)(copied(each, device) for each in batch)
    if type(batch) is dict:
        return {name: copied(each, device) for name, each in batch.items()}
    return batch


def held() -> dict[str, int]:
    """Bytes in use that this process has pinned, and those on the accelerator."""
    device = _device()
    if device is None:
        return {"pinned": 0, "device": 0}
    told_by = torch.get_device_module(device)
    pinned: Mapping[str, int] = getattr(told_by, "host_memory_stats", dict)()
    in_use = pinned.get("active_bytes.current", pinned.get("allocated_bytes.current", 0))
    return {"pinned": in_use, "device": getattr(told_by, "memory_allocated", int)()}


def _device() -> torch.device | None:
    """The accelerator; None if this torch is built without."""
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator()
    return torch.device("cuda")
