"""Resources that grow with each epoch, or are left behind at the end. Pure."""

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
from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize, was_or_were

_IGNORED = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")


def judge_growth(outcome: TrialFacts) -> Finding | None:
    """A resource that grew with each epoch, if there were enough epochs to confirm it."""
    growth = find_growth(outcome.footprints)
    if growth is None or growth.footprint.epoch < TIMES_TO_CONFIRM * FEWEST_EPOCHS:
        return None
    return Finding(Verdict.LEAKED, describe_growth(growth))


def describe_growth(growth: Growth) -> str:
    """The resource that grew, by how much, and in which process."""
    resource, rate, footprint = growth
    process = "the main process" if footprint.process == "loader" else footprint.process
    if resource.memory:
        size = f"{rate / 1024:.0f} KiB"
        return f"each epoch allocates {size} more {resource.memory} in {process} and never frees it"
    has_example = resource.name == "descriptors" and footprint.newly_open
    example = f" ({footprint.newly_open})" if has_example else ""
    amount = pluralize(round(rate), f"more {resource.name.removesuffix('s')}")
    return f"each epoch leaks {amount} in {process}{example}"


def find_leak(outcome: TrialFacts) -> Finding | None:
    """Processes that still run at the end, or files that the recovery pass has left open."""
    moments = {each.stage: each for each in outcome.resources}
    start, end, recovery = map(moments.get, (Stage.START, Stage.EPOCH, Stage.RECOVERY))
    for later in (end, recovery):
        expected = start.processes if start else {}
        running = later.processes if start and later else {}
        if commands := [command for pid, command in running.items() if pid not in expected]:
            count = len(commands)
            sentence = (
                f"{pluralize(count, 'process')} {was_or_were(count)} left running ({commands[0]})"
            )
            return Finding(Verdict.LEAKED, sentence)
    if end and recovery and (opened := _count_opened(end, recovery)):
        count = sum(opened.values())
        sentence = (
            f"{pluralize(count, 'more descriptor')} {is_or_are(count)} open after the recovery pass"
        )
        return Finding(Verdict.LEAKED, f"{sentence} ({next(iter(opened))})")
    return None


def _count_opened(earlier: Resources, later: Resources) -> dict[str, int]:
    opened = Counter(later.descriptors.values()) - Counter(earlier.descriptors.values())
    return {path: count for path, count in opened.items() if not path.startswith(_IGNORED)}
