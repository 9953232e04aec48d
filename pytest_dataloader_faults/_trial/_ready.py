"""Waiting for descriptors: select(2) takes no number above 1023, and pytest may have them."""

from __future__ import annotations

import select
from collections.abc import Iterable


def ready(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those of *descriptors* that can be read, or have ended, at the latest after *seconds*."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000 * max(0.0, seconds))]
