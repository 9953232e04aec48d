"""Waiting for something to be so."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], patience: float = 30.0) -> bool:
    """Whether *condition* came true within *patience* seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
