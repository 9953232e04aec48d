"""What the supervisor waits for: descriptors, and what to do when they have something to tell."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

Action = Callable[[int], None]
"""What is done about an event; it is given the EPOLL* flags."""


class Events:
    """The descriptors that are watched. What *last* is of is dealt with after all else."""

    def __init__(self) -> None:
        self.last: int | None = None
        self._poll = select.epoll()
        self._actions: dict[int, Action] = {}

    def watch(self, fd: int, action: Action) -> None:
        """From now on, do *action* whenever *fd* can be read, or hangs up."""
        self._actions[fd] = action
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget *fd*, if it is watched."""
        if self._actions.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, patience: float | None) -> Iterator[tuple[Action, int]]:
        """What is to be done now, after *patience* seconds at most; None: for ever."""
        for fd, flags in sorted(self._poll.poll(patience), key=lambda each: each[0] == self.last):
            action = self._actions.get(fd)
            if action is not None:  # It may have been removed by an earlier event.
                yield action, flags
