"""Accelerators for tests: a real one, or torch's pin loop run for real on ordinary memory.

The stand-in replaces what torch queries about the device, and ``Tensor.pin_memory``, which copies
here as it does there, and counts. The thread, its queues and its ways to fail are torch's own. It
says nothing about a device: what does is marked gpu.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_dataloader_faults._trial.resources import missing_accelerator

_copies: list[weakref.ref[Any]] = []


def pretend(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have this process treat its CPU as an accelerator; permanently, unless *put* is passed."""
    for name, answer in (
        ("is_available", True),
        ("current_device_index", 0),
        ("set_device_index", None),
        ("current_accelerator", torch.device("cpu")),
    ):
        put(torch.accelerator, name, lambda *_, answer=answer, **__: answer)
    put(torch.Tensor, "pin_memory", _copy)
    put(torch.cpu, "host_memory_stats", _count_memory)
    put(torch._C, "_host_emptyCache", lambda: None)


@contextlib.contextmanager
def stand_in(patch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend(functools.partial(patch.setattr, raising=False))
    missing_accelerator.cache_clear()
    try:
        yield
    finally:
        missing_accelerator.cache_clear()


def _copy(tensor: Any, _device: Any = None) -> Any:
    copy = tensor.clone()
    _copies.append(weakref.ref(copy))
    return copy


def _count_memory() -> dict[str, int]:
    """What ``torch.cuda`` returns by this name, for the copies that still exist."""
    _copies[:] = [each for each in _copies if each() is not None]
    alive = (each() for each in _copies)
    return {"allocated_bytes.current": sum(copy.nbytes for copy in alive if copy is not None)}


REAL = (pytest.mark.gpu, pytest.mark.dataloader_faults)
"""What marks a test that needs a real one."""
