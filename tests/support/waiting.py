"""Waiting for something to be so, or to be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], bool], patience: float = 30.0) -> bool:
    """Whether *condition* came true within *patience* seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def in_a_thread(action: Callable[[], Any], patience: float = 60.0) -> Any:
    """What *action* returns in a thread of its own.

    That is none of an executor's: a process that is forked there joins that very thread as it ends
    (concurrent/futures/thread.py, ``_python_exit``) and ends with status 1, which torch may notice.
    """
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(action()))
    thread.start()
    thread.join(patience)
    return came[0]
