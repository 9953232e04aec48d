"""When deaths happen, and when what hangs goes on [runs in the supervisor]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

Action = Callable[[], None]
BatchPosition = tuple[int, int]
"""An epoch, and one of a worker's batches in it; both from 1."""


class _Death(NamedTuple):
    loader: int
    worker: int
    position: BatchPosition
    action: Action


class DeathScheduler:
    """Deaths that wait until the loader waits for the very batch that will not come.

    Without that, the number of batches delivered before a death would depend on timing, and torch's
    error would be one of five (the handover of an earlier batch may break instead).

    Several loaders may be at work; each has a number, and its workers' ids begin at 0.
    """

    def __init__(self) -> None:
        self._deaths: list[_Death] = []
        self._awaited: dict[tuple[int, int], BatchPosition] = {}
        self._released: set[int] = set()
        self._hung: defaultdict[int, list[Action]] = defaultdict(list)

    def schedule(self, loader: int, worker: int, position: BatchPosition, action: Action) -> None:
        """Do *action* once *loader* waits for the batch of *worker* at that *position*."""
        self._deaths.append(_Death(loader, worker, position, action))
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
        for loader in {each.loader for each in self._deaths} | set(self._hung):
            self.release(loader)

    def _run_due(self) -> None:
        for each in list(self._deaths):
            awaited = self._awaited.get((each.loader, each.worker), (0, 0))
            if each.loader in self._released or awaited >= each.position:
                self._deaths.remove(each)
                each.action()
