"""Import now what workers would import late [wherever workers are started, and in workers].

Some facts about late imports. torch imports its nested tensors when a process shares its first
tensor (``reduce_tensor`` in torch/multiprocessing/reductions.py), and uses ``numpy.random`` when a
worker begins. Each forked worker does so anew. torch shares tensors in the thread that feeds the
queue. An import that fails there loses the batch, and the loader waits for it for ever: a fault can
be the cause, or fake files, among which the module's own are not.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

LATE = ("torch.nested._internal.nested_tensor", "numpy.random")


def import_late_modules() -> None:
    """Import them, as far as they are installed."""
    for name in LATE:
        with contextlib.suppress(ImportError):
            import_module(name)
