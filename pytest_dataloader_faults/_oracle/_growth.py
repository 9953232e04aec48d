"""What grows with each epoch, without an end. Pure.

Some facts about telling a leak from a process that is settling in. A bounded cache, an allocator's
arenas and late imports grow, too, but less and less, or all at once; a probe may catch something
that goes again. A leak goes on: the same epoch costs the same again. So the first third of the
epochs is left out. The rest is cut into four parts, and of each part the least counts, which is
what was there for good. It is a leak if from each part to the next it became more, at half the
mean rate at least, and the mean is above the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_dataloader_faults._epochs import FEWEST_EPOCHS
from pytest_dataloader_faults.outcomes import Footprint, Outcome
from pytest_dataloader_faults.verdicts import Verdict

_PARTS = 4
_KIB = 1024
_LEAST = {
    "descriptors": 0.5,
    "threads": 0.5,
    "pinned": _KIB,
    "device": _KIB,
    "memory": 64 * _KIB,
}
"""More per epoch than what healthy processes show."""
_KINDS = {
    "memory": "memory",
    "pinned": "pinned memory",
    "device": "memory of the accelerator",
}


def grown(outcome: Outcome) -> tuple[Verdict, str] | None:
    """What some process of the loader has more of after each epoch, if there is such a thing."""
    for process in dict.fromkeys(each.process for each in outcome.footprints):
        history = [each for each in outcome.footprints if each.process == process]
        for what, least in _LEAST.items():
            rate = growth([getattr(each, what) for each in history])
            if rate >= least:
                return Verdict.LEAKED, _sentence(what, rate, history[-1])
    return None


def _sentence(what: str, rate: float, last: Footprint) -> str:
    process = "the loader's process" if last.process == "loader" else last.process
    if what in _KINDS:
        more = f"{rate / _KIB:.0f} KiB more {_KINDS[what]}"
        return f"each epoch takes {more} in {process}, and keeps it"
    example = f" ({last.opened})" if what == "descriptors" else ""
    return f"each epoch leaves {rate:.0f} more {what} in {process}{example}"


def growth(values: Sequence[int]) -> float:
    """By how much *values* grow from one to the next, if they do so steadily; else 0."""
    if len(values) < FEWEST_EPOCHS:
        return 0
    rest = values[len(values) // 3 :]
    cuts = [len(rest) * part // _PARTS for part in range(_PARTS + 1)]
    floors = [(start, min(rest[start:end])) for start, end in pairwise(cuts)]
    rates = [(after - before) / (then - now) for (now, before), (then, after) in pairwise(floors)]
    mean = (floors[-1][1] - floors[0][1]) / cuts[-2]
    return mean if min(rates) > 0 and min(rates) >= mean / 2 else 0
