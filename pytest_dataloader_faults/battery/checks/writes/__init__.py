"""Checks of what workers write, and of the files that they leave. Pure.

The recovery pass, which follows each trial, finds what a fault left in a file: it reads the same
files, and must deliver the correct samples.
"""

from __future__ import annotations

import errno

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import (
    REPEATED,
    Check,
    Scenario,
    Scenarios,
    no_fault,
)
from pytest_dataloader_faults.battery.checks.writes.rules import find_leftovers
from pytest_dataloader_faults.battery.workload import Workload, require_real_files
from pytest_dataloader_faults.steps import arm_workers

_EPOCHS_OF_NEW_WORKERS = 3
_LEFTOVERS = (
    "A worker exits without running atexit handlers or the finalizers of its objects. Remove a"
    " temporary file in the sample that created it, or create and remove it in the main process"
)


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


def _needs_real_files(workload: Workload) -> Scenario:
    require_real_files()
    return no_fault(workload)


WRITES = (
    Check("write-error", "handles files that cannot be written", _fails_at_once),
    Check("disk-full", "handles a disk that fills up halfway", _fills_up_halfway),
    Check(
        "worker-killed-writing",
        "handles a file that a killed worker left half-written",
        _dies_writing,
    ),
)

LEFTOVERS = (
    Check(
        "leftover-files",
        "workers leave no temporary file and no shared memory behind when they exit",
        _needs_real_files,
        scenario=Scenario(
            loader={"persistent_workers": False},
            processes=arm_workers(*[REPEATED] * _EPOCHS_OF_NEW_WORKERS),
        ),
        rule=find_leftovers,
        advice=_LEFTOVERS,
    ),
)
