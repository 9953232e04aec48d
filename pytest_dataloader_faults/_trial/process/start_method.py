"""How the workers of a loader are started: one rule for trials, batteries and searches.

Some facts about start methods. A ``DataLoader`` without a ``multiprocessing_context`` takes the
default of multiprocessing: what ``set_start_method()`` has set, or else ``"fork"`` on Linux up to
Python 3.13, and ``"forkserver"`` from 3.14 on. Whatever uses that default settles it, also a look
at it by ``get_context()`` or ``get_start_method()``: ``set_start_method()`` raises RuntimeError
afterwards. In pytest's process only the user may do so.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any


def default() -> str:
    """The start method of a loader that names none."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


@contextlib.contextmanager
def unsettled() -> Iterator[None]:
    """Leave the default as it is, whatever in this scope uses it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(chosen, force=True)


def of_context(context: Any) -> str:
    """That of a ``multiprocessing_context``: a name, a context, or None for the default."""
    if context is None:
        return default()
    ask = getattr(context, "get_start_method", None)
    return str(ask() if callable(ask) else context)


def of_options(options: Mapping[str, Any]) -> str:
    """That of a loader with these options."""
    return of_context(options.get("multiprocessing_context"))
