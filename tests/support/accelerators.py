"""Accelerators for tests: a real one, or torch's pin loop run for real on ordinary memory.

The stand-in replaces what torch asks about the device, and ``Tensor.pin_memory``, which copies here
as it does there. The thread, its queues and its ways to fail are torch's own. It says nothing
about a device: what does is marked gpu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def pretend(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have this process take its CPU for an accelerator; for good, unless *put* says else."""
    for name, answer in (
        ("is_available", True),
        ("current_device_index", 0),
        ("set_device_index", None),
        ("current_accelerator", torch.device("cpu")),
    ):
        put(torch.accelerator, name, lambda *_, answer=answer, **__: answer)
    put(torch.Tensor, "pin_memory", _copied)


def _copied(tensor: Any, _device: Any = None) -> Any:
    return tensor.clone()


def nothing() -> None:
    """The accelerator is there."""


ACCELERATORS = [
    pytest.param(pretend, id="stand-in"),
    pytest.param(nothing, id="real", marks=[pytest.mark.gpu, pytest.mark.dataloader_faults]),
]
