"""What is to happen later, beside the calls that come in meanwhile [runs in the supervisor].

When deaths happen, and when what hangs goes on [runs in the supervisor].
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import defaultdict
from collections.abc import Callable


class Timers:
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


Action = Callable[[], None]
BatchPosition = tuple[int, int]
"""An epoch, and one of a worker's batches in it; both from 1."""


class DeathScheduler:
    """Deaths that wait until the loader waits for the very batch that will not come.

    Without that, the number of batches delivered before a death would depend on timing, and torch's
    error would be one of five (the handover of an earlier batch may break instead).

    Several loaders may be at work; each has a number, and its workers' ids begin at 0.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, int, BatchPosition, Action]] = []
        self._waited: dict[tuple[int, int], BatchPosition] = {}
        self._open: set[int] = set()
        self._stuck: defaultdict[int, list[Action]] = defaultdict(list)

    def hold(self, loader: int, worker: int, place: BatchPosition, action: Action) -> None:
        """Do *action* once *loader* waits for the batch of *worker* at that *place*."""
        self._held.append((loader, worker, place, action))
        self._let_go()

    def stick(self, loader: int, let_go: Action) -> None:
        """Something of *loader*'s workers hangs; *let_go* ends that."""
        self._stuck[loader].append(let_go)

    def waiting(self, loader: int, worker: int, place: BatchPosition) -> None:
        """*loader* waits for the batch of *worker* at that *place*."""
        self._waited[loader, worker] = place
        self._let_go()

    def open(self, loader: int) -> None:
        """*loader* waits for nothing any more."""
        self._open.add(loader)
        self._let_go()

    def release(self, loader: int) -> None:
        """*loader* is at its end: nothing of it may hang any longer."""
        self.open(loader)
        for let_go in self._stuck.pop(loader, []):
            let_go()

    def release_all(self) -> None:
        """The scope is at its end."""
        for loader in {each[0] for each in self._held} | set(self._stuck):
            self.release(loader)

    def _let_go(self) -> None:
        for entry in list(self._held):
            loader, worker, place, action = entry
            if loader in self._open or self._waited.get((loader, worker), (0, 0)) >= place:
                self._held.remove(entry)
                action()
