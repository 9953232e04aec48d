"""Checks that put the files at risk which a dataset reads. Pure.

Checks in which nothing fails, and nothing comes either. Pure.
"""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable

from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery.checks._base import (
    Check,
    NotApplicable,
    Plan,
    Recon,
    on_content,
    on_content_of_one,
    on_one_opened,
    on_opened,
    on_read,
    path_of,
)
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    HungRead,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
    permission_denied,
)
from pytest_dataloader_faults.outcomes import Outcome

_HALVES = 2
_FEW = 7


def _read_in_the_middle(times: int | None) -> Callable[[Recon], Plan]:
    def plan(recon: Recon) -> Plan:
        if recon.is_blind and not recon.read:
            return recon.nothing("read")
        if recon.reads < _HALVES:
            return NotApplicable(
                f"the busiest worker makes {recon.reads} reads, fewer than {_HALVES}"
            )
        # Of an even number of items this is the last read of one, not the first of the next: it is
        # for content, and not for a header.
        nth = max(_HALVES, recon.reads // _HALVES)
        return (ReadError(path_of(recon.read), nth=nth, times=times),)

    return plan


def _cannot_be_short(_: Recon, outcome: Outcome) -> str | None:
    if any(each.reached for each in outcome.faults):
        return None
    return f"its workers map their files, or read {_FEW} bytes at a time at most"


def _shorter_by_the_end(recon: Recon) -> Plan:
    if recon.ends:
        return tuple(TruncatedFile(glob.escape(path), keep=end) for path, end in recon.ends)
    return on_content(lambda path: TruncatedFile(path, keep=0.9))(recon)


FILES = (
    Check("open-error", "files that cannot be opened are no surprise", on_opened(OpenError)),
    Check(
        "file-missing",
        "a file that is gone is no surprise",
        on_one_opened(lambda path: OpenError(path, errno=errno.ENOENT)),
    ),
    Check(
        "permission-denied",
        "files that may not be read are no surprise",
        on_opened(permission_denied),
    ),
    Check("read-error-first", "the disk fails at the first read", on_read(ReadError)),
    Check("read-error-later", "the disk fails half way", _read_in_the_middle(None)),
    Check("read-error-transient", "one read fails, the next works", _read_in_the_middle(1)),
    Check(
        "short-read",
        "reads give fewer bytes than were asked for",
        on_read(lambda path: ShortRead(path, max_bytes=_FEW)),
        moot=_cannot_be_short,
    ),
    Check(
        "truncated-half",
        "files end in the middle",
        on_content(lambda path: TruncatedFile(path, keep=0.5)),
    ),
    Check(
        "truncated-empty",
        "a file is empty",
        on_content_of_one(lambda path: TruncatedFile(path, keep=0)),
    ),
    Check(
        "truncated-tail",
        "the last part of files is missing, and they look whole",
        _shorter_by_the_end,
    ),
    Check(
        "corrupted-file",
        "bytes of files are damaged",
        on_content(lambda path: CorruptedFile(path, flips=8)),
    ),
    Check(
        "closed-descriptor",
        "a descriptor is closed under the dataset",
        on_content(ClosedDescriptor),
    ),
)

_PATIENCE = 1.0
"""Seconds. A dataset that has a time limit of its own meets it where that is shorter."""


def _hung(recon: Recon) -> Plan:
    if not (recon.read and recon.readers):
        return recon.nothing("read")
    return (HungRead(path_of(recon.read)),)


HANGS = (
    Check(
        "hung-read",
        "storage that does not answer is an error in time",
        _hung,
        options=TrialOptions(patience=_PATIENCE),
    ),
)
