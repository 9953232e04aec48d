"""Iterate samplers of the user's where that changes nothing here [in the trial].

A sampler may change when it is iterated: it continues after an interruption, draws from its own
generator, or can be iterated only once. The epoch that follows must draw as if nobody had looked.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import torch

from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._engine.worker.arm import end_with_parent


def call_in_child(function: Callable[[], bytes], seconds: float) -> bytes:
    """What *function* returns in a child of this process; b"" if it fails or takes longer."""
    reading, writing = os.pipe()
    child = fork()
    if not child:
        try:
            end_with_parent(at_once=True)
            torch.set_num_threads(1)  # As in workers: a fork has none of the other threads.
            result = function()
            with open(writing, "wb") as pipe:
                pipe.write(result)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read() if select.select([pipe], [], [], seconds)[0] else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return result
