"""When a worker began its batches and opened files: of many times, the first and the last. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

Moment: TypeAlias = tuple[float, str, str]
"""The time, which is CLOCK_MONOTONIC's, what kind of event it is, and what it is about."""
MOST = 400
"""Events in the timeline of one trial."""


class Moments:
    """What happened in one process, in order. Any number may come; little memory is taken."""

    def __init__(self) -> None:
        self._first: list[Moment] = []
        self._last: deque[Moment] = deque(maxlen=MOST // 2)
        self._count = 0

    def add(self, time: float, kind: str, text: str) -> None:
        """Note one more."""
        self._count += 1
        kept = self._first if len(self._first) < MOST // 2 else self._last
        kept.append((time, kind, text))

    def extend(self, moments: Iterable[Moment], omitted: int) -> None:
        """Note those that another process has kept, and how many it has *omitted*."""
        for moment in moments:
            self.add(*moment)
        self._count += omitted

    def kept(self) -> tuple[list[Moment], int]:
        """Those that are kept, and how many are not."""
        kept = [*self._first, *self._last]
        return kept, self._count - len(kept)
