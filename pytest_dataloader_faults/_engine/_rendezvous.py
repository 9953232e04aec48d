"""Races are provoked, not awaited: reads through one file offset are made to meet.

Some facts about a descriptor that was opened before the workers were forked. All of them share its
open file description, so its offset too (fork(2)). One seeks, another seeks, the first one reads
what the second one asked for. On a quick disk the window is a microsecond wide, and thousands of
epochs pass before it shows. So the first worker that is about to read(2) at such an offset is kept
until another one is, too: then both have sought, and at most one of them can get what it wanted.

A dataset that guards its descriptor with a lock, or gives each worker files of its own, never lets
two readers meet. The first one is let go after a while, and after two such nobody is kept again.
Where there are several such files, whoever waits is relieved by the next one to come to another, so
that workers go from file to file in turns until they meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pytest_dataloader_faults._engine._delays import Delays

CALLS = ("read", "readv")
"""The calls that read at the shared offset; pread(2) and mmap(2) do not."""
_PATIENCE = 0.5
_MEETINGS = 8
_DISAPPOINTMENTS = 2


class _Waiting(NamedTuple):
    let_go: Callable[[], None]
    end: int


class Rendezvous:
    """Who waits at which file."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._waiting: dict[str, _Waiting] = {}
        self._met: Counter[str] = Counter()
        self._disappointed = 0

    def arrive(self, path: str, let_go: Callable[[], None]) -> None:
        """A worker is about to read *path*; *let_go* lets it."""
        other = self._waiting.pop(path, None)
        if other is not None:
            self._met[path] += 1
            self._delays.cancel(other.end)
            other.let_go()
            let_go()
        elif self._met[path] >= _MEETINGS or self._disappointed >= _DISAPPOINTMENTS:
            let_go()
        else:
            self._relieve()
            end = self._delays.after(_PATIENCE, lambda: self._give_up(path))
            self._waiting[path] = _Waiting(let_go, end)

    def _relieve(self) -> None:
        """Let go whoever waits elsewhere."""
        for path in tuple(self._waiting):
            waiting = self._waiting.pop(path)
            self._delays.cancel(waiting.end)
            waiting.let_go()

    def _give_up(self, path: str) -> None:
        self._disappointed += 1
        self._waiting.pop(path).let_go()
