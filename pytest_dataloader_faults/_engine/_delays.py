"""What is to happen later, beside the calls that come in meanwhile [runs in the supervisor]."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Delays:
    """Actions that wait for their time. Asked by the loop how long it may sleep."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._number = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> int:
        """Do *action* in *seconds*; the number returned is for ``cancel``."""
        number = next(self._number)
        self._actions[number] = action
        heapq.heappush(self._waiting, (time.monotonic() + seconds, number))
        return number

    def cancel(self, number: int) -> None:
        """Forget an action."""
        self._actions.pop(number, None)

    def patience(self) -> float | None:
        """Seconds until the next action is due; None if there is none."""
        while self._waiting and self._waiting[0][1] not in self._actions:
            heapq.heappop(self._waiting)
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def expire(self, *, everything: bool = False) -> None:
        """Do what is due; *everything*: whenever it is due."""
        now = time.monotonic()
        while self._waiting and (everything or self._waiting[0][0] <= now):
            _, number = heapq.heappop(self._waiting)
            action = self._actions.pop(number, None)
            if action is not None:
                action()
