"""Checks of faults in the files that a dataset opens and reads. Pure."""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, on
from pytest_dataloader_faults.outcomes import Outcome

_HALVES = 2
_FEW = 7


def _half_way(times: int | None) -> Callable[[Workload], Plan]:
    def plan(workload: Workload) -> Plan:
        if workload.is_python_engine and not workload.read.paths:
            return workload.no_target("read")
        if workload.reads < _HALVES:
            reason = f"the busiest worker makes {workload.reads} reads, fewer than {_HALVES}"
            return NotApplicable(reason)
        # Where an even number of items is read, this is the last read of an item and not the first
        # read of the next: it reads content, and not a header.
        nth = max(_HALVES, workload.reads // _HALVES)
        return (faults.ReadError(workload.read.path, nth=nth, times=times),)

    return plan


def _cannot_be_short(_: Workload, outcome: Outcome) -> str | None:
    if any(each.reached for each in outcome.faults):
        return None
    return f"its workers map their files, or read {_FEW} bytes at a time at most"


def _cut_off(workload: Workload) -> Plan:
    if workload.truncation_points:
        points = workload.truncation_points
        return tuple(faults.TruncatedFile(glob.escape(path), keep=end) for path, end in points)
    return on("content", faults.TruncatedFile, keep=0.9)(workload)


FILES = (
    Check("open-error", "handles files that cannot be opened", on("opened", faults.OpenError)),
    Check(
        "file-missing",
        "handles a file that does not exist",
        on("opened", faults.OpenError, one=True, errno=errno.ENOENT),
    ),
    Check(
        "permission-denied",
        "handles files that it may not read",
        on("opened", faults.permission_denied),
    ),
    Check(
        "read-error-first",
        "handles a disk that fails at the first read",
        on("read", faults.ReadError),
    ),
    Check("read-error-later", "handles a disk that fails half way", _half_way(None)),
    Check("read-error-transient", "handles one read error, after which reads work", _half_way(1)),
    Check(
        "short-read",
        "handles reads that return fewer bytes than requested",
        on("read", faults.ShortRead, max_bytes=_FEW),
        skip_reason=_cannot_be_short,
    ),
    Check(
        "truncated-half",
        "handles files that end in the middle",
        on("content", faults.TruncatedFile, keep=0.5),
    ),
    Check(
        "truncated-empty",
        "handles a file that is empty",
        on("content", faults.TruncatedFile, one=True, keep=0),
    ),
    Check(
        "truncated-tail",
        "handles files whose end is missing, although they look complete",
        _cut_off,
    ),
    Check(
        "corrupted-file",
        "handles files with damaged bytes",
        on("content", faults.CorruptedFile, flips=8),
    ),
    Check(
        "closed-descriptor",
        "handles a descriptor that is closed while the dataset uses it",
        on("content", faults.ClosedDescriptor),
    ),
)

_PATIENCE = 1.0
"""Seconds. A dataset with a shorter time limit of its own reaches that first."""


def _hung(workload: Workload) -> Plan:
    if not workload.readers:
        return workload.no_target("read")
    return (faults.HungRead(workload.read.path),)


HANGS = (
    Check(
        "hung-read",
        "raises an error in time where the storage does not answer",
        _hung,
        options=TrialOptions(patience=_PATIENCE),
    ),
)
