"""What the supervisor waits for: descriptors that can be read, and timers [runs in it]."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable, Iterator

EventHandler = Callable[[int], None]
"""Called with the EPOLL* flags."""


class Events:
    """The descriptors that are watched. The one of *last* is handled after all others."""

    def __init__(self) -> None:
        self.last: int | None = None
        self._poll = select.epoll()
        self._handlers: dict[int, EventHandler] = {}

    def watch(self, fd: int, handler: EventHandler) -> None:
        """From now on, call *handler* whenever *fd* can be read, or hangs up."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget *fd*, if it is watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, timeout: float | None) -> Iterator[tuple[EventHandler, int]]:
        """The handlers to call now, after *timeout* seconds at most; None: no limit."""
        for fd, flags in sorted(self._poll.poll(timeout), key=lambda each: each[0] == self.last):
            handler = self._handlers.get(fd)
            if handler is not None:  # It may have been removed by an earlier event.
                yield handler, flags


class Timers:
    """Actions that wait for their time. The event loop asks how long it may sleep."""

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

    def timeout(self) -> float | None:
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
