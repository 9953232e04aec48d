"""Checks of files that are bad before the dataset is made, as by an interrupted download. Pure.

Their workload is that of the constructor, of the loader's process and of the workers together.
"""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Variant, for_each_kind, once

_FROM_START = TrialOptions(from_start=True)
_HALF, _FLIPS = 0.5, 8
_NO_FILE = NotApplicable("neither its constructor nor its workers read a data file")
_BEFORE = (
    "The file was like this when make_dataset() was called, so that the constructor met it, too"
)
_COMPARE = (
    "Compare what a file has with what it is to have: its size, a count of records in its header,"
    " or a checksum beside it"
)


def _of_read(make: Callable[[Workload], Plan]) -> Callable[[Workload], Plan]:
    """A plan for each kind of file that is read."""

    def plan(workload: Workload) -> Plan:
        return make(workload) if workload.read.paths else _NO_FILE

    return for_each_kind(plan)


def _of_all(kind: Callable[..., faults.Fault], **options: Any) -> Callable[[Workload], Plan]:
    return _of_read(lambda workload: once(kind(workload.read.path, **options)))


def _of_one(kind: Callable[..., faults.Fault], **options: Any) -> Callable[[Workload], Plan]:
    return _of_read(lambda workload: once(kind(workload.read.middle, **options)))


@_of_read
def _cut_off(workload: Workload) -> Plan:
    """In the middle; and where a file ends that looks whole, if there is such a place."""
    half = Variant((faults.TruncatedFile(workload.read.path, keep=_HALF),), "the half is missing")
    points = workload.truncation_points
    if not points:
        return once(*half.faults)
    ends = (faults.TruncatedFile(glob.escape(path), keep=end) for path, end in points)
    return (half, Variant((*ends,), "the end is missing, and the file looks whole"))


def _check(name: str, promise: str, plan: Callable[[Workload], Plan], advice: str = "") -> Check:
    return Check(name, promise, plan, options=_FROM_START, preface=_BEFORE, advice=advice)


AT_REST = (
    _check(
        "truncated-at-rest",
        "handles files that were cut off before the dataset is made",
        _cut_off,
        _COMPARE,
    ),
    _check(
        "empty-at-rest",
        "handles a file that is empty before the dataset is made",
        _of_one(faults.TruncatedFile, keep=0),
        _COMPARE,
    ),
    _check(
        "missing-at-rest",
        "handles a file that is missing before the dataset is made",
        _of_one(faults.OpenError, errno=errno.ENOENT),
    ),
    _check(
        "corrupted-at-rest",
        "handles files whose bytes were damaged before the dataset is made",
        _of_all(faults.CorruptedFile, flips=_FLIPS),
        _COMPARE,
    ),
    _check(
        "read-error-at-rest",
        "handles a disk that cannot read the files, from the constructor on",
        _of_all(faults.ReadError),
    ),
)
