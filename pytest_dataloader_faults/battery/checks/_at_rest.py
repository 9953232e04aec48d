"""Checks of files that are bad before the dataset is made, as by an interrupted download. Pure.

Their workload is that of the constructor, of the loader's process and of the workers together.
"""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable
from typing import Literal

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import FileSet, NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Variant, for_each_kind, once

_FROM_START = TrialOptions(from_start=True)
_HALF, _FLIPS = 0.5, 8
_NO_FILE = NotApplicable("neither its constructor nor its workers read a data file")
_EMPTY = NotApplicable("the files that its constructor and its workers read are empty")
_BEFORE = (
    "The file was like this when make_dataset() was called, so that the constructor met it, too"
)
_COMPARE = (
    "Compare what a file has with what it is to have: its size, a count of records in its header,"
    " or a checksum beside it"
)


def _of_each(
    make: Callable[[FileSet], faults.Fault], files: Literal["read", "filled"]
) -> Callable[[Workload], Plan]:
    """A plan for each kind of these *files*. What is empty by itself can only be missing."""

    def plan(workload: Workload) -> Plan:
        found: FileSet = getattr(workload, files)
        if not workload.read.paths:
            return _NO_FILE
        return once(make(found)) if found.paths else _EMPTY

    return for_each_kind(plan)


@for_each_kind
def _cut_off(workload: Workload) -> Plan:
    """In the middle; and where a file ends that looks whole, if there is such a place."""
    if not workload.filled.paths:
        return _EMPTY if workload.read.paths else _NO_FILE
    cut = faults.TruncatedFile(workload.filled.path, keep=_HALF)
    half = Variant((cut,), "the half is missing")
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
        _of_each(lambda files: faults.TruncatedFile(files.middle, keep=0), "filled"),
        _COMPARE,
    ),
    _check(
        "missing-at-rest",
        "handles a file that is missing before the dataset is made",
        _of_each(lambda files: faults.OpenError(files.middle, errno=errno.ENOENT), "read"),
    ),
    _check(
        "corrupted-at-rest",
        "handles files whose bytes were damaged before the dataset is made",
        _of_each(lambda files: faults.CorruptedFile(files.path, flips=_FLIPS), "filled"),
        _COMPARE,
    ),
    _check(
        "read-error-at-rest",
        "handles a disk that cannot read the files, from the constructor on",
        _of_each(lambda files: faults.ReadError(files.path), "read"),
    ),
)
