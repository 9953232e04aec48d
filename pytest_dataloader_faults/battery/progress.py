"""A bar of tqdm for a long call, in a terminal and outside pytest, which shows progress itself."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(title: str, total: int | None = None) -> Iterator[Callable[[], object]]:
    """Show a bar if tqdm is installed; yields the function that counts a step of *total*."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield lambda: None
        return

    class Bar(tqdm):  # type: ignore[misc]
        # A monitor thread would be running at each fork of a trial. And tqdm's own lock settles the
        # default start method of multiprocessing, which the user may want to set later.
        monitor_interval = 0
        _lock = threading.RLock()

    is_off = True if "PYTEST_CURRENT_TEST" in os.environ else None  # None: unless in a terminal.
    with Bar(desc=title, total=total, disable=is_off) as shown:
        yield shown.update
