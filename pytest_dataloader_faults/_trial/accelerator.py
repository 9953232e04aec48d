"""The accelerator: whether torch finds one, and how a trial uses it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from pytest_dataloader_faults._engine.system.processes import run_in_child
from pytest_dataloader_faults.exceptions import HarnessError, UnusableDatasetError

CALLS_USER_CODE = True

_PROBE_SECONDS = 120.0
"""A driver may take long to start on a machine with many devices."""
_CANNOT_USE = "a trial cannot use the accelerator: {}"


# Some facts about finding a device. A build for CUDA queries the driver, and a process that has
# done so can no longer fork one that uses CUDA (torch/cuda/__init__.py, ``is_available``). Trials
# are forked. So a disposable child does the query when it is needed.


@cache
def missing_accelerator() -> str | None:
    """Why there is none; None if there is one."""
    answer = run_in_child(lambda: b"%d" % torch.accelerator.is_available(), _PROBE_SECONDS)
    if not answer:
        message = (
            "torch could not check for an accelerator: the process that called"
            f" torch.accelerator.is_available() exited, or took more than {_PROBE_SECONDS:g} s"
        )
        raise HarnessError(message)
    return None if int(answer) else f"torch {torch.__version__} finds no accelerator here"


def require_use() -> None:
    """Raise an error if torch refuses to use it here, in a fork of pytest's process."""
    module = _module()
    if module is not None and getattr(module, "_is_in_bad_fork", bool)():
        why = (
            f"{module.__name__} was used in pytest's own process, and torch refuses to use it in"
            " forks of that process, such as trials. If torch.cuda.is_available() is the only use,"
            " set the environment variable PYTORCH_NVML_BASED_CUDA_CHECK=1. Otherwise run these"
            " tests in a separate session"
        )
        raise UnusableDatasetError(_CANNOT_USE.format(why))


def use() -> None:
    """Put a tensor on it, as a training job does with its model before its first epoch."""
    require_use()
    try:
        torch.empty(1, device=_device())
    except RuntimeError as error:
        raise UnusableDatasetError(_CANNOT_USE.format(error)) from error


def copy_to_device(batch: Any, device: torch.device | None = None) -> Any:
    """*batch* with its tensors copied to *device*, by default the accelerator.

    Does not wait for the copy, as training loops do not. Looks into what ``default_collate``
    makes; other classes stay as they are.
    """
    device = device or _device()
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copy_to_device(each, device) for each in batch))
    if type(batch) in {list, tuple}:
        return type(batch)(copy_to_device(each, device) for each in batch)
    if type(batch) is dict:
        return {name: copy_to_device(each, device) for name, each in batch.items()}
    return batch


# Some facts about pinned memory that is returned. torch keeps unused blocks for the next request,
# and a block is in use until the copies from it are done, which torch checks only when it
# allocates, or empties its cache. ``active_bytes`` of ``torch.cuda.host_memory_stats`` should show
# what is in use, but in torch 2.11 it grows with each batch that is pinned and freed. So the cache
# is emptied first: then ``allocated_bytes`` has nothing else. Nothing here starts CUDA.


def bytes_in_use() -> dict[str, Any]:
    """Bytes of pinned memory that this process uses, and bytes on the accelerator."""
    module = _module()
    pinned: Mapping[str, int] = {}
    if hasattr(module, "host_memory_stats") and module.is_initialized():
        module.synchronize()
        torch._C._host_emptyCache()
        pinned = module.host_memory_stats()
    in_use = pinned.get("allocated_bytes.current", 0)
    return {"pinned": in_use, "device": getattr(module, "memory_allocated", int)()}


def _module() -> Any:
    """The module of torch for the accelerator, as ``torch.cuda``; None if there is none."""
    device = _device()
    return None if device is None else torch.get_device_module(device)


def _device() -> torch.device | None:
    """The accelerator; None if this torch is built without."""
    return torch.accelerator.current_accelerator()
