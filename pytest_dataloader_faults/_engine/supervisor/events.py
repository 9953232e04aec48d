"""What the supervisor waits for: descriptors, timers, and batches that are awaited [runs in it]."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from pytest_dataloader_faults._engine.system.processes import LONGEST_WAIT, Patience

# Some facts about poll(2) and epoll(7). A listener with SYNC_WAKE_UP wakes the supervisor on the
# processor of the caller, which is about to sleep. A process in poll(2) is woken so. One in
# epoll_wait(2) may not be: epoll wakes it by a separate call, which may choose any idle processor
# (ep_poll_callback in fs/eventpoll.c). But poll(2) checks each descriptor at each call, and a
# worker has a socket in addition to its listener. So listeners are polled, and after them one epoll
# instance that has all the rest.
#
# A message that a worker sends before a call applies to that call. poll(2) checks one descriptor
# after the other: if it finds the call, it finds afterwards what was sent before. So the epoll
# instance is the last that it checks, and its messages are handled first.


Action = Callable[[], None]
_Result = TypeVar("_Result")
EventHandler = Callable[[int], object]
"""Called with the POLL* flags."""


class Events:
    """The descriptors that are watched. The one of *last* is handled after all others."""

    def __init__(self) -> None:
        self.last: int | None = None
        self._handlers: dict[int, EventHandler] = {}
        self._poll = select.poll()
        self._others = select.epoll()
        self._others_fd = self._others.fileno()
        self._poll.register(self._others_fd, select.POLLIN)
        self.lock = threading.Lock()
        """The thread that holds it may use what the supervisor knows of workers."""
        self._wake_up = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wake_up, lambda _events: os.eventfd_read(self._wake_up))

    def call(self, action: Callable[[], _Result]) -> _Result:
        """The result of *action*, between the events of the loop. For other threads."""
        with self.lock:
            result = action()
        os.eventfd_write(self._wake_up, 1)  # The loop may wait for a timer of *action*.
        return result

    def watch(self, fd: int, handler: EventHandler) -> None:
        """From now on, call *handler* whenever *fd* can be read, or hangs up."""
        self._handlers[fd] = handler
        self._others.register(fd, select.EPOLLIN)

    def watch_calls(self, fd: int, handler: EventHandler) -> None:
        """Call *handler* for the listener *fd*, whose callers wait."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)
        self._poll.unregister(self._others_fd)
        self._poll.register(self._others_fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget *fd*, if it is watched."""
        if self._handlers.pop(fd, None) is not None:
            try:
                self._poll.unregister(fd)
            except KeyError:
                self._others.unregister(fd)

    def wait(self, timeout: float | None) -> Iterator[tuple[EventHandler, int]]:
        """The handlers to call now, after *timeout* seconds at most; None to wait forever."""
        ready = self._poll.poll(None if timeout is None else 1000 * min(timeout, LONGEST_WAIT))
        if ready and ready[-1][0] == self._others_fd:
            ready = [*self._others.poll(0), *ready[:-1]]
            ready.sort(key=lambda event: event[0] == self.last)
        with self.lock:
            for fd, flags in ready:
                handler = self._handlers.get(fd)
                if handler is not None:  # It may have been removed by an earlier event.
                    yield handler, flags


class Timers:
    """Actions that wait for their time. The event loop reads how long it may sleep."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._actions: dict[int, tuple[Action, Patience | None]] = {}
        self._number = itertools.count()

    def after(self, seconds: float, action: Action, pids: Collection[int] = ()) -> int:
        """Do *action* in *seconds*; the number returned is for ``cancel``.

        Seconds in which one of the processes *pids* waits for a processor do not count.
        """
        number = next(self._number)
        self._actions[number] = action, Patience(seconds, pids) if pids else None
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
        now = time.monotonic() if self._waiting else 0.0
        while self._waiting and (everything or self._waiting[0][0] <= now):
            _, number = heapq.heappop(self._waiting)
            action, patience = self._actions.get(number, (None, None))
            if patience and not (everything or patience.is_over()):
                heapq.heappush(self._waiting, (time.monotonic() + patience.left, number))
            elif action is not None:
                self.cancel(number)
                action()


BatchPosition = tuple[int, int]
"""An epoch, and one of a worker's batches in it; both from 1."""


class DeathScheduler:
    """Deaths that wait until the loader waits for the very batch that will be missing.

    Without that, the number of batches delivered before a death would depend on timing, and torch's
    error would be one of five (the handover of an earlier batch may break instead).

    Several loaders may be at work; each has a number, and its workers' ids start at 0.
    """

    def __init__(self) -> None:
        self._deaths: list[tuple[int, int | None, BatchPosition, Action]] = []
        """Each: the loader, the worker, the batch, and what happens."""
        self._awaited: dict[tuple[int, int | None], BatchPosition] = {}
        self._released: set[int] = set()
        self._hung: defaultdict[int, list[Action]] = defaultdict(list)

    def schedule(
        self, loader: int, worker: int | None, position: BatchPosition, action: Action
    ) -> None:
        """Do *action* once *loader* waits for the batch of *worker* at that *position*."""
        self._deaths.append((loader, worker, position, action))
        self._run_due()

    def add_hung(self, loader: int, release: Action) -> None:
        """Something of *loader*'s workers hangs; *release* ends that."""
        self._hung[loader].append(release)

    def set_awaited(self, loader: int, worker: int, position: BatchPosition) -> None:
        """*loader* waits for the batch of *worker* at that *position*."""
        self._awaited[loader, worker] = position
        self._run_due()

    def release_deaths(self, loader: int) -> None:
        """*loader* waits for nothing any more."""
        self._released.add(loader)
        self._run_due()

    def release(self, loader: int) -> None:
        """*loader* ends: nothing of it may hang any longer."""
        self.release_deaths(loader)
        for release in self._hung.pop(loader, []):
            release()

    def release_all(self) -> None:
        """The scope ends."""
        for loader in {loader for loader, *_ in self._deaths} | set(self._hung):
            self.release(loader)

    def _run_due(self) -> None:
        for death in list(self._deaths):
            loader, worker, position, action = death
            awaited = self._awaited.get((loader, worker), (0, 0))
            if loader in self._released or awaited >= position:
                self._deaths.remove(death)
                action()
