"""Put this process under a supervisor's filter, for good [runs in the DataLoader worker].

Some facts about the moment between the filter and the supervisor. From the instruction that
installs the filter, an open(2) of any thread here waits until the supervisor has the listener. So
everything that the handover needs is imported and looked up before, and the handover itself opens
nothing. Descriptors and mappings made earlier are listed first: their low numbers go into the
program. A listener that stays open here, because the supervisor has died meanwhile, would have this
process wait for itself; once nobody has it, the kernel answers ENOSYS.
"""

from __future__ import annotations

import os
import resource
from typing import Any

from pytest_dataloader_faults._engine.kernel import bpf
from pytest_dataloader_faults._engine.kernel.linux import (
    ARCHITECTURES,
    MACHINE,
    SYSCALLS,
    filter_this_process,
    map_over,
)
from pytest_dataloader_faults._engine.open_files import held_files, mapped_files
from pytest_dataloader_faults._engine.protocol import Channel, WorkerConfig
from pytest_dataloader_faults._engine.worker.session import WorkerSession, carry_out
from pytest_dataloader_faults.faults._globs import GlobMatcher

_MAX_LISTED = 60
_MAX_SPAN = 8192


def arm(posting: WorkerConfig, worker: int, loader: int) -> WorkerSession:
    """Filter this process. What it already holds is dealt with as the supervisor orders."""
    matches = GlobMatcher(globs) if (globs := posting.plan.globs) else lambda _path: False
    held = list(held_files(matches))
    mapped = [each for each in mapped_files() if matches(each.path)]
    base, limit = _high_numbers()
    hello = {
        "worker": worker,
        "loader": loader,
        "pid": os.getpid(),
        "held": held,
        "mapped": [each.path for each in mapped],
        "base": base,
        "limit": limit,
    }
    channel = posting.connect()
    _hand_over(channel, posting, hello)
    more = True
    while more:
        orders, descriptors = channel.receive()
        for index, place in orders["remap"]:
            each = mapped[index]
            map_over(each.start, each.length, each.protection, descriptors[place], each.offset)
        carry_out(orders, descriptors)
        more = orders["more"]
    return WorkerSession(channel)


def _hand_over(channel: Channel, posting: WorkerConfig, hello: dict[str, Any]) -> None:
    listed = [fd for fd, _path in hello["held"]]
    base, needs = hello["base"], posting.plan.needs
    if needs.low:
        base, listed = 0, []
    elif len(listed) > _MAX_LISTED:  # A program has at most 4096 instructions.
        base, listed = min(listed), []
    program = bpf.program(
        SYSCALLS[MACHINE],
        ARCHITECTURES[MACHINE],
        base=base,
        held=listed,
        descriptors=needs.descriptors,
        stats=needs.stats,
        room=needs.room,
    )
    listener = filter_this_process(program, posting.supervisor)
    try:
        channel.send(hello, [listener, *(fd for fd, _path in hello["held"][:_MAX_LISTED])])
    finally:
        os.close(listener)


def _high_numbers() -> tuple[int, int]:
    """Where followed descriptors go: above all that the process makes, below its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    base = min(soft // 2, _MAX_SPAN)
    return base, min(soft, base + _MAX_SPAN)
