"""When a worker began its batches and opened files: of many times, the first and the last. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Moment: TypeAlias = tuple[float, str, str]
"""The time, which is CLOCK_MONOTONIC's, what kind of event it is, and what it is about."""
Omitted: TypeAlias = Mapping[str, tuple[int, float]]
"""By kind: how many are not kept, and the time of the last one before them that is."""
MOST = 400
"""Events in the timeline of one trial."""


class _OfOneKind:
    """The moments of one kind, in order."""

    def __init__(self) -> None:
        self.first: list[Moment] = []
        self.last: deque[Moment] = deque(maxlen=MOST // 2)
        self.count = 0

    @property
    def omitted(self) -> int:
        return self.count - len(self.first) - len(self.last)


class Moments:
    """What happened in one process, in order. Any number may come; little memory is taken.

    One kind does not crowd out another: a worker may open a thousand files for a batch.
    """

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _OfOneKind] = defaultdict(_OfOneKind)

    def add(self, time: float, kind: str, text: str) -> None:
        """Note one more."""
        of_kind = self._kinds[kind]
        of_kind.count += 1
        kept = of_kind.first if len(of_kind.first) < MOST // 2 else of_kind.last
        kept.append((time, kind, text))

    def extend(self, moments: Iterable[Moment], omitted: Omitted) -> None:
        """Note those that another process has kept, and how many it has *omitted*."""
        for moment in moments:
            self.add(*moment)
        for kind, (count, _) in omitted.items():
            self._kinds[kind].count += count

    def kept(self) -> tuple[list[Moment], Omitted]:
        """Those that are kept, and those that are not."""
        every = self._kinds.values()
        moments = (moment for each in every for moment in (*each.first, *each.last))
        kept = sorted(moments, key=lambda moment: moment[0])
        omitted = {
            kind: (each.omitted, each.first[-1][0] if each.first else 0.0)
            for kind, each in self._kinds.items()
            if each.omitted
        }
        return kept, omitted
