"""What grows with each epoch, and what is left behind at the end. Pure."""

from __future__ import annotations

from collections import Counter

from pytest_dataloader_faults.outcomes.contract import Finding, Verdict
from pytest_dataloader_faults.outcomes.growth import (
    FEWEST_EPOCHS,
    TIMES_TO_CONFIRM,
    Growth,
    find_growth,
)
from pytest_dataloader_faults.outcomes.records import Resources, TrialFacts
from pytest_dataloader_faults.outcomes.stages import Stage
from pytest_dataloader_faults.outcomes.text import are, counted, were

_HARMLESS = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")
_MEMORY = {"memory": "memory", "pinned": "pinned memory", "device": "memory of the accelerator"}


def judge_growth(outcome: TrialFacts) -> Finding | None:
    """What grew with each epoch, if there were enough of them to be sure."""
    found = find_growth(outcome.footprints)
    if found is None or found.last.epoch < TIMES_TO_CONFIRM * FEWEST_EPOCHS:
        return None
    return Finding(Verdict.LEAKED, sentence_of(found))


def sentence_of(found: Growth) -> str:
    """What grew, by how much, and where."""
    what, rate, last = found
    process = "the loader's process" if last.process == "loader" else last.process
    if what in _MEMORY:
        size = f"{rate / 1024:.0f} KiB"
        return f"each epoch takes {size} more {_MEMORY[what]} in {process} and never frees it"
    example = f" ({last.newly_open})" if what == "descriptors" else ""
    more = counted(round(rate), f"more {what.removesuffix('s')}")
    return f"each epoch leaves {more} in {process}{example}"


def leaked(outcome: TrialFacts) -> Finding | None:
    """Processes that still run at the end, and files that a second pass has opened once more."""
    moments = {each.stage: each for each in outcome.resources}
    before, after, recovery = map(moments.get, (Stage.START, Stage.EPOCH, Stage.RECOVERY))
    for later in (after, recovery):
        known = before.processes if before else {}
        running = later.processes if before and later else {}
        if commands := [what for pid, what in running.items() if pid not in known]:
            left = len(commands)
            sentence = f"{counted(left, 'process')} {were(left)} left running ({commands[0]})"
            return Finding(Verdict.LEAKED, sentence)
    if after and recovery and (more := _new_files(after, recovery)):
        count = sum(more.values())
        sentence = f"{counted(count, 'more descriptor')} {are(count)} open after a second pass"
        return Finding(Verdict.LEAKED, f"{sentence} ({next(iter(more))})")
    return None


def _new_files(before: Resources, after: Resources) -> dict[str, int]:
    more = Counter(after.descriptors.values()) - Counter(before.descriptors.values())
    return {path: count for path, count in more.items() if not path.startswith(_HARMLESS)}
