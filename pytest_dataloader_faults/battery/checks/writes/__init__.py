"""Checks of what workers write. Pure.

The recovery pass, which follows each trial, finds what a fault left in a file: it reads the same
files, and must deliver the correct samples.
"""

from __future__ import annotations

import errno

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import Check, Scenario, Scenarios
from pytest_dataloader_faults.battery.workload import Workload


def _fails_at_once(workload: Workload) -> faults.Fault:
    return faults.WriteError(workload.written.path, errno.EIO)


def _fills_up_halfway(workload: Workload) -> Scenarios:
    """Twice: the header and the data of a file may be written separately, and one error ignored."""
    half = workload.writes // 2 + 1
    path = workload.written.path
    return tuple(
        Scenario(
            faults=(faults.WriteError(path, errno.ENOSPC, nth=nth),), title=f"from write {nth} on"
        )
        for nth in (half, half + 1)
        if nth <= workload.writes
    )


def _dies_writing(workload: Workload) -> faults.Fault:
    path = workload.written.path
    return faults.WorkerKilled(writing=path, worker=min(workload.writers))


WRITES = (
    Check("write-error", "handles files that cannot be written", _fails_at_once),
    Check("disk-full", "handles a disk that fills up halfway", _fills_up_halfway),
    Check(
        "worker-killed-writing",
        "handles a file that a killed worker left half-written",
        _dies_writing,
    ),
)
