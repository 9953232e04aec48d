"""Resources that grow with each epoch, or are left behind at the end. Pure."""

# Some facts about telling a leak from a process that is warming up. A bounded cache, an allocator's
# arenas and late imports grow as well, but less and less, or all at once; and a probe may catch
# something temporary. A leak continues: the same epoch costs the same again. So the first third of
# the epochs is ignored. The rest is cut into four parts, and the minimum of each part counts, which
# was there permanently. It is a leak if each minimum exceeds the previous one, by at least half the
# mean rate, and the mean is above the noise.
#
# A pool that fills evenly looks like a leak until it is full. So growth over a few epochs is
# confirmed by four times as many, and it is a leak if it continued over all of them.
#
# More epochs find a leak that noise hides in a few. So they are not needed where there is no noise:
# if even the largest difference between two of the later epochs is far below what the smallest leak
# adds in that time.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Footprint, Outcome
from pytest_dataloader_faults.outcomes.stages import Stage
from pytest_dataloader_faults.outcomes.text import is_or_are, pluralize, was_or_were

FEWEST_EPOCHS = 8
"""With fewer epochs, growth cannot be distinguished from warming up."""
TIMES_TO_CONFIRM = 4
_PARTS = 4
_FEWEST_IF_CONSTANT = 10
"""By then, small objects that leak have filled the memory that was free."""
_CONSTANT = 0.2
"""Of what the smallest leak adds: less is no growth."""
LEFT_BY_ERROR = Cause(
    "leaves open what an error interrupts",
    "Each error left something behind in the worker, so that a long run ends with EMFILE or without"
    " memory. Open files, threads and programs in a `with` block, or close them in `finally`",
    fix="open files, threads and programs in a `with` block",
)
_IGNORED = ("/dev/", "/proc/", "/memfd:", "anon_inode:", "socket:", "pipe:")
"""Descriptors of these may be left open."""


class GrowingResource(NamedTuple):
    """A resource that a leak has more of after each epoch.

    Attributes:
        name: The attribute of a ``Footprint``.
        least: Growth per epoch that healthy processes do not show.
        memory: What kind of memory it is; "" if it is none.
    """

    name: str
    least: float
    memory: str = ""


GROWING_RESOURCES = (
    GrowingResource("descriptors", 0.5),
    GrowingResource("threads", 0.5),
    GrowingResource("pinned", 1024, "pinned memory"),
    GrowingResource("device", 1024, "accelerator memory"),
    GrowingResource("memory", 64 * 1024, "memory"),
)
"""The first that grows is reported."""


class Growth(NamedTuple):
    """*rate* more of *resource* after each epoch; *footprint* is that after the last one."""

    resource: GrowingResource
    rate: float
    footprint: Footprint


def find_growth(footprints: Sequence[Footprint]) -> Growth | None:
    """The resource that a process of the loader has more of after each epoch, if any."""
    for resource, values, last in _histories(footprints):
        rate = steady_growth(values)
        if rate >= resource.least:
            return Growth(resource, rate, last)
    return None


def is_constant(footprints: Sequence[Footprint]) -> bool:
    """Whether no resource grows, so that more epochs would hardly show a leak."""
    for resource, values, _ in _histories(footprints):
        settled = _settled(values)
        most = _CONSTANT * resource.least * (len(settled) - 1)
        if len(values) < _FEWEST_IF_CONSTANT or max(settled) - min(settled) >= most:
            return False
    return True


def _histories(
    footprints: Sequence[Footprint],
) -> Iterator[tuple[GrowingResource, list[int], Footprint]]:
    """Each resource of each process, how much there was, and the last footprint of the process."""
    for process in dict.fromkeys(each.process for each in footprints):
        history = [each for each in footprints if each.process == process]
        for resource in GROWING_RESOURCES:
            yield resource, [getattr(each, resource.name) for each in history], history[-1]


def _settled(values: Sequence[int]) -> Sequence[int]:
    """The measurements after the warm-up."""
    return values[len(values) // 3 :]


def steady_growth(values: Sequence[int]) -> float:
    """By how much *values* grow per step, if they grow steadily; otherwise 0."""
    if len(values) < FEWEST_EPOCHS:
        return 0
    settled = _settled(values)
    cuts = [len(settled) * part // _PARTS for part in range(_PARTS + 1)]
    floors = [(start, min(settled[start:end])) for start, end in pairwise(cuts)]
    rates = [
        (end - start) / (later - earlier) for (earlier, start), (later, end) in pairwise(floors)
    ]
    mean = (floors[-1][1] - floors[0][1]) / cuts[-2]
    return mean if min(rates) > 0 and min(rates) >= mean / 2 else 0


def judge_growth(outcome: Outcome) -> Finding | None:
    """A resource that grew with each epoch, if there were enough epochs to confirm it."""
    growth = find_growth(outcome.footprints)
    if growth is None or growth.footprint.epoch < TIMES_TO_CONFIRM * FEWEST_EPOCHS:
        return None
    cause = LEFT_BY_ERROR if outcome.fired else None
    return Finding(Verdict.LEAKED, describe_growth(growth), cause)


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


def find_leak(outcome: Outcome) -> Finding | None:
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
    opened = Counter[str]()
    if end and recovery:
        opened = Counter(recovery.descriptors.values()) - Counter(end.descriptors.values())
    if paths := [each for each in opened.elements() if not each.startswith(_IGNORED)]:
        count = len(paths)
        sentence = (
            f"{pluralize(count, 'more descriptor')} {is_or_are(count)} open after the recovery pass"
        )
        return Finding(Verdict.LEAKED, f"{sentence} ({paths[0]})")
    return None
