"""What grows with each epoch, and what is left behind at the end. Pure.

Some facts about telling a leak from a process that is settling in. A bounded cache, an allocator's
arenas and late imports grow, too, but less and less, or all at once; a probe may catch something
that goes again. A leak goes on: the same epoch costs the same again. So the first third of the
epochs is left out. The rest is cut into four parts, and of each part the least counts, which is
what was there for good. It is a leak if from each part to the next it became more, at half the
mean rate at least, and the mean is above the noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._records import FEWEST_EPOCHS, Footprint, Resources
from pytest_dataloader_faults.outcomes._verdicts import Finding, Verdict

_HARMLESS = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")
_PARTS = 4
_LEAST = {"descriptors": 0.5, "threads": 0.5, "pinned": 1024, "device": 1024, "memory": 64 * 1024}
"""More per epoch than what healthy processes show."""
_MEMORY = {"memory": "memory", "pinned": "pinned memory", "device": "memory of the accelerator"}


def judge_growth(outcome: TrialFacts) -> Finding | None:
    """What some process of the loader has more of after each epoch, if there is such a thing."""
    for process in dict.fromkeys(each.process for each in outcome.footprints):
        history = [each for each in outcome.footprints if each.process == process]
        for what, least in _LEAST.items():
            rate = steady_growth([getattr(each, what) for each in history])
            if rate >= least:
                return Verdict.LEAKED, _sentence(what, rate, history[-1])
    return None


def _sentence(what: str, rate: float, last: Footprint) -> str:
    process = "the loader's process" if last.process == "loader" else last.process
    if what in _MEMORY:
        size = f"{rate / 1024:.0f} KiB"
        return f"each epoch takes {size} more {_MEMORY[what]} in {process} and never frees it"
    example = f" ({last.newly_open})" if what == "descriptors" else ""
    return f"each epoch leaves {rate:.0f} more {what} in {process}{example}"


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


def leaked(outcome: TrialFacts) -> Finding | None:
    """Processes that still run at the end, and files that a second pass has opened once more."""
    moments = {each.phase: each for each in outcome.resources}
    before, after, recovery = map(moments.get, ("before", "after", "recovery"))
    for later in (after, recovery):
        known = before.processes if before else {}
        running = later.processes if before and later else {}
        if commands := [what for pid, what in running.items() if pid not in known]:
            return Verdict.LEAKED, f"{len(commands)} processes were left running ({commands[0]})"
    if after and recovery and (more := _new_files(after, recovery)):
        sentence = f"{sum(more.values())} more descriptors are open after a second pass"
        return Verdict.LEAKED, f"{sentence} ({next(iter(more))})"
    return None


def _new_files(before: Resources, after: Resources) -> dict[str, int]:
    more = Counter(after.descriptors.values()) - Counter(before.descriptors.values())
    return {path: count for path, count in more.items() if not path.startswith(_HARMLESS)}
