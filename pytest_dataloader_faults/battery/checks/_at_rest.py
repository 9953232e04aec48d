"""Checks of files that are bad before the dataset is made, as by an interrupted download. Pure.

Their workload is that of the constructor, of the loader's process and of the workers together.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import (
    FLIPS,
    HALF,
    Check,
    Plan,
    Variant,
    for_each_kind,
    on,
    once,
    tails_cut_off,
)

_FROM_START = TrialOptions(from_start=True)
_NO_FILE = NotApplicable("neither its constructor nor its workers read a data file")
_EMPTY = NotApplicable("the files that its constructor and its workers read are empty")
_BEFORE = (
    "The file was like this when make_dataset() was called, so that the constructor met it, too"
)
_COMPARE = (
    "Compare what a file has with what it is to have: its size, a count of records in its header,"
    " or a checksum beside it"
)


def _no_target(workload: Workload) -> NotApplicable:
    return _EMPTY if workload.read.paths else _NO_FILE


_on = partial(on, no_target=_no_target)


@for_each_kind
def _cut_off(workload: Workload) -> Plan:
    """In the middle; and where a file ends that looks whole, if there is such a place."""
    if not workload.filled.paths:
        return _no_target(workload)
    half = faults.TruncatedFile(workload.filled.path, keep=HALF)
    tails = tails_cut_off(workload)
    if not tails:
        return once(half)
    return (
        Variant((half,), "the half is missing"),
        Variant(tails, "the end is missing, and the file looks whole"),
    )


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
        _on("filled", faults.TruncatedFile, one=True, keep=0),
        _COMPARE,
    ),
    _check(
        "missing-at-rest",
        "handles a file that is missing before the dataset is made",
        _on("read", faults.OpenError, one=True, errno=errno.ENOENT),
    ),
    _check(
        "corrupted-at-rest",
        "handles files whose bytes were damaged before the dataset is made",
        _on("filled", faults.CorruptedFile, flips=FLIPS),
        _COMPARE,
    ),
    _check(
        "read-error-at-rest",
        "handles a disk that cannot read the files, from the constructor on",
        _on("read", faults.ReadError),
    ),
)
