"""Races are provoked, not awaited: reads through one file offset are made to meet.

Some facts about a descriptor that was opened before the workers were forked. All of them share its
open file description, so its offset too (fork(2)). One seeks, another seeks, the first one reads
what the second one asked for. On a quick disk the window is a microsecond wide, and thousands of
epochs pass before it shows. So the first worker that is about to read(2) at such an offset is kept
until another one is, too: then both have sought, and at most one of them can get what it wanted.

A dataset that guards its descriptor with a lock, or gives each worker files of its own, never lets
two readers meet. The first one is let go after a while, and after two such nobody is kept again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

CALLS = ("read", "readv")
"""The calls that read at the shared offset; pread(2) and mmap(2) do not."""
_PATIENCE = 0.5
_MEETINGS = 8
_DISAPPOINTMENTS = 2


class _Waiting(NamedTuple):
    let_go: Callable[[], None]
    until: float


class Rendezvous:
    """Who waits at which file."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._met: Counter[str] = Counter()
        self._disappointed = 0

    def arrive(self, path: str, let_go: Callable[[], None]) -> None:
        """A worker is about to read *path*; *let_go* lets it."""
        other = self._waiting.pop(path, None)
        if other is not None:
            self._met[path] += 1
            other.let_go()
            let_go()
        elif self._met[path] >= _MEETINGS or self._disappointed >= _DISAPPOINTMENTS:
            let_go()
        else:
            self._waiting[path] = _Waiting(let_go, time.monotonic() + _PATIENCE)

    def patience(self) -> float | None:
        """Seconds until somebody has waited long enough; None if nobody waits."""
        left = [each.until - time.monotonic() for each in self._waiting.values()]
        return max(0.0, min(left)) if left else None

    def expire(self, *, everybody: bool = False) -> None:
        """Let go who has waited long enough."""
        now = time.monotonic()
        for path, each in list(self._waiting.items()):
            if everybody or each.until <= now:
                del self._waiting[path]
                self._disappointed += 1
                each.let_go()
