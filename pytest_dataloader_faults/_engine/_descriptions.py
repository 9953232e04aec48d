"""Which workers read through one and the same offset of a file [runs in the supervisor].

Some facts about open file descriptions (open(2)). Descriptors of two processes may have one between
them, with one offset and one set of status flags, or one each of the same file, and /proc shows no
difference. kcmp(2) would tell, but containers forbid it. So a flag that means nothing to a regular
file, O_NONBLOCK, is turned over for a moment through one descriptor and looked for through the
other.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections import defaultdict
from typing import Any

from pytest_dataloader_faults._engine._worker_state import WorkerState


def reports(workers: list[WorkerState]) -> list[dict[str, Any]]:
    """The facts of each of *workers*, and which offsets it shared."""
    shared = _shared_offsets(workers)
    return [{**each.to_dict(), "shared": sorted(shared[each.pid])} for each in workers]


def _shared_offsets(workers: list[WorkerState]) -> defaultdict[int, set[str]]:
    """By process: the files that it and another of *workers* have read through one offset."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for one, other in itertools.combinations(workers, 2):
        for path, descriptor in one.read_at_offset.items():
            counterpart = other.read_at_offset.get(path)
            if counterpart is not None and _are_one(one, descriptor, other, counterpart):
                found[one.pid].add(path)
                found[other.pid].add(path)
    return found


def _are_one(one: WorkerState, descriptor: int, other: WorkerState, counterpart: int) -> bool:
    pair = (one.followed.get(descriptor), other.followed.get(counterpart))
    sources = [each.source for each in pair if each and not each.apart and each.source is not None]
    return len(sources) == len(pair) and are_one_description(*sources)


def are_one_description(one: int, other: int) -> bool:
    """Whether two descriptors of this process have one offset between them."""
    flags, others = (fcntl.fcntl(each, fcntl.F_GETFL) for each in (one, other))
    fcntl.fcntl(one, fcntl.F_SETFL, flags ^ os.O_NONBLOCK)
    try:
        return fcntl.fcntl(other, fcntl.F_GETFL) != others
    finally:
        fcntl.fcntl(one, fcntl.F_SETFL, flags)
