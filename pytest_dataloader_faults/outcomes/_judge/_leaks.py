"""What grows with each epoch, without an end. Pure.

Some facts about telling a leak from a process that is settling in. A bounded cache, an allocator's
arenas and late imports grow, too, but less and less, or all at once; a probe may catch something
that goes again. A leak goes on: the same epoch costs the same again. So the first third of the
epochs is left out. The rest is cut into four parts, and of each part the least counts, which is
what was there for good. It is a leak if from each part to the next it became more, at half the
mean rate at least, and the mean is above the noise.

What was left behind. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._records import FEWEST_EPOCHS, Footprint, Resources
from pytest_dataloader_faults.outcomes._verdicts import Verdict

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


def grown(outcome: TrialFacts) -> tuple[Verdict, str] | None:
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
    example = f" ({last.newly_open})" if what == "descriptors" else ""
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


_HARMLESS = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")


def leaked(outcome: TrialFacts) -> tuple[Verdict, str] | None:
    moments = {each.phase: each for each in outcome.resources}
    for when in ("after", "recovery"):
        if left := _new_processes(moments.get("before"), moments.get(when)):
            command = next(iter(left.values()))
            return Verdict.LEAKED, f"{len(left)} processes were left running ({command})"
    if "after" in moments and "recovery" in moments:
        grown = _new_files(moments["after"], moments["recovery"])
        if grown:
            sentence = f"{sum(grown.values())} descriptors more are open after another pass"
            return Verdict.LEAKED, f"{sentence} ({next(iter(grown))})"
    return None


def _new_processes(before: Resources | None, after: Resources | None) -> dict[str, str]:
    if before is None or after is None:
        return {}
    return {pid: what for pid, what in after.processes.items() if pid not in before.processes}


def _new_files(before: Resources, after: Resources) -> Counter[str]:
    """Data files that are open more often than before."""
    counts = [Counter(moment.descriptors.values()) for moment in (after, before)]
    grown = counts[0] - counts[1]
    return Counter({path: n for path, n in grown.items() if not path.startswith(_HARMLESS)})
