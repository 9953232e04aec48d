"""What grows with each epoch: a leak, and not a process that is settling in. Pure.

Some facts about telling a leak from a process that is settling in. A bounded cache, an allocator's
arenas and late imports grow, too, but less and less, or all at once; a probe may catch something
that goes again. A leak goes on: the same epoch costs the same again. So the first third of the
epochs is left out. The rest is cut into four parts, and of each part the least counts, which is
what was there permanently. It is a leak if from each part to the next it became more, at half the
mean rate at least, and the mean is above the noise.

A pool that fills evenly looks like a leak until it is full. So growth that a few epochs show is
confirmed by four times as many, and it is a leak if it went on over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.records import Footprint

FEWEST_EPOCHS = 8
"""With fewer epochs, growth cannot be told from settling in."""
TIMES_TO_CONFIRM = 4
_PARTS = 4
_LEAST = {"descriptors": 0.5, "threads": 0.5, "pinned": 1024, "device": 1024, "memory": 64 * 1024}
"""More per epoch than what healthy processes show."""


class Growth(NamedTuple):
    """*rate* more of *what* after each epoch; *last* is how it was after the last one."""

    what: str
    rate: float
    last: Footprint


def find_growth(footprints: Sequence[Footprint]) -> Growth | None:
    """What some process of the loader has more of after each epoch, if there is such a thing."""
    for process in dict.fromkeys(each.process for each in footprints):
        history = [each for each in footprints if each.process == process]
        for what, least in _LEAST.items():
            rate = steady_growth([getattr(each, what) for each in history])
            if rate >= least:
                return Growth(what, rate, history[-1])
    return None


def steady_growth(values: Sequence[int]) -> float:
    """By how much *values* grow from one to the next, if they do so steadily; else 0."""
    if len(values) < FEWEST_EPOCHS:
        return 0
    rest = values[len(values) // 3 :]
    cuts = [len(rest) * part // _PARTS for part in range(_PARTS + 1)]
    floors = [(start, min(rest[start:end])) for start, end in pairwise(cuts)]
    rates = [(after - before) / (then - now) for (now, before), (then, after) in pairwise(floors)]
    mean = (floors[-1][1] - floors[0][1]) / cuts[-2]
    return mean if min(rates) > 0 and min(rates) >= mean / 2 else 0
