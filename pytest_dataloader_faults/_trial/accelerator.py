"""The accelerator: whether torch finds one, and how a trial uses it.

Some facts about asking. A build for CUDA asks the driver, and a process that has done so cannot
fork any more one that uses CUDA (torch/cuda/__init__.py, ``is_available``). Trials are forked. So a
disposable child asks when an answer is needed.

Some facts about pinned memory that is given back. torch keeps unused blocks for the next request,
so what the machine has pinned says little. What is in use is ``active_bytes`` of
``torch.cuda.host_memory_stats``; the torch that was the first to have that function called it
``allocated_bytes``, which today counts the unused blocks, too. A block is in use until the copies
from it are done. Neither function starts CUDA, and without it they report nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.system.children import answer_of_child
from pytest_dataloader_faults.exceptions import InjectionError, UnusableDatasetError

if TYPE_CHECKING:
    import torch

_FOUND, _MISSING = "found", "missing"
_PROBE_SECONDS = 120.0
"""A driver may take long to start on a machine with many devices."""


@cache
def missing_accelerator() -> str | None:
    """Why there is none; None if there is one."""
    import torch

    answer = answer_of_child(lambda: _FOUND if is_there() else _MISSING, _PROBE_SECONDS)
    if not answer:
        message = (
            "torch could not look for an accelerator: the process that called"
            f" torch.accelerator.is_available() ended, or took over {_PROBE_SECONDS:g} s"
        )
        raise InjectionError(message)
    return None if answer == _FOUND else f"torch {torch.__version__} finds no accelerator here"


def is_there() -> bool:
    import torch

    return bool(torch.accelerator.is_available())


def use() -> None:
    """Put a tensor on it, as a training job does with its model before its first epoch."""
    import torch

    try:
        torch.empty(1, device=_device())
    except RuntimeError as error:
        message = (
            f"a trial cannot use the accelerator: {error}. If an earlier test used it in pytest's"
            " own process, run the tests marked gpu in a session of their own"
        )
        raise UnusableDatasetError(message) from error


def copied(batch: Any, device: torch.device | None = None) -> Any:
    """*batch* with its tensors copied to *device*, by default the accelerator.

    Does not wait for the copy, as training loops do not. Looks into what ``default_collate``
    makes; other classes stay as they are.
    """
    import torch

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


def bytes_in_use() -> dict[str, int]:
    """Bytes of pinned memory that this process uses, and bytes on the accelerator."""
    import torch

    device = _device()
    if device is None:
        return {"pinned": 0, "device": 0}
    module = torch.get_device_module(device)
    pinned: Mapping[str, int] = getattr(module, "host_memory_stats", dict)()
    in_use = pinned.get("active_bytes.current", pinned.get("allocated_bytes.current", 0))
    return {"pinned": in_use, "device": getattr(module, "memory_allocated", int)()}


def _device() -> torch.device | None:
    """The accelerator; None if this torch is built without."""
    import torch

    return torch.accelerator.current_accelerator()
