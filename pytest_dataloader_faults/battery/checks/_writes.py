"""Checks of what workers write: a cache, mostly. Pure.

What a fault leaves in a file is found by the pass without faults that follows each trial: it reads
the same files, and has to give the right samples.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Variant, once


def _on_written(plan: Callable[[Workload, Any], Plan]) -> Callable[[Workload], Plan]:
    """*plan*, given the path of what workers write; or why they write nothing that may fail."""

    def checked(workload: Workload) -> Plan:
        written = workload.written
        return written if isinstance(written, NotApplicable) else plan(workload, written.path)

    return checked


@_on_written
def _fails_at_once(_: Workload, path: Any) -> Plan:
    return once(faults.WriteError(path, errno.EIO))


@_on_written
def _fills_up_half_way(workload: Workload, path: Any) -> Plan:
    """Twice: a file may be written by a header and its data, and the error of one be dropped."""
    half = workload.writes // 2 + 1
    return tuple(
        Variant((faults.WriteError(path, errno.ENOSPC, nth=nth),), f"from write {nth} on")
        for nth in (half, half + 1)
        if nth <= workload.writes
    )


@_on_written
def _dies_writing(workload: Workload, path: Any) -> Plan:
    return once(faults.WorkerKilled(writing=path, worker=min(workload.writers)))


WRITES = (
    Check("write-error", "handles files that cannot be written", _fails_at_once),
    Check("disk-full", "handles a disk that is full half way", _fills_up_half_way),
    Check(
        "worker-killed-writing",
        "handles a file that a dying worker left half written",
        _dies_writing,
    ),
)
